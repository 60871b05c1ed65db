"""Kernels for tensor cores round floats to TF32, where tensor cores would truncate: on the GPU
where there is one; tests/emulation/test_ops.py runs the kernels anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Epilogue, Problem, Variant
from gossamer.ops.conv2d.grouped.grouped_mma import GroupedMma
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.tensor_core.implicit_gemm import ImplicitGemmMma, PointwiseMma
from gossamer.ops.fused.inverted_residual.inverted_residual_mma import InvertedResidualMma
from gossamer.ops.fused.pointwise_mean import PointwiseMean
from gossamer.ops.matmul.mma import MmaMatmul
from gossamer.ops.weights import Weights
from tests.ops.fused.blocks import block
from tests.ops.fused.test_pointwise_mean import head
from tests.ops.harness import op_of, run_variant
from tests.ops.matmul.test_matmul import product

WINDOWS = Conv2dProblem(2, 24, 7, 7, 40, (3, 3), pads=(1, 1, 1, 1))
OF_WARPGROUPS: dict[str, tuple[Algorithm, Problem]] = {
    "pointwise_mma": (PointwiseMma(), Conv2dProblem(2, 40, 5, 7, 40, (1, 1))),
    "implicit_gemm_mma": (ImplicitGemmMma(), WINDOWS),
    "inverted_residual_mma": (InvertedResidualMma(), block(
        2, 16, 48, 24, (6, 6), activation=Epilogue(), last=Epilogue()))}
"""Algorithms that also have variants with wgmma, each with a problem."""
CASES = OF_WARPGROUPS | {
    "grouped_mma": (GroupedMma(), Conv2dProblem(2, 24, 7, 7, 40, (3, 3), pads=(1, 1, 1, 1),
                                                groups=4)),
    "pointwise_mean": (PointwiseMean(), head(2, 40, 72, (7, 7), epilogue=Epilogue())),
    "matmul_mma": (MmaMatmul(), product((2, 37, 24), (2, 24, 41)))}


def variants_of(name: str, device: Device) -> list[Variant]:
    """Return the variants of a case in TF32."""
    algorithm, problem = CASES[name]
    return [variant for variant in algorithm.variants(problem, device)
            if variant.precision == "tf32"]


def check_rounding(name: str, device: Device, variants: Sequence[Variant]) -> None:
    """Fail where results in TF32 are too small on average.

    Inputs and weights are from 1 to 2, some weights zero. Truncated to TF32, such numbers are too
    small by 3.4e-4 on average; rounded, they differ by 1.9e-4 at random.
    """
    assert variants
    algorithm, problem = CASES[name]
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(1, 2, spec.shape).astype(np.float32) for spec in problem.inputs]
    weights = {name: (rng.uniform(1, 2, shape) * (rng.random(shape) < 0.7)).astype(np.float32)
               for name, shape in problem.weight_shapes.items()}
    (expected,) = op_of(problem).reference(problem, inputs, weights)
    for variant in variants:
        (y,) = run_variant(algorithm, problem, variant, device, Weights(weights, device), inputs)
        mean_error = np.mean(y / expected - 1)
        assert abs(mean_error) < 8e-5, f"{algorithm.name} {variant.config_text}: {mean_error:.1e}"


@pytest.mark.parametrize("name", CASES)
def test_inputs_are_rounded_on_cuda(cuda: Device, name: str) -> None:
    check_rounding(name, cuda, variants_of(name, cuda)[::3])
