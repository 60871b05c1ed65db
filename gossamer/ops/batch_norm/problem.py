"""Batch norm by the statistics of its own input, as in training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gossamer.ops.algorithm import Problem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class BatchNormProblem(Problem):
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, where mean and variance are those
    of each channel (dimension 1) over the whole batch, and the variance is the mean square of
    x - mean.

    Its weights are `gamma` and `beta`, with a number for each channel.

    input: spec of x, of rank 2 or more.
    epsilon: number that is added to the variance.
    momentum: share of the stored statistics in the new ones; None where y is the only output. Else
    there are two outputs more, each with a number for each channel:
    momentum * stored_mean + (1 - momentum) * mean, and the same with the variance; `stored_mean`
    and `stored_variance` are weights too.

    Raises ValueError for an input without channels, one that is not float32, or one without
    elements whose statistics are an output.
    """

    op: ClassVar[str] = "batch_norm"
    input: TensorSpec
    epsilon: float = 1e-5
    momentum: float | None = None

    def __post_init__(self) -> None:
        if len(self.input.shape) < 2 or self.input.dtype != "float32":
            raise ValueError(f"batch norm takes float32 of rank 2 or more, not {self.input}")
        if self.momentum is not None and self.channels and not self.count:
            raise ValueError(f"the mean of each channel of {self.input} has no value")

    @property
    def channels(self) -> int:
        return self.input.shape[1]

    @property
    def count(self) -> int:
        """Number of elements of a channel."""
        return self.input.shape[0] * math.prod(self.input.shape[2:])

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (self.input,)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        statistics = () if self.momentum is None else (default_spec((self.channels,)),) * 2
        return (self.input, *statistics)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        stored = () if self.momentum is None else ("stored_mean", "stored_variance")
        return {name: (self.channels,) for name in ("gamma", "beta", *stored)}

    @property
    def flops(self) -> int:
        # a sum for the mean, a difference, a product and a sum for the variance, then the result
        return 7 * self.input.size

    def describe(self) -> str:
        return f"batch norm by the statistics of {self.input}"
