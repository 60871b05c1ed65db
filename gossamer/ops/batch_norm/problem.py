"""Batch norm with the mean and the variance of its own input, as in training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gossamer.ops.algorithm import Problem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class BatchNormProblem(Problem):
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta. Each channel (dimension 1) has its
    own mean and variance over the whole batch; the variance is the mean square of x - mean.

    The weights are `gamma` and `beta`, with a number for each channel. With momentum there are the
    weights `stored_mean` and `stored_variance`, too, and two more outputs: the new mean,
    momentum * stored_mean + (1 - momentum) * mean, and the new variance, by the same formula.

    input: spec of x, of rank 2 or more.
    epsilon: number that is added to the variance.
    momentum: share of the stored mean and variance in the new ones; None where y is the only
    output.

    Raises ValueError for an input of rank below 2, an input that is not float32, and an input with
    empty channels where the new mean and variance are outputs.
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
        # for each element: 1 for the mean, 3 for the variance, 3 for the result
        return 7 * self.input.size

    def describe(self) -> str:
        return f"batch norm by the statistics of {self.input}"
