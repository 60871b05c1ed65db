"""Kernels for tensor cores round to TF32; emulated tensor cores truncate, as those of GPUs do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Epilogue, Problem, Variant
from gossamer.ops.conv2d.dense.mma.algorithms import ImplicitGemmMma, PointwiseMma
from gossamer.ops.conv2d.sparse.mma_batch.direct_sparse_mma import DirectSparseMma
from gossamer.ops.conv2d.sparse.mma_pixels.direct_sparse_pixels import DirectSparsePixels
from gossamer.ops.fused.inverted_residual.inverted_residual_mma import InvertedResidualMma
from gossamer.ops.fused.pointwise_mean.pointwise_mean import PointwiseMean
from gossamer.ops.matmul.mma import MmaMatmul
from tests.emulation.test_faults import Emulate
from tests.ops.fused.blocks import block
from tests.ops.fused.test_pointwise_mean import head
from tests.ops.matmul.test_mma import product
from tests.ops.tf32_rounding import CONVOLUTIONS, check_rounding

BLOCK = block(2, 16, 48, 24, (6, 6), activation=Epilogue(), last=Epilogue())


def of_tf32(algorithm: Algorithm, problem: Problem, device: Device) -> list[Variant]:
    return [variant for variant in algorithm.variants(problem, device)
            if variant.precision == "tf32"]


@pytest.mark.parametrize("algorithm, problem", [
    (PointwiseMma(), CONVOLUTIONS["1x1"]),
    (ImplicitGemmMma(), CONVOLUTIONS["3x3"]),
    (DirectSparseMma(), replace(CONVOLUTIONS["3x3"], batch=8)),
    (DirectSparsePixels(), CONVOLUTIONS["3x3"]),
    (PointwiseMean(), head(2, 40, 72, (7, 7), epilogue=Epilogue())),
    (InvertedResidualMma(), BLOCK),
    (MmaMatmul(), product((2, 37, 24), (2, 24, 41))),
], ids=lambda part: getattr(part, "name", ""))
def test_inputs_are_rounded(emulate: Emulate, algorithm: Algorithm, problem: Problem) -> None:
    device = emulate("plain")
    variants = of_tf32(algorithm, problem, device)
    check_rounding(algorithm, problem, device, variants[::max(1, len(variants) // 2)])


@pytest.mark.parametrize("algorithm, problem", [
    (PointwiseMma(), CONVOLUTIONS["1x1"]), (ImplicitGemmMma(), CONVOLUTIONS["3x3"]),
    (InvertedResidualMma(), BLOCK)], ids=lambda part: getattr(part, "name", ""))
def test_inputs_of_warpgroups_are_rounded(emulate: Emulate, algorithm: Algorithm,
                                          problem: Problem) -> None:
    device = emulate("plain")
    device.limits = replace(device.limits, wgmma=True, cluster=1)
    variants = [variant for variant in of_tf32(algorithm, problem, device)
                if dict(variant.config).get("wgmma")]
    check_rounding(algorithm, problem, device, variants[::max(1, len(variants) // 3)])
