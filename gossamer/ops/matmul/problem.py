"""Batched matrix products of two tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.ops.op import OperandProblem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class MatmulProblem(OperandProblem):
    """The matrix product `a @ b`, as in NumPy.

    If `a` is a vector, it is treated as a row. If `b` is a vector, it is treated as a column. The
    dimensions before the last two broadcast.

    constants: indices of the operands that are constants: 0 for `a`, 1 for `b`. The weights contain
    these operands under the names "operand0" and "operand1".
    transposed: indices of the operands whose last two dimensions are swapped before the product.
    The specs `a` and `b` are those before the swap.

    Raises ValueError if the shapes do not allow a product, or if a vector is transposed.
    """

    op: ClassVar[str] = "matmul"
    a: TensorSpec
    b: TensorSpec
    constants: tuple[int, ...] = ()
    transposed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.a.shape or not self.b.shape:
            raise ValueError(f"a matrix product of {self.a} and {self.b}: neither may be a scalar")
        for index in self.transposed:
            if len(self.operands[index].shape) < 2:
                raise ValueError(f"operand {index} of the product of {self.a} and {self.b} is a "
                                 "vector, which cannot be transposed")
        if self.matrix_a[-1] != self.matrix_b[-2]:
            raise ValueError(f"{self.a} and {self.b} have no matrix product: "
                             f"{self.matrix_a[-1]} columns against {self.matrix_b[-2]} rows")
        np.broadcast_shapes(self.matrix_a[:-2], self.matrix_b[:-2])

    @property
    def matrix_a(self) -> tuple[int, ...]:
        """Shape of `a` after transposition; a vector becomes one row."""
        return _swapped(self.a.shape if len(self.a.shape) > 1 else (1, *self.a.shape),
                        0 in self.transposed)

    @property
    def matrix_b(self) -> tuple[int, ...]:
        """Shape of `b` after transposition; a vector becomes one column."""
        return _swapped(self.b.shape if len(self.b.shape) > 1 else (*self.b.shape, 1),
                        1 in self.transposed)

    @property
    def batch(self) -> tuple[int, ...]:
        return np.broadcast_shapes(self.matrix_a[:-2], self.matrix_b[:-2])

    @property
    def operands(self) -> tuple[TensorSpec, ...]:  # type: ignore[override]
        return self.a, self.b

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        rows = self.matrix_a[-2:-1] if len(self.a.shape) > 1 else ()
        columns = self.matrix_b[-1:] if len(self.b.shape) > 1 else ()
        return (default_spec((*self.batch, *rows, *columns), self.a.dtype),)

    @property
    def flops(self) -> int:
        rows, inner = self.matrix_a[-2:]
        return 2 * math.prod(self.batch) * rows * inner * self.matrix_b[-1]

    def describe(self) -> str:
        a, b = (f"{spec} transposed" if index in self.transposed else str(spec)
                for index, spec in enumerate(self.operands))
        return f"{a} @ {b}"


def _swapped(shape: tuple[int, ...], swaps: bool) -> tuple[int, ...]:
    """Return the shape, with its last two dimensions swapped if `swaps` is true."""
    return (*shape[:-2], shape[-1], shape[-2]) if swaps else shape


def reference(problem: MatmulProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    a, b = operands(problem, inputs, weights)
    return [np.asarray(a.astype(np.float64) @ b.astype(np.float64))]


def operands(problem: MatmulProblem, inputs: Sequence[np.ndarray],
             weights: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return both operands after transposition."""
    a, b = problem.arranged(weights, inputs)
    return (a.swapaxes(-1, -2) if 0 in problem.transposed else a,
            b.swapaxes(-1, -2) if 1 in problem.transposed else b)
