"""Sparse weights, epilogues and a device's limits for tests of generated sparse convolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gossamer.device.limits import Limits
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import WeightsInfo
from tests.ops.harness import random_weights

H200 = Limits(compute_units=132, memory_bytes=2**37, shared_bytes=48 * 1024,
              shared_bytes_opt_in=227 * 1024, work_group_size=1024, subgroup_size=32,
              sure_work_group_size=1024)

BIAS_RESIDUAL_CLIP = Epilogue(
    apply("add").then(apply("add")).then(apply("clip", 0.0, 6.0)), ("channel", "tensor"))
SCALE_PRELU = Epilogue(apply("mul").then(apply("prelu")).then(apply("leaky_relu", 0.1)),
                       ("channel", "channel"))
BIAS_SIGMOID = Epilogue(apply("add").then(apply("sigmoid")), ("channel",))
EPILOGUES = (Epilogue(), BIAS_RESIDUAL_CLIP, SCALE_PRELU,
             Epilogue(apply("sub").then(apply("relu")), ("tensor",)))


def _only_first_row(weight: np.ndarray, rng: np.random.Generator) -> None:
    weight[1:] = 0


def _only_one(weight: np.ndarray, rng: np.random.Generator) -> None:
    place = int(rng.integers(weight.size))
    weight.reshape(-1)[:place] = weight.reshape(-1)[place + 1:] = 0


def _one_channel_read(weight: np.ndarray, rng: np.random.Generator) -> None:
    weight[:, 1:] = 0


def _any_density(weight: np.ndarray, rng: np.random.Generator) -> None:
    weight *= rng.random(weight.shape) < 10 ** rng.uniform(-4, 0)


def _two_of_four(weight: np.ndarray, rng: np.random.Generator) -> None:
    weight.reshape(-1)[np.arange(weight.size) % 4 < 2] = 0


def _two_of_four_channels(weight: np.ndarray, rng: np.random.Generator) -> None:
    weight[:, np.arange(weight.shape[1]) % 4 < 2] = 0


def _negative_zeros(weight: np.ndarray, rng: np.random.Generator) -> None:
    weight[rng.random(weight.shape) < 0.8] = -0.0


def _denormal(weight: np.ndarray, rng: np.random.Generator) -> None:
    _any_density(weight, rng)
    weight.reshape(-1)[::3] *= np.float32(1e-41)


def _huge(weight: np.ndarray, rng: np.random.Generator) -> None:
    _any_density(weight, rng)
    weight *= np.float32(1e30)


AWKWARD: dict[str, Callable[[np.ndarray, np.random.Generator], None]] = {
    "one row full": _only_first_row, "one weight": _only_one,
    "one input channel": _one_channel_read, "any density": _any_density,
    "2:4": _two_of_four, "2:4 of input channels": _two_of_four_channels,
    "negative zeros": _negative_zeros}
"""Functions that change weights in place to a pattern that is unlike those of uniform zeros."""
EXTREME = {"denormal": _denormal, "huge": _huge}
"""The same with weights that float16 does not hold."""


def awkward(problem: Conv2dProblem, kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns random constants, with weights of a kind of AWKWARD or EXTREME."""
    arrays = random_weights(problem, seed)
    (AWKWARD | EXTREME)[kind](arrays["weight"], np.random.default_rng(seed))
    return arrays


def sparse(problem: Conv2dProblem, density: float, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns random constants, with weights of a density."""
    arrays = random_weights(problem, seed)
    mask = np.random.default_rng(seed).random(arrays["weight"].shape) < density
    arrays["weight"] = np.where(mask, arrays["weight"], np.float32(0))
    return arrays


def with_density(problem: Conv2dProblem, density: float) -> Conv2dProblem:
    return replace(problem, weights_info=WeightsInfo(density, "some"))
