"""Strided views of tensors.

A kernel that reads through a view needs neither the copy of a transpose nor that of a slice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.strided import broadcast_strides
from gossamer.tensor import TensorSpec

Loops = tuple[tuple[int, int], ...]
"""Loops over elements of memory, outermost first: (number of elements, distance between them)."""

Move = CopyProblem | tuple[int, ...]
"""A copy, or the shape after a reshape."""


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

    def moved(self, path: Sequence[Move]) -> View | None:
        """Return the view after copies and reshapes; None if there is none."""
        view: View | None = self
        for move in path:
            if view is None:
                return None
            view = (view.copied(move) if isinstance(move, CopyProblem) else view.reshaped(move))
        return view

    def transposed(self) -> View:
        """Return the view with the last two dimensions swapped."""
        *dims, rows, columns = self.dims
        return View((*dims, columns, rows), self.offset)


def _merged(outer: tuple[int, int], loops: Loops) -> Loops:
    """Return loops within another one, as few as possible."""
    if loops and outer[1] == loops[0][0] * loops[0][1]:
        return ((outer[0] * loops[0][0], loops[0][1]), *loops[1:])
    return (outer, *loops)
