"""The loops over the rows and the elements of a row expression in certain layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.ops.rows.expression import RowExpression
from gossamer.ops.strided import Strides, dense_strides, merge
from gossamer.tensor import TensorSpec


@dataclass(frozen=True)
class Nest:
    """Loops over rows and, within each row, over elements.

    order: all dimensions of the row expression, in the order of memory.
    kept, reduced: sizes of the merged loops over the rows and over the elements of a row, outermost
    first.
    row_strides, strides: for each operand and then for the result, the strides along these loops.
    firsts: for each operand and then for the result, the index of its first element.
    is_wide: whether the elements of a row are not neighbours in memory, but neighbouring rows are.
    vector: number of elements along the innermost dimension in memory that a work-item loads at
    once: 8, 4 or 1.
    """

    order: tuple[int, ...]
    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    row_strides: tuple[Strides, ...]
    strides: tuple[Strides, ...]
    firsts: tuple[int, ...]
    is_wide: bool
    vector: int

    @property
    def wide(self) -> int:
        """Number of neighbouring rows that a work-item computes at once."""
        return self.vector if self.is_wide else 1

    def inner_stride(self, tensor: int) -> int:
        """Return a tensor's stride along the innermost dimension in memory.

        tensor: index of an operand, or -1 for the result.
        """
        strides = self.row_strides[tensor] if self.is_wide else self.strides[tensor]
        return strides[-1] if strides else 0


def nest_of(expression: RowExpression, inputs: Sequence[TensorSpec], output: TensorSpec) -> Nest:
    """Return the loops for run-time inputs and an output in certain formats."""
    main = expression.main_strides(inputs, output)
    order = tuple(sorted(range(len(main)), key=lambda dim: -main[dim]))
    places = [(_constant_strides(expression, operand.axes, order), 0) if operand.name
              else expression.place(operand, inputs) for operand in expression.operands]
    places.append((expression.strides(expression.target, output.strides), 0))
    tensors, firsts = zip(*places, strict=True)

    def merged(dims: Sequence[int]) -> tuple[tuple[int, ...], tuple[Strides, ...]]:
        sizes, walks, _ = merge([expression.sizes[dim] for dim in dims],
                                [[strides[dim] for dim in dims] for strides in tensors])
        return sizes, tuple(walks)

    kept, row_strides = merged([dim for dim in order if dim not in expression.reduced])
    reduced, strides = merged([dim for dim in order if dim in expression.reduced])
    if not reduced:  # rows of one element
        reduced, strides = (1,), ((0,),) * len(tensors)
    is_wide = order[-1] not in expression.reduced
    halves = any(spec.dtype == "float16" for spec in inputs)
    vector = _vector((row_strides, strides), firsts, kept[-1] if is_wide else reduced[-1], is_wide,
                     halves)
    return Nest(order, kept, reduced, row_strides, strides, firsts, is_wide, vector)


def _constant_strides(expression: RowExpression, axes: Sequence[Sequence[int]],
                      order: Sequence[int]) -> Strides:
    """Return a constant's stride along each dimension; it is stored in the given order."""
    own = [dim for dim in order if any(dim in axis for axis in axes)]
    strides = dict(zip(own, dense_strides([expression.sizes[dim] for dim in own]), strict=True))
    return tuple(strides.get(dim, 0) for dim in range(len(expression.sizes)))


def _vector(strides: tuple[tuple[Strides, ...], ...], firsts: Sequence[int], inner: int,
            is_wide: bool, halves: bool) -> int:
    """Return the largest number of elements that all tensors can load or store at once.

    strides: strides along the kept and along the reduced loops.
    firsts: index of each tensor's first element.
    inner: size of the innermost loop in memory.
    """
    outer: list[int] = []
    kept, reduced = strides
    for of_rows, of_elements, first in zip(kept, reduced, firsts, strict=True):
        own, others = (of_rows, of_elements) if is_wide else (of_elements, of_rows)
        if own and own[-1] == 1:
            outer += [*own[:-1], *others, first]
    if not outer and not any(own and own[-1] == 1 for own in strides[0 if is_wide else 1]):
        return 1
    return next(size for size in ((8, 4, 1) if halves else (4, 1))
                if all(number % size == 0 for number in (inner, *outer)))
