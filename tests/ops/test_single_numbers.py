"""Algorithms compute an output of a single number: only an output of none needs no launch."""

from __future__ import annotations

import pytest

from gossamer.expression import apply
from gossamer.ops.algorithm import Problem
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.copy.problem import convert
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.resize.problem import ResizeProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.ops.top_k.problem import TopKProblem
from gossamer.ops.weights import Weights
from gossamer.tensor import default_spec
from tests.ops.harness import op_of, random_weights
from tests.ops.recording import RecordingDevice

PIXEL = default_spec((1, 1, 1, 1))
SINGLE = [
    ElementwiseProblem((PIXEL,), apply("relu")), ElementwiseProblem((PIXEL,), apply("sign")),
    PoolProblem(PIXEL, "max", (1, 1)), ReduceProblem(default_spec((1, 1, 2, 2)), "sum", (2, 3)),
    SoftmaxProblem(PIXEL, 1), LayerNormProblem(PIXEL, (1,)), TopKProblem(PIXEL, 1, 1),
    ResizeProblem(PIXEL, (1, 1), (1.0, 1.0)),
    PadProblem(default_spec((1, 1, 1, 2)), (0,) * 7 + (-1,)),
    ConcatProblem((PIXEL, default_spec((1, 0, 1, 1))), 1),
    GatherProblem(default_spec((3, 1)), default_spec((1,), "int64"), 0),
    MatmulProblem(default_spec((1, 8)), default_spec((8, 1))),
    ConvTranspose2dProblem(PIXEL, 1, (1, 1), (1, 1)),
    convert(PIXEL, PIXEL.with_format(dtype="float16")),
    Conv2dProblem(1, 8, 1, 1, 1, (1, 1)),
    GemmProblem(1, 1, 8),
]


@pytest.mark.parametrize("problem", SINGLE, ids=lambda problem: problem.op)
def test_it_is_computed(problem: Problem) -> None:
    assert problem.outputs[0].size == 1
    device = RecordingDevice()
    weights = Weights(random_weights(problem), device)
    prepared = 0
    for algorithm in op_of(problem).algorithms:
        if algorithm.vendor or algorithm.supports(problem, device) is not None:
            continue
        for variant in algorithm.variants(problem, device):
            assert algorithm.prepare(weights, problem, variant, device).launches, variant
            prepared += 1
    assert prepared
