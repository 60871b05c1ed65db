"""Channels normalised by given statistics, for those who measure this step alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gossamer.ops.algorithm import Problem
from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class NormaliseProblem(Problem):
    """The second half of a batch norm: y = (x - mean - rest) * factor + beta of every element,
    where the second input is the matrix (3, channels) of means, rests and factors that
    BatchStatisticsProblem describes.

    Its weight is `beta`, with a number for each channel.

    norm: the batch norm, whose epsilon and momentum do not count.
    """

    op: ClassVar[str] = "normalise"
    norm: BatchNormProblem

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (*self.norm.inputs, default_spec((3, self.norm.channels)))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.norm.inputs

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"beta": (self.norm.channels,)}

    @property
    def flops(self) -> int:
        # two differences, a product and a sum
        return 4 * self.norm.input.size

    def describe(self) -> str:
        return f"normalise {self.norm.input}"
