"""Preparing variants, several at the same time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.weights import Weights
from gossamer.plan.program import build
from tests.ops.recording import RecordingDevice
from tests.plan.small import assert_close, compiled, expected, images, small
from tests.plan.tune.paced import measured_alone
from tests.plan.tune.test_candidate_checks import layer


class Packer(Algorithm):
    """An algorithm that packs the weights."""

    op = "gemm"
    name = "packer"

    def __init__(self) -> None:
        self.packed = 0

    def supports(self, problem: Any, device: Device) -> str | None:
        return None

    def variants(self, problem: Any, device: Device) -> list[Variant]:
        return [Variant((), (), ())]

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        def pack(arrays: Any) -> np.ndarray:
            self.packed += 1
            return arrays["weight"]

        weights.packed("form", pack)
        return State(problem, variant, device)


def test_a_form_is_packed_once_while_a_state_is_alive() -> None:
    device, packer = RecordingDevice(), Packer()
    weights = Weights({"weight": np.zeros((3, 4), np.float32)}, device, "layer")
    (variant,) = packer.variants(None, device)
    states = [build(packer, weights, None, variant, device) for _ in range(2)]  # type: ignore[arg-type]
    assert packer.packed == 1 and weights.nbytes == 48
    states.clear()
    assert weights.nbytes == 0
    build(packer, weights, None, variant, device)  # type: ignore[arg-type]
    assert packer.packed == 2


HOST = find("host")
SECONDS = 20


class Meeting(HostIm2col):
    """An algorithm whose preparation ends when those of others at the same barrier have begun."""

    def __init__(self, name: str, barrier: threading.Barrier, failure: BaseException | None = None
                 ) -> None:
        self.name = name  # type: ignore[misc]
        self._barrier, self._failure = barrier, failure

    def prepare(self, *arguments: Any) -> State:
        self._barrier.wait(SECONDS)
        if self._failure is not None:
            raise self._failure
        return super().prepare(*arguments)


def run(algorithms: list[Meeting]) -> list[str | None]:
    of = layer()
    pairs = [(algorithm, next(iter(algorithm.variants(of.problem, HOST))))
             for algorithm in algorithms]
    return [attempt.measured.failure if attempt.measured else "was not measured"
            for attempt in measured_alone(of, HOST, pairs, 2)]


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(HOST), "builds_side_by_side", True)
    # this process may use two processors, whatever their number is
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {1, 3}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def test_candidates_are_built_at_once(side_by_side: None) -> None:
    barrier = threading.Barrier(2)
    assert run([Meeting("one", barrier), Meeting("other", barrier)]) == [None, None]


def test_one_that_fails_is_named_and_leaves_the_others(side_by_side: None) -> None:
    barrier = threading.Barrier(2)
    broken = Meeting("broken", barrier, ValueError("no such tile"))
    assert run([broken, Meeting("whole", barrier)]) == ["does not run: no such tile", None]


def test_libraries_of_vendors_are_built_beside_our_own(side_by_side: None) -> None:
    barrier = threading.Barrier(2)
    library = Meeting("library", barrier)
    library.vendor = "a vendor"  # type: ignore[misc]
    assert run([Meeting("own", barrier), library]) == [None, None]
    broken = Meeting("broken", threading.Barrier(1), ValueError("no such engine"))
    broken.vendor = "a vendor"  # type: ignore[misc]
    assert run([Meeting("own", threading.Barrier(1)), broken]) == [
        None, "does not run: no such engine"]


def test_the_layers_of_a_plan_are_built_at_once(
        side_by_side: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = compiled(small(), HOST, tmp_path)
    steps = plan.program(2).steps
    assert [step.algorithm.name for step in steps].count("host_im2col") == 2
    barrier = threading.Barrier(2)
    prepare = HostIm2col.prepare

    def meeting(*arguments: Any) -> State:
        barrier.wait(SECONDS)
        return prepare(*arguments)

    monkeypatch.setattr(HostIm2col, "prepare", meeting)
    x = images(2)
    context = plan.context(2)
    assert len(context.steps.states) == len(steps)
    assert_close(context.run({"x": x})["y"], expected(x))


def test_a_layer_that_cannot_be_built_is_told_of(
        side_by_side: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = compiled(small(), HOST, tmp_path)
    plan.program(2)
    monkeypatch.setattr(HostIm2col, "prepare", Mock(side_effect=ValueError("no such tile")))
    with pytest.raises(ValueError, match="no such tile"):
        plan.context(2)


def test_an_interrupt_is_passed_on(side_by_side: None) -> None:
    barrier = threading.Barrier(2)
    interrupted = Meeting("interrupted", barrier, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run([interrupted, Meeting("other", barrier)])
