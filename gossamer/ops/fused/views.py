"""Strided views of the values that a fusion reads.

A view is found by following the layers that only move or scale the value. A kernel that reads
through a view needs neither the copy of a transpose nor that of a slice.
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
from gossamer.ops.strided import broadcast_strides
from gossamer.tensor import TensorSpec

SCALAR = -1
"""The key of a linear combination's constant."""


Loops = tuple[tuple[int, int], ...]
"""Loops over elements of memory, outermost first: (number of elements, distance between them)."""


@dataclass(frozen=True)
class View:
    """A view of a tensor's memory.

    dims: the loops over each dimension; none over a dimension of size 1. Several loops over one
    dimension remain where a reshape merges dimensions that are not neighbours in memory.
    offset: index of the first element.
    """

    dims: tuple[Loops, ...]
    offset: int = 0

    @classmethod
    def of(cls, spec: TensorSpec, shape: Sequence[int] | None = None) -> View:
        """Return the view of a whole tensor, which is broadcast to a shape if one is given."""
        shape = spec.shape if shape is None else shape
        return cls(tuple(((size, stride),) if size > 1 else () for size, stride in zip(
            shape, broadcast_strides(spec, shape), strict=True)))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(size for size, _ in loops) for loops in self.dims)

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride along each dimension; only for a view with at most one loop over each."""
        return tuple(next((stride for _, stride in loops), 0) for loops in self.dims)

    @property
    def is_strided(self) -> bool:
        """Whether there is at most one loop over each dimension."""
        return all(len(loops) <= 1 for loops in self.dims)

    def copied(self, problem: CopyProblem) -> View | None:
        """Return the view of a copy's result.

        Returns None if the copy takes a part of a dimension that has several loops.
        """
        if any(start and len(loops) > 1
               for start, loops in zip(problem.starts, self.dims, strict=True)):
            return None
        dims: list[Loops] = []
        for size, dim, step in zip(problem.output.shape, problem.dims, problem.steps, strict=True):
            loops = self.dims[dim] if dim is not None else ()
            if len(loops) > 1 and (step, size) != (1, self.shape[dim or 0]):
                return None
            stride = step * loops[-1][1] if loops else 0
            dims.append(loops if len(loops) > 1 else ((size, stride),) if size > 1 else ())
        return View(tuple(dims), self.offset + sum(
            start * loops[-1][1] for start, loops in zip(problem.starts, self.dims, strict=True)
            if start))

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """Return the view in another shape; None if the loops cannot be divided so."""
        left = [loop for loops in self.dims for loop in loops]
        dims: list[Loops] = []
        for wanted in reversed(shape):
            taken: Loops = ()
            while wanted > 1:
                size, stride = left.pop()
                inner = math.gcd(size, wanted)
                if inner < min(size, wanted):
                    return None
                if inner < size:
                    left.append((size // inner, stride * inner))
                taken = _merged((inner, stride), taken)
                wanted //= inner
            dims.append(taken)
        return View(tuple(reversed(dims)), self.offset)

    def transposed(self) -> View:
        """Return the view with the last two dimensions swapped."""
        *dims, rows, columns = self.dims
        return View((*dims, columns, rows), self.offset)


def _merged(outer: tuple[int, int], loops: Loops) -> Loops:
    """Return loops within another one, as few as possible."""
    if loops and outer[1] == loops[0][0] * loops[0][1]:
        return ((outer[0] * loops[0][0], loops[0][1]), *loops[1:])
    return (outer, *loops)


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
    view = (before.view.copied(part) if isinstance(part, CopyProblem)
            else before.view.reshaped(part.outputs[0].shape))
    return None if view is None else replace(before, view=view)


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
