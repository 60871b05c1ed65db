"""Tests that algorithms name the kernels that they compile."""

from __future__ import annotations

import pytest

from gossamer.ops.algorithm import Algorithm
from gossamer.ops.conv2d import OP
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.ops.conv2d.sparse.sparse_weights import sparse, with_density
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU
from tests.ops.recording import RecordingDevice

PROBLEMS = [with_density(problem, 0.3) for problem in (
    Conv2dProblem(3, 20, 5, 7, 36, (1, 1), epilogue=BIAS_RESIDUAL_RELU),
    Conv2dProblem(2, 8, 9, 7, 20, (3, 3), (2, 2), (1, 0, 1, 2), epilogue=BIAS_CLIP),
    Conv2dProblem(1, 3, 9, 9, 5, (3, 3)))]
NAMING = [algorithm for algorithm in OP.algorithms if "kernel_sources" in vars(type(algorithm))
          and algorithm.supports(PROBLEMS[0], RecordingDevice()) is None]


def test_the_algorithms_with_many_variants_name_them() -> None:
    assert {algorithm.name for algorithm in NAMING} >= {
        "im2col_gemm", "direct_sparse", "direct_sparse_table"}


@pytest.mark.parametrize("algorithm", NAMING, ids=[algorithm.name for algorithm in NAMING])
def test_named_kernels_are_compiled(algorithm: Algorithm) -> None:
    named = 0
    for problem in PROBLEMS:
        device = RecordingDevice()
        if algorithm.supports(problem, device) is not None:
            continue
        weights = Weights(sparse(problem, 0.3), device, "the test")
        for variant in algorithm.variants(problem, device):
            device.sources.clear()
            algorithm.prepare(weights, problem, variant, device)
            sources = set(algorithm.kernel_sources(problem, variant, device))
            assert device.sources >= sources
            named += len(sources)
    assert named
