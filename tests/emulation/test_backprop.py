"""Kernels of back-propagation in the emulation, which runs the warps in any order as a GPU does.

Tensor cores are simulated in memory.
"""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.backprop.batched import Batched
from gossamer.ops.backprop.blocked.blocked import Blocked
from gossamer.ops.backprop.per_step import PerStep
from gossamer.ops.backprop.persistent import Persistent
from gossamer.ops.backprop.problem import BackpropProblem, reference
from gossamer.ops.weights import Weights
from gossamer.train import MLP
from tests.emulation.device import Emulate, EmulatedDevice
from tests.ops.harness import run_variant
from tests.tolerances import normalised_error, tolerance

_DECAY, _NO_DECAY = (0.3, 0.0, 0.5), (0.3, 0.0, 0.0)
_VANISHES = (0.5, 0.0, 2.0)

PIPELINE = {
    "two parts of an output's weights": (
        BackpropProblem((72, 33, 4), 9, 13, "tanh", networks=2), _DECAY,
        {"form": "pipeline", "block": 4, "threads": 256}),
    "softmax, no decay": (
        BackpropProblem((37, 7, 5), 9, 20, "relu", "cross_entropy"), _NO_DECAY,
        {"form": "pipeline", "block": 8, "threads": 128}),
    "one part of an output's weights": (
        BackpropProblem((24, 6, 20), 9, 9), _DECAY,
        {"form": "pipeline", "block": 4, "threads": 128}),
    "blocks of 16": (
        BackpropProblem((130, 20, 10), 9, 35), _DECAY, {"form": "pipeline", "block": 16}),
}
PERSISTENT = {
    "zeros skipped, small upper layers": (
        BackpropProblem((70, 9, 7, 4), 9, 7), _DECAY, {"weights": "sparse", "threads": 128}),
    "zeros skipped, weights that vanish": (
        BackpropProblem((40, 9, 4), 9, 4, networks=2), _VANISHES,
        {"weights": "sparse", "threads": 128}),
    "momentum": (
        BackpropProblem((40, 35, 33, 5), 9, 7, "tanh", "cross_entropy", velocity=True),
        (0.1, 0.9, 0.1), {"weights": "local", "threads": 128}),
    "weights in registers, one layer": (
        BackpropProblem((33, 20), 9, 6, "sigmoid", "squared_error"), _VANISHES,
        {"weights": "registers"}),
}
LAUNCHES = {
    "blocks by launches": (
        BackpropProblem((140, 9, 5), 40, 34), _DECAY,
        {"form": "launches", "threads": 128}),
    "deep, softmax": (
        BackpropProblem((20, 35, 33, 5), 9, 12, "tanh", "cross_entropy", networks=2), _DECAY,
        {"form": "launches", "threads": 128}),
}
LAUNCH_PER_STEP = {
    "a launch per step": (
        BackpropProblem((70, 3, 2), 3, 2, "tanh", "cross_entropy", 2, velocity=True), _DECAY,
        {"threads": 64}),
    "Adam, weighted samples": (
        BackpropProblem((70, 3, 2), 3, 5, batch=2, adam=True, output="linear", weighted=True),
        _DECAY, {"threads": 64}),
}
MMA: dict[str, tuple[BackpropProblem, tuple[float, ...], dict[str, object]]] = {
    "two parts of an output's weights, two networks": (
        BackpropProblem((72, 33, 4), 9, 13, "tanh", networks=2), _DECAY, {"threads": 224}),
    "softmax, inputs that are no multiple of four": (
        BackpropProblem((37, 7, 5), 9, 20, "relu", "cross_entropy"), _NO_DECAY, {"threads": 160}),
    "64 hidden units": (BackpropProblem((100, 64, 3), 9, 17), _NO_DECAY, {"threads": 224}),
    "fewer samples than a block": (BackpropProblem((3, 1, 1), 9, 3), _DECAY, {"threads": 160}),
    "the first of all": (BackpropProblem((200, 32, 10), 9, 19), _NO_DECAY, {}),
}
BATCHED = {
    "a group of one": (
        BackpropProblem((21, 9, 7, 4), 9, 22, "tanh", "cross_entropy", 12, velocity=True,
                        networks=2), _DECAY, {"groups": 1, "threads": 64}),
    "outputs' errors by samples, Adam": (
        BackpropProblem((40, 70, 21, 5), 9, 90, "relu", "cross_entropy", 40, adam=True),
        (0.01, 0.0, 0.1), {"groups": 4, "threads": 128}),
    "upper layers by samples, Adam": (
        BackpropProblem((70, 20, 6), 9, 140, "relu", "cross_entropy", 60, adam=True),
        (0.01, 0.0, 0.1), {"groups": 4, "threads": 64}),
    "two upper layers by samples, momentum, weighted samples": (
        BackpropProblem((120, 24, 8, 3), 9, 120, "tanh", batch=50, velocity=True, weighted=True,
                        networks=2), (0.1, 0.9, 0.1), {"groups": 4, "threads": 128}),
    "equal upper layers, weighted samples": (
        BackpropProblem((33, 20, 9, 3), 9, 11, batch=3, adam=True, weighted=True, networks=2),
        (0.01, 0.0, 0.1), {"groups": 4, "threads": 64}),
    "online": (BackpropProblem((33, 20, 3), 9, 40), _DECAY, {"groups": 8, "threads": 64}),
    "many outputs": (
        BackpropProblem((24, 9, 33), 9, 30, "relu", "cross_entropy", 12), _DECAY,
        {"groups": 2, "threads": 64}),
    "one layer": (
        BackpropProblem((24, 9), 9, 30, "sigmoid", "squared_error", 12), _NO_DECAY,
        {"groups": 2, "threads": 64}),
}
TF32: dict[str, tuple[BackpropProblem, tuple[float, ...], dict[str, object]]] = {
    "TF32, tiles of warps that end beyond samples, inputs and units": (
        BackpropProblem((45, 70, 21, 5), 9, 90, "relu", "cross_entropy", 40), _DECAY,
        {"groups": 4, "threads": 128}),
    "TF32, a group of one, parts of sums": (
        BackpropProblem((21, 9, 7, 4), 9, 22, "tanh", "cross_entropy", 12, velocity=True,
                        networks=2), _DECAY, {"groups": 1, "threads": 256}),
    "TF32, upper layers by samples": (
        BackpropProblem((70, 20, 6), 9, 140, "relu", "cross_entropy", 60), _DECAY,
        {"groups": 4, "threads": 64}),
    "TF32, more tiles than warps": (
        BackpropProblem((70, 66, 2), 9, 16, "sigmoid", "squared_error", 8), _DECAY,
        {"groups": 1, "threads": 64}),
}
_ADAM = (0.01, 0.0, 0.1)
_DEEP = BackpropProblem((45, 30, 12, 3), 9, 90, "relu", "cross_entropy", 40, adam=True)
_WEIGHTED = BackpropProblem((70, 20, 3), 9, 90, "relu", batch=40, adam=True, weighted=True,
                            output="linear", networks=2)
_UPPER = BackpropProblem((70, 20, 6), 9, 140, "relu", "cross_entropy", 60, adam=True)
_PLAIN = BackpropProblem((45, 30, 12, 3), 9, 50, "tanh", "cross_entropy", 20)
_MOMENTUM = BackpropProblem((40, 20, 12, 3), 9, 90, "tanh", batch=40, velocity=True)
MICRO_BATCHES: dict[str, tuple[BackpropProblem, tuple[float, ...], dict[str, object], int,
                               tuple[int, ...]]] = {
    "all state in the workspace": (
        _DEEP, _ADAM, {"groups": 4, "threads": 64}, 9500, (16, 0, 0, 2)),
    "gradients in shared memory, split sums": (
        _DEEP, _ADAM, {"groups": 4, "threads": 128}, 14_000, (24, 0, 1, 1)),
    "weighted samples, two networks": (
        _WEIGHTED, _ADAM, {"groups": 2, "threads": 64}, 12_750, (16, 0, 0, 1)),
    "a group of one, plain gradient descent": (
        _PLAIN, _DECAY, {"groups": 1, "threads": 64}, 23_750, (16, 0, 0, 2)),
    "momentum, all state in shared memory": (
        _MOMENTUM, (0.1, 0.9, 0.1), {"groups": 4, "threads": 128}, 12_000, (8, 1, 1, 1)),
    "upper layers by samples": (
        _UPPER, _ADAM, {"groups": 4, "threads": 64}, 14_000, (24, 0, 0, 1)),
    "TF32, upper layers by samples": (
        _UPPER, _ADAM, {"groups": 2, "threads": 64, "precision": "tf32"}, 22_000, (24, 0, 0, 1)),
    "TF32": (
        _DEEP, _ADAM, {"groups": 2, "threads": 64, "precision": "tf32"}, 16_000, (8, 0, 0, 2)),
    "TF32, split sums, weighted samples": (
        _WEIGHTED, _ADAM, {"groups": 4, "threads": 128, "precision": "tf32"}, 20_750,
        (24, 1, 1, 1)),
}
"""Cases in which a batch does not fit: a problem, its settings, a config, bytes of shared memory,
and the expected MICRO_BATCH, MOMENTS_SHARED, GRADIENTS_SHARED and BUFFERS. In all of them, some
micro-batches have fewer samples than the others."""
CASES = {**{name: (Batched(), *case) for name, case in BATCHED.items()},
         **{name: (Batched(), problem, settings, {"precision": "tf32", **config})
            for name, (problem, settings, config) in TF32.items()},
         **{name: (Blocked(), *case) for name, case in {**PIPELINE, **LAUNCHES}.items()},
         **{name: (Blocked(), problem, settings, {"form": "pipeline_mma", **config})
            for name, (problem, settings, config) in MMA.items()},
         **{name: (Persistent(), *case) for name, case in PERSISTENT.items()},
         **{name: (PerStep(), *case) for name, case in LAUNCH_PER_STEP.items()}}
"""Cases by what may go wrong in them: an algorithm, a problem, its settings and a config."""


def inputs_of(problem: BackpropProblem, settings: tuple[float, ...]) -> list[np.ndarray]:
    """Return inputs in which rows of floats, of zeros and ones, and of zeros alternate."""
    inputs = problem.example_inputs(np.random.default_rng(0))
    inputs[0][::3] = np.random.default_rng(1).standard_normal(inputs[0][::3].shape)
    inputs[0][1::3] = np.ceil(inputs[0][1::3])
    inputs[0][2::6] = 0
    inputs[3][:] = settings
    return inputs


def trained(device: EmulatedDevice, algorithm: Algorithm, problem: BackpropProblem,
            inputs: list[np.ndarray], config: dict[str, object]) -> list[np.ndarray]:
    """Return the outputs of the first variant that has these config entries and this precision."""
    return run_variant(algorithm, problem, _variant(device, algorithm, problem, config), device,
                       Weights({}, device, "the test"), inputs)


def _variant(device: EmulatedDevice, algorithm: Algorithm, problem: BackpropProblem,
             config: dict[str, object]) -> Variant:
    return next(variant for variant in algorithm.variants(problem, device) if (
        config.items() <= {**dict(variant.config), "precision": variant.precision}.items()))


def check(device: EmulatedDevice, algorithm: Algorithm, problem: BackpropProblem,
          settings: tuple[float, ...], config: dict[str, object]) -> None:
    """Compare the training with the reference."""
    inputs = inputs_of(problem, settings)
    actual = trained(device, algorithm, problem, inputs, config)
    for y, r in zip(actual, reference(problem, inputs, {}), strict=True):
        assert normalised_error(y, r) <= tolerance("backprop",
                                                   str(config.get("precision", "fp32")))


@pytest.mark.parametrize("mode", ["races", "bounds"])
@pytest.mark.parametrize("case", CASES)
def test_no_fault(emulate: Emulate, case: str, mode: str) -> None:
    check(emulate(mode), *CASES[case])


@pytest.mark.parametrize("schedule", [1, 2])
@pytest.mark.parametrize("case", [*PIPELINE, *BATCHED, *TF32])
def test_warps_may_run_in_any_order(emulate: Emulate, case: str, schedule: int) -> None:
    check(emulate("plain", schedule), *CASES[case])


@pytest.mark.parametrize("mode", ["races", "bounds", "any order"])
@pytest.mark.parametrize("case", MICRO_BATCHES)
def test_micro_batches_add_up_to_the_gradient_of_the_batch(emulate: Emulate, case: str,
                                                           mode: str) -> None:
    problem, settings, config, shared_bytes, expected = MICRO_BATCHES[case]
    arguments = ("plain", 2) if mode == "any order" else (mode,)
    device = emulate(*arguments, shared_bytes_opt_in=shared_bytes)
    variant = _variant(device, Batched(), problem, config)
    state = Batched().prepare(Weights({}, device, "the test"), problem, variant, device)
    macros = dict(state.launches[0].kernel.source.defines)
    assert tuple(int(macros[name]) for name in (
        "MICRO_BATCH", "MOMENTS_SHARED", "GRADIENTS_SHARED", "BUFFERS")) == expected
    check(device, Batched(), problem, settings, config)


def test_a_network_trains_in_tf32_where_it_is_allowed(emulate: Emulate) -> None:
    x = np.random.default_rng(0).standard_normal((60, 12)).astype(np.float32)
    weights = [MLP(hidden=9, batch=20, epochs=2, patience=None, optimiser="sgd", device=emulate(),
                   algorithm="batched", precision=precision).fit(x, x[:, 0] > 0).coefs_[0]
               for precision in ("fp32", "tf32")]
    assert 1e-6 < normalised_error(weights[1], weights[0]) <= tolerance("backprop", "tf32")


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
    plain = trained(device, Blocked(), problem, inputs, {"form": "pipeline"})
    for y, p, r in zip(trained(device, Blocked(), problem, inputs, {"form": "pipeline_mma"}),
                       plain, expected, strict=True):
        error = normalised_error(y, r)
        assert error <= tolerance("backprop")
        assert error <= 2 * normalised_error(p, r)
