"""Concatenation of tensors along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer.facts import ValueFacts, precision_of_values
from gossamer.ops.algorithm import Problem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class ConcatProblem(Problem):
    """The concatenation of tensors along an axis.

    parts: specs of the inputs, whose shapes differ only along the axis.
    axis: index of the axis, from 0.
    facts: value facts of each input; empty if nothing is known.

    Raises ValueError if the inputs have no such axis, or differ in dtype or in their size along
    another axis.
    """

    op: ClassVar[str] = "concat"
    parts: tuple[TensorSpec, ...]
    axis: int
    facts: tuple[ValueFacts, ...] = ()

    def __post_init__(self) -> None:
        first = self.parts[0]
        if not 0 <= self.axis < len(first.shape):
            raise ValueError(f"cannot concatenate along axis {self.axis}: {first} has no such axis")
        for part in self.parts:
            if part.dtype != first.dtype or _without(part.shape, self.axis) != _without(
                    first.shape, self.axis):
                raise ValueError(f"{part} cannot be concatenated to {first} along axis "
                                 f"{self.axis}")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.parts

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        shape = list(self.parts[0].shape)
        shape[self.axis] = sum(part.shape[self.axis] for part in self.parts)
        return (default_spec(tuple(shape), self.parts[0].dtype),)

    @property
    def exact_precision(self) -> str:
        return precision_of_values(self.facts)

    @property
    def flops(self) -> int:
        return 0

    def first_images(self, count: int) -> ConcatProblem:
        if self.axis == 0:
            return self
        return replace(self, parts=tuple(part.first(count) for part in self.parts))

    def describe(self) -> str:
        return f"{' + '.join(str(part) for part in self.parts)} along {self.axis}"


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1:]


def reference(problem: ConcatProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [np.concatenate(list(inputs), axis=problem.axis)]
