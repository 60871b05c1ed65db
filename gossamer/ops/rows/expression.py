"""Row expressions, independent of layouts and devices.

A tensor whose dimensions are either kept or reduced consists of rows: a row has the elements that
differ only in their positions along the reduced dimensions. A row expression computes one or
several reductions of each row, one after another, and then a result for each element or for each
row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gossamer.expression import Expression
from gossamer.hashed_once import HashedOnce
from gossamer.ops.view import Move, View
from gossamer.tensor import TensorSpec

Axes = tuple[tuple[int, ...], ...]
"""For each axis of a tensor, the dimensions of a row expression of which the axis consists,
outermost first. An axis of size 1, along which the tensor is broadcast, consists of none."""


@dataclass(frozen=True)
class RowOperand:
    """A tensor that a row expression reads, broadcast along the dimensions that are not in `axes`.

    name: name of a constant in the weights; empty for a run-time input.
    number: index of the run-time input; 0 for a constant.
    path: copies and reshapes between the run-time input and the tensor.
    """

    axes: Axes
    name: str = ""
    number: int = 0
    path: tuple[Move, ...] = ()


@dataclass(frozen=True)
class Phase:
    """A reduction of a row expression, or its result.

    kind: "mean", "max" or "sum"; "" for the result.
    reads: for each input of the expression, the index of an operand, or -1 - i for the result of
    reduction i.
    """

    kind: str
    reads: tuple[int, ...]
    expression: Expression


@dataclass(frozen=True)
class RowExpression(HashedOnce):
    """Reductions over the same dimensions, and a result.

    sizes: sizes of the dimensions.
    reduced: indices of the reduced dimensions.
    operands: the tensors that are read.
    phases: the reductions in order, followed by the result. A phase may read the results of earlier
    reductions.
    target: dimensions of the result's axes. If none is reduced, there is one result per row.
    """

    sizes: tuple[int, ...]
    reduced: frozenset[int]
    operands: tuple[RowOperand, ...]
    phases: tuple[Phase, ...]
    target: Axes

    @property
    def kept(self) -> tuple[int, ...]:
        """Indices of the dimensions that are not reduced."""
        return tuple(dim for dim in range(len(self.sizes)) if dim not in self.reduced)

    @property
    def length(self) -> int:
        """Number of elements of a row."""
        return math.prod(self.sizes[dim] for dim in self.reduced)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return math.prod(self.sizes[dim] for dim in self.kept)

    @cached_property
    def is_per_row(self) -> bool:
        """Whether there is one result per row rather than one per element."""
        return self.reduced.isdisjoint(dim for axis in self.target for dim in axis)

    def varies(self, operand: RowOperand) -> bool:
        """Return whether the elements of a row may read different elements of an operand."""
        return not self.reduced.isdisjoint(dim for axis in operand.axes for dim in axis)

    def count(self, operand: RowOperand) -> int:
        """Return the number of elements of an operand."""
        return math.prod(self.sizes[dim] for axis in operand.axes for dim in axis)

    def strides(self, axes: Axes, strides: Sequence[int]) -> tuple[int, ...]:
        """Return a tensor's stride along each dimension; 0 where it is broadcast.

        strides: the tensor's strides along its axes.
        """
        found = [0] * len(self.sizes)
        for dims, stride in zip(axes, strides, strict=True):
            for dim in reversed(dims):
                found[dim] = stride
                stride *= self.sizes[dim]
        return tuple(found)

    def place(self, operand: RowOperand,
              sources: Sequence[TensorSpec]) -> tuple[tuple[int, ...], int]:
        """Return the strides along the dimensions, and the first element, of a run-time input.

        sources: specs of the run-time inputs.
        Raises ValueError if there are no such strides.
        """
        spec = sources[operand.number]
        if not operand.path:
            return self.strides(operand.axes, spec.strides), 0
        dims = [dim for axis in operand.axes for dim in axis]
        view = View.of(spec).moved((*operand.path, tuple(self.sizes[dim] for dim in dims)))
        if view is None or not view.is_strided:
            raise ValueError(f"the elements of {spec} are in no nest of loops after {operand.path}")
        found = dict(zip(dims, view.strides, strict=True))
        return tuple(found.get(dim, 0) for dim in range(len(self.sizes))), view.offset

    def main_strides(self, sources: Sequence[TensorSpec], target: TensorSpec) -> tuple[int, ...]:
        """Return the strides of the tensor by whose memory the dimensions are ordered.

        This is a tensor that has all dimensions: the result, or else an operand. If no tensor has
        all dimensions, it is the result.

        sources: specs of the run-time inputs.
        target: spec of the result.
        """
        if sum(map(len, self.target)) < len(self.sizes):
            for operand in self.operands:
                if not operand.name and sum(map(len, operand.axes)) == len(self.sizes):
                    return self.place(operand, sources)[0]
        return self.strides(self.target, target.strides)

    def split_constant(self, axes: Axes, order: Sequence[int]
                       ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return how a constant is stored so that its dimensions are in the given order.

        The result is the shape with one axis for each dimension, and the permutation of its axes.

        order: all dimensions of the row expression.
        """
        dims = [dim for axis in axes for dim in axis]
        return (tuple(self.sizes[dim] for dim in dims),
                tuple(dims.index(dim) for dim in order if dim in dims))


def split_axes(shape: Sequence[int], dims: Sequence[int], sizes: Sequence[int]) -> Axes | None:
    """Return the dimensions of which the axes of a shape consist.

    The shape's elements are in the order of the dimensions. Returns None if an axis does not
    consist of whole dimensions.

    dims: the dimensions, outermost first.
    sizes: sizes of all dimensions of the row expression.
    """
    axes, remaining = [], list(dims)
    for size in shape:
        own, product = [], 1
        while product < size and remaining:
            own.append(remaining.pop(0))
            product *= sizes[own[-1]]
        if product != size:
            return None
        axes.append(tuple(own))
    return None if remaining else tuple(axes)


def rows_along(shape: Sequence[int], axes: Sequence[int]
               ) -> tuple[tuple[int, ...], frozenset[int], Axes]:
    """Return the sizes, the reduced dimensions and the axes of a tensor that is reduced along axes.

    If the tensor has size 1 along all these axes, its rows have one element, and the reduced
    dimension is none of its own.
    """
    sizes = tuple(size for size in shape if size != 1)
    numbers = iter(range(len(sizes)))
    own = tuple(() if size == 1 else (next(numbers),) for size in shape)
    reduced = frozenset(dim for axis in axes for dim in own[axis])
    return (sizes, reduced, own) if reduced else ((*sizes, 1), frozenset({len(sizes)}), own)
