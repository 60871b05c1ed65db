"""Sparse weights, epilogues and a device's limits for tests of generated sparse convolution."""

from __future__ import annotations

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


def sparse(problem: Conv2dProblem, density: float, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns random constants, with weights of a density."""
    arrays = random_weights(problem, seed)
    mask = np.random.default_rng(seed).random(arrays["weight"].shape) < density
    arrays["weight"] = np.where(mask, arrays["weight"], np.float32(0))
    return arrays


def with_density(problem: Conv2dProblem, density: float) -> Conv2dProblem:
    return replace(problem, weights_info=WeightsInfo(density, "some"))
