"""The statistics of each channel by which batch norm in training normalises its input, as an op of
its own, so that this step can be measured alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gossamer.ops.algorithm import Problem
from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class BatchStatisticsProblem(Problem):
    """The first half of a batch norm: a matrix (3, channels) of the mean of each channel, of the
    rest that rounding took from it, which is 0 where nothing is rounded, and of gamma divided by
    the standard deviation, that is by sqrt(variance + epsilon).

    Its weight is `gamma`, with a number for each channel.

    norm: the batch norm, whose momentum and beta do not count.

    Raises ValueError for a batch norm whose input has channels without elements.
    """

    op: ClassVar[str] = "batch_statistics"
    norm: BatchNormProblem

    def __post_init__(self) -> None:
        if self.norm.channels and not self.norm.count:
            raise ValueError(f"the mean of each channel of {self.norm.input} has no value")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.norm.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (default_spec((3, self.norm.channels)),)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"gamma": (self.norm.channels,)}

    @property
    def flops(self) -> int:
        # a sum for the mean, a difference, a product and a sum for the variance
        return 4 * self.norm.input.size

    def describe(self) -> str:
        return f"statistics of {self.norm.input}"
