"""Softmax and its logarithm along one dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from gossamer.ops.algorithm import Problem
from gossamer.tensor import TensorSpec


@dataclass(frozen=True)
class SoftmaxProblem(Problem):
    """The softmax along one dimension.

    axis: index of the dimension, from 0.
    log: whether to compute the logarithm of the softmax.

    Raises ValueError for an axis that the input does not have.
    """

    op: ClassVar[str] = "softmax"
    input: TensorSpec
    axis: int
    log: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.axis < len(self.input.shape):
            raise ValueError(f"axis {self.axis} is not one of {self.input}")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (self.input,)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (self.input,)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {}

    @property
    def flops(self) -> int:
        return 7 * self.input.size

    def first_images(self, count: int) -> SoftmaxProblem:
        """Returns the problem of the first images, or this problem where the softmax is taken along
        the first dimension."""
        return self if self.axis == 0 else replace(self, input=self.input.first(count))

    def describe(self) -> str:
        return f"{'log ' if self.log else ''}softmax along {self.axis} of {self.input}"
