"""Checks that kernels round to TF32, where tensor cores would truncate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.ops.harness import op_of, run_variant

CONVOLUTIONS = {"1x1": Conv2dProblem(2, 40, 5, 7, 40, (1, 1)),
                "3x3": Conv2dProblem(2, 24, 7, 7, 40, (3, 3), pads=(1, 1, 1, 1))}


def check_rounding(algorithm: Algorithm, problem: Problem, device: Device,
                   variants: Sequence[Variant]) -> None:
    """Runs variants on inputs and weights from 1 to 2, some weights zero, and fails where results
    are too small on average. Truncated to TF32, such numbers are too small by 3.4e-4 on average;
    rounded, they differ by 1.9e-4 at random."""
    assert variants
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(1, 2, spec.shape).astype(np.float32) for spec in problem.inputs]
    weights = {name: (rng.uniform(1, 2, shape) * (rng.random(shape) < 0.7)).astype(np.float32)
               for name, shape in problem.weight_shapes.items()}
    (expected,) = op_of(problem).reference(problem, inputs, weights)
    for variant in variants:
        assert variant.precision == "tf32"
        (y,) = run_variant(algorithm, problem, variant, device, Weights(weights, device), inputs)
        mean_error = np.mean(y / expected - 1)
        assert abs(mean_error) < 8e-5, f"{algorithm.name} {variant.config_text}: {mean_error:.1e}"
