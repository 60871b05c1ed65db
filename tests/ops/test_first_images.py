"""The outputs of the problem of the first images are the first outputs of the full problem."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.expression import Expression, ExpressionStep
from gossamer.ops.algorithm import Problem
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.copy.problem import convert, expand, slice_, transpose
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.registry import OPS
from gossamer.ops.resize.problem import ResizeProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.tensor import Format, TensorSpec, default_spec

X = default_spec((5, 3, 4, 2))
ADD = Expression(2, (ExpressionStep("add", (0, 1)),))


def _added(*shapes: tuple[int, ...], constants: tuple[int, ...] = ()) -> Problem:
    return ElementwiseProblem(tuple(map(default_spec, shapes)), ADD, constants=constants)


def _weights(problem: Problem) -> dict[str, np.ndarray]:
    return {name: np.random.default_rng(1).standard_normal(shape, np.float32)
            for name, shape in problem.weight_shapes.items()}


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
def test_outputs_begin_alike(problem: Problem) -> None:
    inputs, weights = problem.example_inputs(np.random.default_rng(0)), _weights(problem)
    few = problem.first_images(2)
    (outputs,) = OPS[problem.op].reference(problem, inputs, weights)
    (first_outputs,) = OPS[problem.op].reference(few, [
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
def test_where_images_are_not_apart_it_is_the_problem_itself(problem: Problem) -> None:
    assert problem.first_images(2) == problem
