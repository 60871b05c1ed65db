"""What holds for every op: first images, single numbers, and all forms of its kernels."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.algorithm import Problem
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.copy.problem import convert, expand, slice_, transpose
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
from gossamer.tensor import Format, TensorSpec, default_spec
from tests.ops.harness import candidates, check, op_of, random_weights
from tests.ops.problems import PROBLEMS
from tests.ops.recording import RecordingDevice

X = default_spec((5, 3, 4, 2))
ADD = Expression(2, (ExpressionStep("add", (0, 1)),))


def _added(*shapes: tuple[int, ...], constants: tuple[int, ...] = ()) -> Problem:
    return ElementwiseProblem(tuple(map(default_spec, shapes)), ADD, constants=constants)


@pytest.mark.parametrize("problem", [
    convert(X, X.with_format(layout="CHWN")), convert(X.with_format(layout="NHWC"), X),
    convert(X, TensorSpec(X.shape, Format("NHWC", "float16"))), transpose(X, (0, 2, 3, 1)),
    slice_(X, [1], [3], [2]), ConcatProblem((X, default_spec((5, 7, 4, 2))), 1),
    _added(X.shape, X.shape), _added(X.shape, (3, 1, 1)), _added((1, 3, 1, 1), X.shape),
    _added(X.shape, (1, 3, 1, 1), constants=(1,)), _added(X.shape, (4, 2), constants=(1,)),
    PadProblem(X, (0, 0, 1, 2, 0, 1, 0, -1)), ReduceProblem(X, "mean", (2, 3)),
    ReduceProblem(X, "max", (1,), keepdims=False), SoftmaxProblem(X, 1),
    LayerNormProblem(X, (1,)), ResizeProblem(X, (7, 3), (1.75, 1.5)),
    ConvTranspose2dProblem(X, 6, (3, 3), bias=True)])
def test_first_outputs_are_those_of_the_first_images(problem: Problem) -> None:
    inputs, weights = problem.example_inputs(np.random.default_rng(0)), random_weights(problem)
    few = problem.first_images(2)
    (outputs,) = op_of(problem).reference(problem, inputs, weights)
    (first_outputs,) = op_of(problem).reference(few, [
        array[:spec.shape[0]] for array, spec in zip(inputs, few.inputs, strict=True)], weights)
    assert few.outputs[0].shape == (2, *problem.outputs[0].shape[1:])
    np.testing.assert_array_equal(first_outputs, outputs[:2])
    assert problem.first_images(9) == problem


@pytest.mark.parametrize("problem", [
    transpose(X, (1, 0, 2, 3)), slice_(X, [1], [4], [0]), slice_(X, [4], [-6], [0], [-1]),
    expand(default_spec((1, 3)), (5, 3)), ConcatProblem((X, X), 0),
    _added(X.shape, X.shape, constants=(1,)), _added((), ()), PadProblem(X, (1, *[0] * 7)),
    PadProblem(X, (*[0] * 4, -1, 0, 0, 0)), ReduceProblem(X, "sum", (0, 2)), SoftmaxProblem(X, 0),
    LayerNormProblem(X, (0, 1))])
def test_problems_that_mix_images_stay_whole(problem: Problem) -> None:
    assert problem.first_images(2) == problem


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
def test_a_single_number_is_computed(recorder: RecordingDevice, problem: Problem) -> None:
    assert problem.outputs[0].size == 1
    weights = Weights(random_weights(problem), recorder)
    own = [(algorithm, variant) for algorithm, variant in candidates(problem, recorder)
           if not algorithm.vendor]
    assert own
    for algorithm, variant in own:
        assert algorithm.prepare(weights, problem, variant, recorder).launches, variant


@pytest.mark.sanitize
@pytest.mark.parametrize("op", PROBLEMS)
def test_every_kernel(compiled_device: Device, op: str) -> None:
    for problem in PROBLEMS[op]:
        check(problem, compiled_device, vendors=False)
