"""The softmax and its logarithm along one dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer.ops.op import UnaryProblem, in_float64
from gossamer.tensor import TensorSpec


@dataclass(frozen=True)
class SoftmaxProblem(UnaryProblem):
    """The softmax along one dimension.

    axis: index of the dimension, from 0.
    log: whether to compute the logarithm of the softmax.

    Raises ValueError for an axis that the input does not have.
    """

    op: ClassVar[str] = "softmax"
    axis: int
    log: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.axis < len(self.input.shape):
            raise ValueError(f"axis {self.axis} is not one of {self.input}")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (self.input,)

    @property
    def flops(self) -> int:
        return 7 * self.input.size

    def first_images(self, count: int) -> SoftmaxProblem:
        return self if self.axis == 0 else replace(self, input=self.input.first(count))

    def describe(self) -> str:
        return f"{'log ' if self.log else ''}softmax along {self.axis} of {self.input}"


def softmax(problem: SoftmaxProblem, inputs: Sequence[np.ndarray],
            weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the result in the dtype of the input."""
    (x,) = inputs
    if x.size == 0:
        return [x.copy()]
    shifted = x - x.max(problem.axis, keepdims=True)
    powers = np.exp(shifted)
    total = powers.sum(problem.axis, keepdims=True)
    return [shifted - np.log(total) if problem.log else powers / total]


reference = in_float64(softmax)
