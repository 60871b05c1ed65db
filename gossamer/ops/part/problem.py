"""The problem of a part of a network: problems that one library computes in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.ops.algorithm import Problem
from gossamer.ops.fused.problem import FusionProblem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class ReshapeProblem(Problem):
    """A reshape, as one of the problems of a part.

    It has the numbers of a tensor in the same order, with another shape. A reshape outside of a
    part does no work: its output is the input's memory.
    """

    op: ClassVar[str] = "reshape"
    input: TensorSpec
    shape: tuple[int, ...]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (self.input,)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (default_spec(self.shape, self.input.dtype),)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {}

    @property
    def flops(self) -> int:
        return 0

    def first_images(self, count: int) -> Problem:
        if self.input.shape[:1] != self.shape[:1]:
            return self
        return ReshapeProblem(self.input.first(count),
                              (min(count, self.shape[0]), *self.shape[1:]))

    def describe(self) -> str:
        return f"{self.input} -> {self.outputs[0]}"


@dataclass(frozen=True)
class PartProblem(FusionProblem):
    """Problems that a library for whole networks computes in one step.

    whole: whether the part has all problems of its network, so that no other layer needs the
    processors.
    """

    op: ClassVar[str] = "part"
    whole: bool = False

    def example_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return inputs of the part.

        An input that is read by a problem with its own `example_inputs` is drawn by that method.
        """
        arrays = super().example_inputs(rng)
        drawn = {part: part.example_inputs(rng) for part, _ in map(self.reader, self.entries)
                 if type(part).example_inputs is not Problem.example_inputs}
        for index, (part, number) in enumerate(map(self.reader, self.entries)):
            if part in drawn:
                arrays[index] = drawn[part][number]
        return arrays

    def describe(self) -> str:
        of = "whole network" if self.whole else "part of the network"
        return f"{of}, {len(self.parts)} layer{'s' * (len(self.parts) != 1)}"
