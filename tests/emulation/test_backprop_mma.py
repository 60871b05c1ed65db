"""The pipeline of back-propagation on tensor cores, which the emulation computes in memory."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.ops.backprop.blocked.blocked import Blocked
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.backprop.reference import reference
from gossamer.ops.weights import Weights
from tests.emulation.device import EmulatedDevice
from tests.emulation.test_backprop import check, inputs_of
from tests.emulation.test_faults import Emulate
from tests.ops.harness import run_variant
from tests.tolerances import normalised_error, tolerance

_DECAY, _NO_DECAY = (0.3, 0.0, 0.5), (0.3, 0.0, 0.0)
CASES = {
    "two parts of an output's weights, two networks": (
        BackpropProblem((72, 33, 4), 9, 13, "tanh", networks=2), _DECAY, {"threads": 224}),
    "softmax, inputs that are no multiple of four": (
        BackpropProblem((37, 7, 5), 9, 20, "relu", "cross_entropy"), _NO_DECAY, {"threads": 160}),
    "all warps of a scheduler make records": (
        BackpropProblem((130, 20, 10), 9, 35), _DECAY, {"threads": 384, "apart": 1}),
    "64 hidden units": (BackpropProblem((100, 64, 3), 9, 17), _NO_DECAY, {"threads": 224}),
    "fewer samples than a block": (BackpropProblem((3, 1, 1), 9, 3), _DECAY, {"threads": 160}),
    "the first of all": (BackpropProblem((200, 32, 10), 9, 19), _NO_DECAY, {}),
}


def run(device: EmulatedDevice, problem: BackpropProblem, inputs: list[np.ndarray],
        config: dict[str, object]) -> list[np.ndarray]:
    """Returns the outputs of the first variant that has these config entries."""
    variant = next(variant for variant in Blocked().variants(problem, device)
                   if config.items() <= dict(variant.config).items())
    return run_variant(Blocked(), problem, variant, device, Weights({}, device, "the test"),
                       inputs)


@pytest.mark.parametrize("mode", ["races", "bounds"])
@pytest.mark.parametrize("case", CASES)
def test_no_fault(emulate: Emulate, case: str, mode: str) -> None:
    problem, settings, config = CASES[case]
    check(emulate(mode), Blocked(), problem, settings, {"form": "pipeline_mma", **config})


@pytest.mark.parametrize("schedule", [1, 2])
def test_warps_may_run_in_any_order(emulate: Emulate, schedule: int) -> None:
    problem, settings, config = CASES["all warps of a scheduler make records"]
    check(emulate("plain", schedule), Blocked(), problem, settings,
          {"form": "pipeline_mma", **config})


def test_it_comes_first_where_there_are_tensor_cores(emulate: Emulate) -> None:
    variant = next(Blocked().variants(BackpropProblem((1024, 32, 10), 1, 9), emulate()))
    assert variant["form"] == "pipeline_mma"


@pytest.mark.parametrize("values", ["ones", "eight bits", "any"])
def test_what_tf32_does_not_hold_is_not_lost(emulate: Emulate, values: str) -> None:
    """The result is as exact as without tensor cores for inputs with few bits and with many, and
    weights of any size."""
    problem, device = BackpropProblem((60, 16, 4), 40, 400), emulate()
    rng = np.random.default_rng(0)
    inputs = inputs_of(problem, _NO_DECAY)
    nonzero = rng.random(inputs[0].shape) < 0.3
    inputs[0][:] = nonzero * {"ones": 1.0, "eight bits": rng.integers(0, 256, nonzero.shape) / 256,
                              "any": rng.random(nonzero.shape)}[values]
    inputs[4] *= rng.choice([1e-3, 1, 30], inputs[4].shape).astype(np.float32)
    expected = reference(problem, inputs, {})
    plain = run(device, problem, inputs, {"form": "pipeline"})
    for y, p, r in zip(run(device, problem, inputs, {"form": "pipeline_mma"}), plain, expected,
                       strict=True):
        error = normalised_error(y, r)
        assert error <= tolerance("backprop")
        assert error <= 2 * normalised_error(p, r)
