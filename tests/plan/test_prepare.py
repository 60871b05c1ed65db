"""The time that preparing a variant takes, and the memory on the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device, Kernel
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.launch import Launch
from gossamer.ops.weights import Weights
from gossamer.plan import prepare
from gossamer.plan.prepare import BuildCost, BuiltElsewhere, Prepared, build
from tests.ops.recording import RecordingDevice


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    test_clock = Clock()
    monkeypatch.setattr("gossamer.plan.prepare.time", test_clock)
    return test_clock


class Packer(Algorithm):
    """An algorithm that packs the weights in 3 s and compiles its kernel in 2 s."""

    op = "gemm"
    name = "packer"

    def __init__(self, clock: Clock, kernel: Kernel | None = None) -> None:
        self.clock = clock
        self.kernel = kernel

    def supports(self, problem: Any, device: Device) -> str | None:
        return None

    def variants(self, problem: Any, device: Device) -> list[Variant]:
        return [Variant((), (), ())]

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        def pack(arrays: Any) -> np.ndarray:
            self.clock.now += 3
            return arrays["weight"]

        packed = weights.packed("form", pack)
        self.clock.now += 2
        state = State(problem, variant, device)
        if self.kernel is not None:
            table = device.upload(np.zeros(5, np.float32), "a table")
            state.launches = [Launch(self.kernel, (1,), (1,), (packed, table, 7))] * 2
        return state


def _kernel(code_bytes: int | None, from_cache: bool) -> Kernel:
    kernel = type("OneKernel", (Kernel,), {})()
    kernel.name, kernel.source = "one", KernelSource.of(prepare.__file__, "one")  # type: ignore[arg-type]
    kernel.code_bytes, kernel.from_cache = code_bytes, from_cache
    return kernel


def _prepared(algorithm: Packer, weights: Weights, device: Device) -> Prepared:
    (variant,) = algorithm.variants(None, device)
    return build(algorithm, weights, None, variant, device)  # type: ignore[arg-type]


def _built(algorithm: Packer, weights: Weights, device: Device) -> BuildCost:
    return _prepared(algorithm, weights, device)[1]


def test_a_form_that_was_there_counts_as_nothing(clock: Clock) -> None:
    device = RecordingDevice()
    weights = Weights({"weight": np.zeros((3, 4), np.float32)}, device, "layer")
    state, cost = _prepared(Packer(clock), weights, device)
    assert cost == BuildCost(5, False, 48)
    assert _built(Packer(clock), weights, device) == replace(cost, seconds=2)
    assert clock.now == 7 and weights.nbytes == 48
    del state
    assert weights.nbytes == 0
    assert _built(Packer(clock), weights, device) == cost and clock.now == 12


@pytest.mark.parametrize(("code", "nbytes"), [(1000, 1068), (None, 68)])
def test_code_and_tables_count_once(clock: Clock, code: int | None, nbytes: int) -> None:
    device = RecordingDevice()
    weights = Weights({"weight": np.zeros((3, 4), np.float32)}, device, "layer")
    cost = _built(Packer(clock, _kernel(code, True)), weights, device)
    assert cost == BuildCost(5, True, nbytes)


def test_what_another_process_did_is_part_of_the_cost(clock: Clock) -> None:
    device = RecordingDevice()
    weights = Weights({"weight": np.zeros((3, 4), np.float32)}, device, "layer")
    form = np.zeros((3, 4), np.float32)
    built = BuiltElsewhere({"form": form, "other": form}, 400.0)
    (variant,) = Packer(clock).variants(None, device)
    _, cost = build(Packer(clock), weights, None, variant, device, built)  # type: ignore[arg-type]
    assert cost == BuildCost(402, False, 48) and clock.now == 2
    # what the candidate did not ask for is dropped
    made = []
    weights.packed("other", lambda arrays: made.append(1) or arrays["weight"])
    assert made
