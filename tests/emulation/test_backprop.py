"""Kernels of back-propagation in the emulation, which runs the warps in any order as a GPU does."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.backprop.blocked.blocked import Blocked
from gossamer.ops.backprop.per_step.per_step import PerStep
from gossamer.ops.backprop.persistent.persistent import Persistent
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.backprop.reference import reference
from gossamer.ops.weights import Weights
from tests.emulation.device import EmulatedDevice
from tests.emulation.test_faults import Emulate
from tests.ops.harness import run_variant
from tests.tolerances import normalised_error, tolerance

_DECAYS = (0.3, 0.0, 0.5)
_VANISHES = (0.5, 0.0, 2.0)

PIPELINE = {
    "two parts of an output's weights": (
        BackpropProblem((72, 33, 4), 9, 13, "tanh", networks=2), _DECAYS,
        {"form": "pipeline", "block": 4, "threads": 256}),
    "softmax, no decay": (
        BackpropProblem((37, 7, 5), 9, 20, "relu", "cross_entropy"), (0.3, 0.0, 0.0),
        {"form": "pipeline", "block": 8, "threads": 128}),
    "one part of an output's weights": (
        BackpropProblem((24, 6, 20), 9, 9), _DECAYS,
        {"form": "pipeline", "block": 4, "threads": 128}),
    "idle warps, two units an item": (
        BackpropProblem((40, 12, 3), 9, 17), _DECAYS,
        {"form": "pipeline", "threads": 384, "apart": 1}),
    "blocks of 16": (
        BackpropProblem((130, 20, 10), 9, 35), _DECAYS, {"form": "pipeline", "block": 16}),
}
PERSISTENT = {
    "zeros skipped, small upper layers": (
        BackpropProblem((70, 9, 7, 4), 9, 7), _DECAYS, {"weights": "sparse", "threads": 128}),
    "zeros skipped, weights that vanish": (
        BackpropProblem((40, 9, 4), 9, 4, networks=2), _VANISHES,
        {"weights": "sparse", "threads": 128}),
    "batches, momentum": (
        BackpropProblem((40, 35, 33, 5), 9, 7, "tanh", "cross_entropy", 3, velocity=True),
        (0.1, 0.9, 0.1), {"weights": "local", "threads": 128}),
    "weights in registers, one layer": (
        BackpropProblem((33, 20), 9, 6, "sigmoid", "squared_error", 2), _VANISHES,
        {"weights": "registers"}),
}
LAUNCHES = {
    "blocks by launches": (
        BackpropProblem((140, 9, 5), 40, 34), _DECAYS,
        {"form": "launches", "threads": 128}),
    "deep, softmax": (
        BackpropProblem((20, 35, 33, 5), 9, 12, "tanh", "cross_entropy", networks=2), _DECAYS,
        {"form": "launches", "threads": 128}),
}
LAUNCH_PER_STEP = {
    "a launch per step": (
        BackpropProblem((70, 3, 2), 3, 2, "tanh", "cross_entropy", 2, velocity=True), _DECAYS,
        {"threads": 64}),
    "Adam, weighted samples": (
        BackpropProblem((70, 3, 2), 3, 5, batch=2, adam=True, output="linear", weighted=True),
        _DECAYS, {"threads": 64}),
}
CASES = {**{name: (Blocked(), *case) for name, case in {**PIPELINE, **LAUNCHES}.items()},
         **{name: (Persistent(), *case) for name, case in PERSISTENT.items()},
         **{name: (PerStep(), *case) for name, case in LAUNCH_PER_STEP.items()}}
"""Cases by what may go wrong in them: an algorithm, a problem, its settings and a config."""


def inputs_of(problem: BackpropProblem, settings: tuple[float, ...]) -> list[np.ndarray]:
    """Returns inputs in which rows of floats, of zeros and ones, and of zeros alternate."""
    inputs = problem.example_inputs(np.random.default_rng(0))
    inputs[0][::3] = np.random.default_rng(1).standard_normal(inputs[0][::3].shape)
    inputs[0][1::3] = np.ceil(inputs[0][1::3])
    inputs[0][2::6] = 0
    inputs[3][:] = settings
    return inputs


def check(device: EmulatedDevice, algorithm: Algorithm, problem: BackpropProblem,
          settings: tuple[float, ...], config: dict[str, object]) -> None:
    """Trains with the first variant that has these config entries; compares with the reference."""
    def matches(variant: Variant) -> bool:
        return config.items() <= dict(variant.config).items()

    inputs = inputs_of(problem, settings)
    variant = next(filter(matches, algorithm.variants(problem, device)))
    actual = run_variant(algorithm, problem, variant, device, Weights({}, device, "the test"),
                         inputs)
    for y, r in zip(actual, reference(problem, inputs, {}), strict=True):
        assert normalised_error(y, r) <= tolerance("backprop")


@pytest.mark.parametrize("mode", ["races", "bounds"])
@pytest.mark.parametrize("case", CASES)
def test_no_fault(emulate: Emulate, case: str, mode: str) -> None:
    check(emulate(mode), *CASES[case])


@pytest.mark.parametrize("schedule", [1, 2])
@pytest.mark.parametrize("case", PIPELINE)
def test_warps_may_run_in_any_order(emulate: Emulate, case: str, schedule: int) -> None:
    check(emulate("plain", schedule), *CASES[case])
