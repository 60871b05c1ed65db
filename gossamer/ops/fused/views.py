"""The values that a fusion reads as views of its inputs.

A view is found by following the layers that only move or scale the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gossamer.expression import Expression
from gossamer.ops.algorithm import Problem
from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import FusionProblem, ReshapeProblem, Source
from gossamer.ops.view import Move, View
from gossamer.tensor import TensorSpec

SCALAR = -1
"""The key of a linear combination's constant."""


def linear(expression: Expression) -> dict[int, float] | None:
    """Return the coefficients of an expression that is a linear combination of its inputs.

    The result has a coefficient for each input, by its index, and may have a constant, by SCALAR.
    Returns None if the expression is no linear combination, or has several outputs, and for
    coefficients that are not finite or are 0, since 0 times infinity is not 0.
    """
    values = [{index: 1.0} for index in range(expression.inputs)]
    for step in expression.steps:
        arguments = [values[argument] for argument in step.arguments]
        if step.function == "constant":
            value = {SCALAR: step.constants[0]}
        elif step.function in ("add", "sub"):
            sign = 1.0 if step.function == "add" else -1.0
            first, second = arguments
            value = {key: first.get(key, 0.0) + sign * second.get(key, 0.0)
                     for key in first.keys() | second.keys()}
        elif step.function == "neg":
            value = _times(arguments[0], -1.0)
        elif step.function == "mul" and any(value.keys() <= {SCALAR} for value in arguments):
            first, second = sorted(arguments, key=lambda value: value.keys() <= {SCALAR})
            value = _times(first, second.get(SCALAR, 0.0))
        elif step.function == "div" and arguments[1].keys() <= {SCALAR} and (
                arguments[1].get(SCALAR)):
            value = _times(arguments[0], 1 / arguments[1][SCALAR])
        else:
            return None
        values.append(value)
    result = values[expression.outputs[0]]
    is_linear = len(expression.outputs) == 1 and all(
        math.isfinite(number) and number for key, number in result.items() if key != SCALAR)
    return result if is_linear and math.isfinite(result.get(SCALAR, 0.0)) else None


def _times(value: dict[int, float], factor: float) -> dict[int, float]:
    return {key: coefficient * factor for key, coefficient in value.items()}


@dataclass(frozen=True)
class ScaledView:
    """A view of a fusion's entry, times a number.

    entry: index of the entry among the fusion's inputs.
    """

    entry: int
    view: View
    factor: float = 1.0


def view_of(problem: FusionProblem, source: Source,
            inputs: Sequence[TensorSpec]) -> ScaledView | None:
    """Return a fusion's value as a view of an entry; None if it is none.

    inputs: the specs of the entries, in the formats that the kernel reads.
    """
    if source[0] < 0:
        entry = problem.entries.index(source)
        return ScaledView(entry, View.of(inputs[entry]))
    part, sources = problem.parts[source[0]], problem.sources[source[0]]
    if not moves(part):
        return None
    before = view_of(problem, sources[0], inputs)
    if before is None:
        return None
    if isinstance(part, ElementwiseProblem):
        coefficients = linear(part.expression)
        assert coefficients is not None  # as moves() has found
        return replace(before, factor=before.factor * coefficients[0])
    view = before.view.moved((move_of(part),))
    return None if view is None else replace(before, view=view)


def move_of(part: Problem) -> Move:
    """Return the move of a copy or reshape."""
    return part if isinstance(part, CopyProblem) else part.outputs[0].shape


def moves(part: Problem) -> bool:
    """Return whether a problem only moves numbers, or multiplies them all by one number."""
    if isinstance(part, CopyProblem):
        return part.is_free_of_format and min(part.steps, default=0) >= 0
    if isinstance(part, ElementwiseProblem):
        if len(part.operands) != 1 or part.formats or part.dtypes != ("float32",) or (
                part.operands[0].dtype != "float32"):
            return False
        coefficients = linear(part.expression)
        return coefficients is not None and coefficients.keys() == {0}
    return isinstance(part, ReshapeProblem)


def reorders(part: Problem) -> bool:
    """Return whether a problem is a reshape or a transposition of all elements."""
    if not isinstance(part, CopyProblem):
        return isinstance(part, ReshapeProblem)
    return moves(part) and part.input.size == part.output.size and (
        sorted(-1 if dim is None else dim for dim in part.dims) == [*range(len(part.starts))])
