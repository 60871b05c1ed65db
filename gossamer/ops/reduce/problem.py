"""Sums, means and maxima over some dimensions.

Global pooling is a reduction over H and W.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer.facts import ValueFacts, precision_of_values
from gossamer.ops.op import UnaryProblem, in_float64
from gossamer.tensor import TensorSpec, default_spec

DTYPES = ("float32", "int32", "int64")


@dataclass(frozen=True)
class ReduceProblem(UnaryProblem):
    """A reduction over some dimensions.

    kind: "mean", "max" or "sum"; a mean of integers is truncated towards 0.
    axes: indices of the reduced dimensions, from 0, without repetition.
    keepdims: whether reduced dimensions are kept with size 1; if not, they are dropped.
    facts: value facts of the input; empty if nothing is known.

    Raises ValueError if the axes or the dtype are invalid, or if a mean or maximum has no elements.
    """

    op: ClassVar[str] = "reduce"
    kind: str
    axes: tuple[int, ...]
    keepdims: bool = True
    facts: tuple[ValueFacts, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("mean", "max", "sum"):
            raise ValueError(f"reduce kind {self.kind!r} is none of mean, max, sum")
        rank = len(self.input.shape)
        if len(set(self.axes)) != len(self.axes) or not all(0 <= a < rank for a in self.axes):
            raise ValueError(f"axes {self.axes} do not fit {self.input}")
        if self.input.dtype not in DTYPES:
            raise ValueError(f"reduce supports {', '.join(DTYPES)}, not {self.input.dtype}")
        if self.kind != "sum" and self.count == 0 and self.outputs[0].size > 0:
            raise ValueError(f"the {self.kind} over axes {self.axes} of {self.input} has no value")

    @property
    def count(self) -> int:
        """Number of elements that are reduced to one result."""
        return math.prod(self.input.shape[axis] for axis in self.axes)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        shape = tuple(1 if axis in self.axes else size
                      for axis, size in enumerate(self.input.shape)
                      if self.keepdims or axis not in self.axes)
        return (default_spec(shape, self.input.dtype),)

    @property
    def exact_precision(self) -> str:
        return precision_of_values(self.facts) if self.kind == "max" else "fp32"

    @property
    def flops(self) -> int:
        return self.input.size

    def first_images(self, count: int) -> ReduceProblem:
        if not self.input.shape or 0 in self.axes:
            return self
        return replace(self, input=self.input.first(count))

    def describe(self) -> str:
        return f"{self.kind} over {','.join(map(str, self.axes))} of {self.input}"


def reduce(problem: ReduceProblem, inputs: Sequence[np.ndarray],
           weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the result in the dtype of the input; integer results are exact."""
    (x,) = inputs
    if problem.kind == "max":
        return [np.asarray(x.max(problem.axes, keepdims=problem.keepdims))]
    total = np.asarray(x.sum(problem.axes, keepdims=problem.keepdims, dtype=x.dtype))
    if problem.kind == "sum" or problem.count == 0:
        return [total]
    if x.dtype.kind == "f":
        return [np.asarray(total / x.dtype.type(problem.count))]
    return [np.asarray(np.sign(total) * (np.abs(total) // problem.count))]


reference = in_float64(reduce)
