"""Candidates are checked: only those may be taken that are right with the layer's own constants, in
every image and each time they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import gossamer
from gossamer.device.base import Buffer, Device
from gossamer.device.registry import find
from gossamer.errors import GossamerError, OutOfMemoryError
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.measure import Task, interleave, prepared, sampled
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.copy.problem import convert
from gossamer.ops.elementwise import NumpyElementwise
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Measurement
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune import candidate_checks, output_errors
from gossamer.plan.tune.candidate_checks import CandidateChecks
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.rows import usable
from gossamer.plan.tune.tuner import Tuner
from gossamer.tensor import default_spec
from tests.plan.small import images, save, small
from tests.plan.tune.paced import measured_alone, why_wrong

HOST = find("host")


class Stub(HostIm2col):
    """A convolution that calls a function with its outputs afterwards."""

    name = "stub"

    def __init__(self, after: Callable[..., None] = lambda outputs: None,
                 variants: Callable[[Variant], list[Variant]] = lambda variant: [variant]) -> None:
        self.after = after
        self.change_variant = variants
        self.workspaces: list[Buffer | None] = []

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterable[Variant]:
        return self.change_variant(next(iter(super().variants(problem, device))))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        self.workspaces.append(workspace)
        super().launch(state, inputs, outputs, workspace, stream)
        shape = state.variant.outputs[0].stored_shape
        self.after(outputs[0].bytes.view(np.float32).reshape(shape))  # type: ignore[attr-defined]


@pytest.fixture
def tuner(tmp_path: Path, known: Callable[..., None]) -> Callable[[str], Tuner]:
    known(Stub())
    return lambda effort: Tuner(HOST, effort, cache=TuningCache(HOST, tmp_path))


def layer(scale: float = 1.0, batch: int = 8, seed: int = 0) -> Layer:
    problem = Conv2dProblem(batch, 4, 6, 6, 8, (3, 3))
    rng = np.random.default_rng(seed)
    weights = {"weight": (scale * rng.standard_normal((8, 4, 3, 3))).astype(np.float32)}
    return Layer("conv", ["x"], ["y"], problem, weights)


def results(of: Layer, pairs: Sequence[tuple[Algorithm, Variant]],
            memory: CandidateMemory | None = None) -> list[Measurement]:
    measured = [row.measured for row in measured_alone(of, HOST, pairs, 3, memory)]
    return [measurement for measurement in measured if measurement is not None]


def outcome(algorithm: Algorithm, of: Layer | None = None) -> str | None:
    of = layer() if of is None else of
    pairs = [(algorithm, variant) for variant in algorithm.variants(of.problem, HOST)]
    return results(of, pairs)[0].failure


@pytest.fixture(params=["all images", "three images", "three images, unpacked alone"])
def compared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sets which images are compared, and which are unpacked."""
    if request.param != "all images":
        monkeypatch.setattr(candidate_checks, "_CHECKED", 0)
    if "alone" in request.param:
        monkeypatch.setattr(output_errors, "_SMALL", 0)
    return request.param


@pytest.mark.parametrize("value", [slice(None), (-1, -1, -1)])
@pytest.mark.parametrize("image", range(8))
def test_a_value_that_is_left_as_it_was_is_seen(compared: str, image: int,
                                                value: slice | tuple[int, ...]) -> None:
    def spoil(y: np.ndarray) -> None:
        y.view(np.uint32)[image][value] = 0xFFFFFFFF

    assert outcome(Stub()) is None
    assert outcome(Stub(spoil)) == "wrong numbers (error inf)"


@pytest.mark.parametrize("image", range(8))
def test_a_wrong_image_is_seen(compared: str, image: int) -> None:
    def spoil(y: np.ndarray) -> None:
        y[image] = 0

    seen = compared == "all images" or image in (0, 4, 7)
    assert outcome(Stub(spoil)) == ("wrong numbers (error 1.0e+00)" if seen else None)


def test_a_single_value_near_zero_makes_no_error() -> None:
    spec = default_spec((100_000,))
    problem = ElementwiseProblem((spec,) * 3, Expression(3, (
        ExpressionStep("mul", (0, 1)), ExpressionStep("add", (3, 2)))))
    of = Layer("sum", ["x", "y", "z"], ["s"], problem)
    assert outcome(NumpyElementwise(), of) is None


def test_a_single_result_near_zero_makes_no_error() -> None:
    """A sum of 64 products has a size of about 8, whatever it happens to be, and so has its
    rounding; of 30 sums as they are first drawn some are below a tenth of that."""
    def rounds(outputs: np.ndarray) -> None:
        outputs += 8 * 2e-6

    rng = np.random.default_rng(0)
    problem = Conv2dProblem(1, 64, 1, 1, 1, (1, 1))
    variant = next(iter(Stub().variants(problem, HOST)))
    for index in range(30):
        weight = rng.standard_normal((1, 64, 1, 1)).astype(np.float32)
        of = Layer(f"sum{index}", ["x"], ["y"], problem,
                   {"weight": weight})
        assert why_wrong(CandidateChecks(of, HOST), Stub(rounds), variant) is None


def test_an_output_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read, reads = type(HOST).read, []

    def counted(self: Device, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        reads.append(array.nbytes)
        read(self, buffer, array, stream)

    monkeypatch.setattr(type(HOST), "read", counted)
    problem = ElementwiseProblem((default_spec((50_000, 4)),), apply("relu"))
    of = Layer("relu", ["x"], ["y"], problem)
    for most in (2**22, 0):
        monkeypatch.setattr(candidate_checks, "_CHECKED", most)
        assert outcome(NumpyElementwise(), of) is None
    assert len(reads) == 2


class Careless(HostIm2col):
    """A convolution that writes over its input and computes nothing."""

    name = "careless"

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        inputs[0].bytes[:] = 0  # type: ignore[attr-defined]


def test_inputs_that_a_candidate_wrote_over_are_brought_anew() -> None:
    of, memory = layer(), CandidateMemory(HOST)
    (careless,), (good,) = (
        [(algorithm, variant) for variant in algorithm.variants(of.problem, HOST)][:1]
        for algorithm in (Careless(), HostIm2col()))
    measured = results(of, [careless, good, careless, good], memory)
    assert [measurement.failure is None for measurement in measured] == [False, True, False, True]
    for pair, right in ((good, True), (careless, False), (good, True)):
        assert (why_wrong(CandidateChecks(of, HOST, memory), *pair) is None) == right


def test_where_there_is_no_memory_inputs_of_other_layers_go(monkeypatch: pytest.MonkeyPatch
                                                            ) -> None:
    empty, memory = type(HOST).empty, CandidateMemory(HOST)
    examples = memory.examples
    other = layer(batch=4).problem
    assert other is not None
    examples.buffer(other, 0, other.inputs[0])
    refused = []

    def bounded(self: Device, nbytes: int, purpose: str, stream: Any = None) -> Buffer:
        if purpose == "a candidate's output" and not refused:
            refused.append(len(examples._buffers._results))
            raise OutOfMemoryError("host has no room")
        if refused:
            assert not examples._buffers._results or purpose != "a candidate's output"
        return empty(self, nbytes, purpose, stream)

    monkeypatch.setattr(type(HOST), "empty", bounded)
    of, algorithm = layer(), HostIm2col()
    variant = next(iter(algorithm.variants(of.problem, HOST)))
    assert why_wrong(CandidateChecks(of, HOST, memory), algorithm, variant) is None
    assert refused and refused[0] > 0


def test_one_wrong_image_among_large_ones_is_seen() -> None:
    def spoil(y: np.ndarray) -> None:
        y[-1] *= 1.00002

    assert str(outcome(Stub(spoil))).startswith("wrong numbers (error 2.0e-05")


def test_what_fails_after_its_first_launch_is_left_and_named(
    tuner: Callable[[str], Tuner]) -> None:
    def fail_later(y: np.ndarray) -> None:
        if len(stub.workspaces) > 1:
            raise RuntimeError("no second time")

    stub = Stub(fail_later)
    assert outcome(stub) == "does not run: no second time"
    candidates = tuner("quick").measure(layer(), [Stub(fail_later), HostIm2col()], HOST)
    assert usable(layer(), candidates, HOST)


def test_candidates_share_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    def three(variant: Variant) -> list[Variant]:
        return [replace(variant, config=(("n", n),), workspace=nbytes)
                for n, nbytes in enumerate((8000, 4000, 9_000_000))]

    empty = type(HOST).empty

    def bounded(self: Device, nbytes: int, purpose: str, stream: Any = None) -> Buffer:
        if "workspace" in purpose and nbytes > 8000:
            raise OutOfMemoryError("host has no room")
        return empty(self, nbytes, purpose, stream)

    monkeypatch.setattr(type(HOST), "empty", bounded)
    stub = Stub(variants=three)
    rows = measured_alone(layer(), HOST, [
        (stub, variant) for variant in stub.variants(layer().problem, HOST)], 3)  # type: ignore[arg-type]
    assert [row.time_us is None for row in rows] == [False, False, True]
    assert rows[2].measured is not None
    assert "host has no room" in str(rows[2].measured.failure)
    assert [row.may_differ for row in rows] == [False, False, True]
    assert len({id(workspace) for workspace in stub.workspaces}) == 1


def test_an_output_that_is_not_written_is_seen() -> None:
    class Forgetful(NumpyElementwise):
        name = "forgetful"

        def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
                   workspace: Buffer | None, stream: Any = None) -> None:
            aside = state.device.empty(outputs[1].nbytes, "a test")
            super().launch(state, inputs, [outputs[0], aside], workspace, stream)

    spec = default_spec((2, 3))
    expression = Expression(1, (ExpressionStep("relu", (0,)), ExpressionStep("neg", (0,))), (1, 2))
    problem = ElementwiseProblem((spec,), expression, ("float32", "float32"))
    of = Layer("two", ["x"], ["y", "z"], problem)
    assert outcome(NumpyElementwise(), of) is None
    assert str(outcome(Forgetful(), of)).startswith("wrong numbers")


def test_a_conversion_to_float16_that_writes_zeros_is_seen() -> None:
    good = OPS["copy"].algorithms[0]

    class Zeros(type(good)):  # type: ignore[misc]
        name = "zeros"

        def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
                   workspace: Buffer | None, stream: Any = None) -> None:
            outputs[0].bytes[:] = 0  # type: ignore[attr-defined]

    source = default_spec((2, 64, 32, 32))
    problem = convert(source, source.with_format(dtype="float16"))
    of = Layer("x as float16", ["x"], ["y"], problem)
    assert outcome(good, of) is None
    assert outcome(Zeros(), of) == "wrong numbers (error 1.0e+00)"


def test_clocks_that_run_backwards_give_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.0, -5.0, 3.0, -1.0, 4.0])
    monkeypatch.setattr(type(HOST), "time", lambda self, work, stream=None: next(times))
    (timing,) = interleave([Task(HOST, lambda stream: None)], repeats=4, sample_us=1.0)
    assert (timing.p25_us, timing.p75_us, timing.repeats) == (3.25, 3.75, 2)
    monkeypatch.setattr(type(HOST), "time", lambda self, work, stream=None: -1.0)
    (failure,) = sampled([prepared(Task(HOST, lambda stream: None), 1.0)], 3, 1e6)
    assert "clock ran backwards" in str(failure)


@pytest.mark.parametrize("odd", [np.nan, np.inf, 3e38])
def test_odd_weights_spoil_no_other_network(tuner: Callable[[str], Tuner], odd: float) -> None:
    strange = layer()
    strange.weights["weight"][0, 0, 0, 0] = odd  # type: ignore[index]
    for tested in (strange, layer(), strange):
        candidates = tuner("quick").measure(tested, [HostIm2col()], HOST)
        assert usable(tested, candidates, HOST)


def test_what_was_right_with_other_weights_is_checked_with_these(
    tuner: Callable[[str], Tuner]) -> None:
    def overflow(y: np.ndarray) -> None:
        y[np.abs(y) > 1e4] = np.inf

    algorithms = [Stub(overflow), HostIm2col()]
    first = tuner("quick").measure(layer(), algorithms, HOST)
    assert len(usable(layer(), first, HOST)) == 2
    later = tuner("quick")
    large = layer(1e6)
    candidates = later.measure(large, algorithms, HOST)
    assert later.measured == 0
    stub, good = later.verified([(large, candidate, HOST) for candidate in candidates])
    assert str(stub.measured.failure).startswith("wrong numbers") and good is candidates[1]
    again = tuner("quick")
    known = again.measure(large, algorithms, HOST)[1]
    assert again.verified([(large, known, HOST)])[0].measured.weights


def test_more_effort_times_all_anew(tuner: Callable[[str], Tuner]) -> None:
    for effort, measured in (("quick", 2), ("quick", 0), ("max", 2), ("normal", 0), ("max", 0)):
        effort_tuner = tuner(effort)
        candidates = effort_tuner.measure(layer(), [Stub(), HostIm2col()], HOST)
        assert effort_tuner.measured == measured, effort
        samples = EFFORTS[effort].samples
        assert all(candidate.measured.samples >= samples for candidate in candidates)


def test_a_vendors_library_has_more_configs_tried(
        tuner: Callable[[str], Tuner], monkeypatch: pytest.MonkeyPatch) -> None:
    many = Stub(variants=lambda variant: [
        replace(variant, config=(("rank", rank),)) for rank in range(20)])
    own_count = EFFORTS["quick"].configs_of(many)
    monkeypatch.setattr(many, "vendor", "a vendor")
    counts = [len(tuner(effort).measure(layer(), [many], HOST)) for effort in EFFORTS]
    assert own_count is not None and own_count < counts[0] < counts[1] < counts[2] == 20


def test_only_a_new_candidate_is_timed(tuner: Callable[[str], Tuner]) -> None:
    tuner("quick").measure(layer(), [HostIm2col()], HOST)
    second = tuner("quick")
    second.measure(layer(), [HostIm2col(), Stub()], HOST)
    assert (second.measured, second.reused) == (1, 1)


@pytest.fixture
def with_stub(known: Callable[..., None], own_cache: Path,
              tmp_path: Path) -> Callable[[Stub], str]:
    """Returns a function that adds a stub to the algorithms and returns a model to compile."""
    def put(stub: Stub) -> str:
        known(stub)
        return str(save(small(), tmp_path))

    return put


def test_a_forced_algorithm_that_fails_is_an_error(with_stub: Callable[[Stub], str]) -> None:
    stub = Stub(Mock(side_effect=RuntimeError("no such thing")))
    plan = gossamer.compile(with_stub(stub), "host", effort="quick", only="stub")
    with pytest.raises(GossamerError, match="no candidate works on host: stub: does not run: no s"):
        plan(images(1))


def test_an_algorithm_of_lower_precision_alone_is_named(with_stub: Callable[[Stub], str],
                                                        effort: str | None) -> None:
    stub = Stub(variants=lambda variant: [replace(variant, precision="tf32")])
    for only in (None, "stub"):
        plan = gossamer.compile(with_stub(stub), "host", effort=effort, only=only)
        for step in plan.program(1).steps:
            if step.layer.op == "conv2d":
                assert "no variant in an allowed precision" in step.rejected["stub"]
