"""The libraries of vendors are asked in other processes where that takes long. What is listed for a
layer follows from the precisions that are allowed for it and for the layers beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from gossamer.device.base import Device
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.expression import apply
from gossamer.facts import ValueFacts
from gossamer.io.process_pool import NoProcessError, ProcessEndedError
from gossamer.ops.algorithm import PRECISIONS, Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.fused import FusedElementwise
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.exactness import BYTES
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights, WeightsInfo
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Layer
from gossamer.plan.tune import space
from gossamer.plan.tune.space import Space
from gossamer.tensor import default_spec
from tests.plan.tune.build_algorithms import AHEAD, CompilingHost, remember

PROBLEM = Conv2dProblem(2, 8, 6, 6, 4, (1, 1))
OTHER = replace(PROBLEM, out_channels=8)


class Library(Algorithm):
    """A vendor's library that notes what it is asked. is_slow: whether it can be asked in another
    process."""

    op, vendor = "conv2d", "a vendor"

    def __init__(self, name: str, events: list[str], *, is_slow: bool) -> None:
        self.name, self._events, self._is_slow = name, events, is_slow

    def supports(self, problem: Any, device: Device) -> str | None:
        return None

    def variants(self, problem: Any, device: Device) -> Iterator[Variant]:
        raise AssertionError("it is asked for precisions")

    def variants_in(self, problem: Any, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        self._events.append(f"{self.name} lists {problem.out_channels} in {','.join(precisions)}")
        yield Variant((), problem.inputs, problem.outputs)

    def listing_ahead(self, problem: Any, device: Device,
                      precisions: Sequence[str]) -> Callable[[Device], object] | None:
        text = f"{self.name} is asked for {problem.out_channels} in {','.join(precisions)}"
        return (lambda device: self._events.append(text)) if self._is_slow else None

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        raise AssertionError("nothing is built")


class Asked:
    """In place of Compilers: processes that do work when they are asked, or fail."""

    def __init__(self, failure: Exception | None) -> None:
        self._failure = failure

    def start(self, *, on_device: bool) -> None:
        assert on_device

    def ask(self, work: Callable[[Device], object], what: str) -> Future[object]:
        future: Future[object] = Future()
        if self._failure is None:
            work(find("host"))
            future.set_result(None)
        else:
            future.set_exception(self._failure)
        return future


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the list in which a slow and a quick library of convolutions note what they are
    asked."""
    events: list[str] = []
    slow, quick = (Library(name, events, is_slow=name == "slow") for name in ("slow", "quick"))
    monkeypatch.setitem(OPS, "conv2d", replace(OPS["conv2d"], algorithms=(slow, quick)))
    monkeypatch.setattr(HostDevice, "builds_side_by_side", True)
    return events


LAYERS = [Layer(f"layer{index}", ["x"], [f"y{index}"], problem,
                {}) for index, problem in enumerate((PROBLEM, OTHER))]


def new_space() -> Space:
    return Space("quick", EFFORTS["quick"], ("fp32", "tf32"), keeps_precisions=False)


def ask(asked: Asked) -> None:
    """Lists the candidates of two layers."""
    listed = new_space()
    answers = listed.ask(LAYERS, find("host"), asked)  # type: ignore[arg-type]
    assert all(answer.done() for answer in answers)
    for algorithm in reversed(OPS["conv2d"].algorithms):
        for layer in LAYERS:
            assert len(list(listed.within_effort(algorithm, layer.problem, find("host")))) == 1


ELSEWHERE = [f"slow is asked for {count} in fp32,tf32" for count in (4, 8)]
HERE = [f"{name} lists {count} in fp32,tf32" for name in ("quick", "slow") for count in (4, 8)]


@pytest.mark.parametrize("failure", [None, NoProcessError("no"), ProcessEndedError("it died")],
                         ids=["works", "does not start", "dies"])
def test_slow_libraries_are_asked_elsewhere(monkeypatch: pytest.MonkeyPatch, events: list[str],
                                            failure: Exception | None) -> None:
    monkeypatch.setattr(space, "_FEW_LISTED", 1)
    ask(Asked(failure))
    assert events == (ELSEWHERE if failure is None else []) + HERE


def test_few_layers_are_not_worth_it(monkeypatch: pytest.MonkeyPatch,
                                     events: list[str]) -> None:
    monkeypatch.setattr(space, "_FEW_LISTED", 9)
    ask(Asked(None))
    assert sorted(events) == sorted(HERE)


def test_processes_do_work_on_the_device(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.device import kernel_cache
    from gossamer.plan.tune.workers import Compilers

    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    monkeypatch.setattr("gossamer.plan.tune.workers.processors", lambda: 2)
    compilers = Compilers(CompilingHost())
    compilers.start(on_device=True)
    compilers.ask(remember, "an answer").result(60)
    compilers.close()
    assert kernel_cache.stored(AHEAD) == b"host"


class Rounding(Library):
    """A library with a variant of each precision. rounds_sums: whether that of float16 rounds."""

    def __init__(self, *, rounds_sums: bool) -> None:
        super().__init__("rounding", [], is_slow=False)
        self.rounds_sums = rounds_sums  # type: ignore[misc]

    def variants_in(self, problem: Any, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        yield from (Variant((), problem.inputs, problem.outputs, precision)
                    for precision in precisions)


@pytest.mark.parametrize(("rounds_sums", "facts", "expected"), [
    (False, (), ["fp32"]), (False, (BYTES,), ["fp32", "tf32", "fp16"]),
    (True, (BYTES,), ["fp32", "tf32"])])
def test_precisions_that_change_nothing_are_always_allowed(
        rounds_sums: bool, facts: tuple[ValueFacts, ...], expected: list[str]) -> None:
    problem = replace(PROBLEM, facts=facts, weights_info=WeightsInfo(facts=BYTES), result=BYTES)
    listed = Space("quick", EFFORTS["quick"], ("fp32",), keeps_precisions=False)
    variants = listed.within_effort(Rounding(rounds_sums=rounds_sums), problem, find("host"))
    assert [variant.precision for variant in variants] == expected


@pytest.mark.parametrize(("precisions", "facts", "expected"), [
    (("fp32",), (), {"fp32"}), (("fp32",), (BYTES,), {"fp32", "fp16"}),
    (PRECISIONS, (), {"fp32", "fp16"})])
def test_floats_that_are_rounded_to_integers_stay_in_float32(
        compiled_device: Device, precisions: Sequence[str], facts: tuple[ValueFacts, ...],
        expected: set[str]) -> None:
    """Integers of few bits are exact in float16, floats are not, even where the result is such an
    integer: rounded to float16, a float may be rounded to another integer."""
    problem = ElementwiseProblem((default_spec((2, 4, 6, 5)),), apply("round"), facts=facts,
                                 result=BYTES)
    listed = Space("quick", EFFORTS["quick"], precisions, keeps_precisions=False)
    variants = listed.within_effort(FusedElementwise(), problem, compiled_device)
    assert {variant.precision for variant in variants} == expected
    exact = {variant.precision for variant in variants
             if variant.is_as_precise_as_float32(problem)}
    assert exact == ({"fp32", "fp16"} if facts else {"fp32"})
