"""Batched matrix products of two tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.ops.algorithm import Problem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class MatmulProblem(Problem):
    """The product a @ b by the rules of NumPy: a vector is a row on the left and a column on the
    right, and the dimensions before the last two broadcast.

    constants: indices of the operands that are constants, 0 for a and 1 for b; the weights hold
    these operands as `operand0` and `operand1`.
    Raises ValueError for shapes that have no product.
    """

    op: ClassVar[str] = "matmul"
    a: TensorSpec
    b: TensorSpec
    constants: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.a.shape or not self.b.shape:
            raise ValueError(f"a matrix product of a scalar: {self.a} and {self.b}")
        if self.matrix_a[-1] != self.matrix_b[-2]:
            raise ValueError(f"{self.a} and {self.b} have no matrix product: "
                             f"{self.matrix_a[-1]} columns against {self.matrix_b[-2]} rows")
        np.broadcast_shapes(self.matrix_a[:-2], self.matrix_b[:-2])

    @property
    def matrix_a(self) -> tuple[int, ...]:
        """The shape of a, where a vector is one row."""
        return self.a.shape if len(self.a.shape) > 1 else (1, *self.a.shape)

    @property
    def matrix_b(self) -> tuple[int, ...]:
        """The shape of b, where a vector is one column."""
        return self.b.shape if len(self.b.shape) > 1 else (*self.b.shape, 1)

    @property
    def batch(self) -> tuple[int, ...]:
        return np.broadcast_shapes(self.matrix_a[:-2], self.matrix_b[:-2])

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(spec for index, spec in enumerate((self.a, self.b))
                     if index not in self.constants)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        rows = self.a.shape[-2:-1]
        columns = self.b.shape[-1:] if len(self.b.shape) > 1 else ()
        return (default_spec((*self.batch, *rows, *columns), self.a.dtype),)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {f"operand{index}": (self.a, self.b)[index].shape for index in self.constants}

    @property
    def flops(self) -> int:
        rows, inner = self.matrix_a[-2:]
        return 2 * math.prod(self.batch) * rows * inner * self.matrix_b[-1]

    def describe(self) -> str:
        return f"{self.a} @ {self.b}"
