"""The largest or smallest elements along one dimension, and their indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer.ops.op import UnaryProblem
from gossamer.ordering import first_places
from gossamer.tensor import TensorSpec, default_spec

DTYPES = ("float32", "int32", "int64")


@dataclass(frozen=True)
class TopKProblem(UnaryProblem):
    """The largest or smallest elements along one dimension, and their indices.

    The indices are int64.

    axis: index of the dimension, from 0.
    count: number of elements, k.
    largest: if true, the largest elements are returned in descending order. If false, the smallest
    elements are returned in ascending order.
    nan_first: if true, NaN comes before all numbers. If false, NaN comes after all numbers.
    last: if true, equal elements, and NaNs, are in descending order of their indices. If false,
    they are in ascending order of their indices.
    places_only: if true, the indices are the only output. If false, they are the second output.

    Raises ValueError if the dtype is not supported, the axis is out of range, or the count is
    larger than the dimension.
    """

    op: ClassVar[str] = "top_k"
    axis: int
    count: int
    largest: bool = True
    nan_first: bool = True
    last: bool = False
    places_only: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.axis < len(self.input.shape):
            raise ValueError(f"a top_k along axis {self.axis}, which {self.input} does not have")
        if self.input.dtype not in DTYPES:
            raise ValueError(f"top_k supports {', '.join(DTYPES)}, not {self.input.dtype}")
        if not 0 <= self.count <= self.input.shape[self.axis]:
            raise ValueError(f"cannot return {self.count} elements along axis {self.axis} of "
                             f"{self.input}")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        shape = self.input.shape
        shape = (*shape[:self.axis], self.count, *shape[self.axis + 1:])
        indices = default_spec(shape, "int64")
        return (indices,) if self.places_only else (default_spec(shape, self.input.dtype), indices)

    @property
    def flops(self) -> int:
        return self.input.size * self.count

    def first_images(self, count: int) -> TopKProblem:
        return self if self.axis == 0 else replace(self, input=self.input.first(count))

    def describe(self) -> str:
        kind = "greatest" if self.largest else "smallest"
        return f"{self.count} {kind} along {self.axis} of {self.input}"


def reference(problem: TopKProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    x, axis = inputs[0], problem.axis
    indices = first_places(x, axis, problem.count, largest=problem.largest,
                           nan_first=problem.nan_first, last=problem.last)
    return [indices] if problem.places_only else [np.take_along_axis(x, indices, axis), indices]
