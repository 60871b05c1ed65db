"""Sparse weights and epilogues for tests of generated sparse convolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import WeightsInfo
from tests.ops.harness import random_weights

BIAS_RESIDUAL_CLIP = Epilogue(
    apply("add").then(apply("add")).then(apply("clip", 0.0, 6.0)), ("channel", "tensor"))
SCALE_PRELU = Epilogue(apply("mul").then(apply("prelu")).then(apply("leaky_relu", 0.1)),
                       ("channel", "channel"))
BIAS_SIGMOID = Epilogue(apply("add").then(apply("sigmoid")), ("channel",))
EPILOGUES = (Epilogue(), BIAS_RESIDUAL_CLIP, SCALE_PRELU,
             Epilogue(apply("sub").then(apply("relu")), ("tensor",)))


def _number(shape: tuple[int, ...]) -> np.ndarray:
    """Returns the number of each weight in the order of memory."""
    return np.arange(np.prod(shape)).reshape(shape)


def _few(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return rng.random(shape) < 10 ** rng.uniform(-4, 0)


def _scaled(factors: Callable[..., np.ndarray], weight: np.ndarray,
            rng: np.random.Generator) -> None:
    weight *= factors(weight.shape, rng)


AWKWARD = {name: partial(_scaled, factors) for name, factors in {
    "one row full": lambda shape, rng: np.indices(shape)[0] == 0,
    "one weight": lambda shape, rng: _number(shape) == rng.integers(np.prod(shape)),
    "one input channel": lambda shape, rng: np.indices(shape)[1] == 0,
    "any density": _few,
    "2:4": lambda shape, rng: _number(shape) % 4 >= 2,
    "2:4 of input channels": lambda shape, rng: np.indices(shape)[1] % 4 >= 2,
    "negative zeros": lambda shape, rng: np.where(rng.random(shape) < 0.8, -0.0, 1.0),
}.items()}
"""Functions that change weights in place to a pattern that is unlike those of uniform zeros."""
EXTREME = {
    "denormal": partial(_scaled, lambda shape, rng: _few(shape, rng) * np.where(
        _number(shape) % 3, 1.0, 1e-41)),
    "huge": partial(_scaled, lambda shape, rng: _few(shape, rng) * 1e30)}
"""The same with weights that float16 does not hold."""


def awkward(problem: Conv2dProblem, kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns random constants, with weights of a kind of AWKWARD or EXTREME."""
    arrays = random_weights(problem, seed)
    (AWKWARD | EXTREME)[kind](arrays["weight"], np.random.default_rng(seed))
    return arrays


def sparse(problem: Conv2dProblem | GemmProblem, density: float,
           seed: int = 0) -> dict[str, np.ndarray]:
    """Returns random constants, with weights of a density."""
    arrays = random_weights(problem, seed)
    mask = np.random.default_rng(seed).random(arrays["weight"].shape) < density
    arrays["weight"] = np.where(mask, arrays["weight"], np.float32(0))
    return arrays


def with_density(problem: Conv2dProblem, density: float) -> Conv2dProblem:
    return replace(problem, weights_info=WeightsInfo(density, "some"))
