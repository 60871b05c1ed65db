"""Batch norm in training mode, with the statistics of its input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.ops.op import UnaryProblem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class BatchNormProblem(UnaryProblem):
    """Batch norm with the statistics of its input.

    y = (x - mean) / sqrt(variance + epsilon) * gamma + beta. Each channel (dimension 1) has its
    own mean and variance over the whole batch; the variance is the mean square of x - mean.

    The weights are `gamma` and `beta`, with one number per channel. With momentum, `stored_mean`
    and `stored_variance` are weights, too, and there are two more outputs: the new mean, momentum *
    stored_mean + (1 - momentum) * mean, and the new variance, by the same formula.

    input: spec of x, of rank 2 or more.
    epsilon: number that is added to the variance.
    momentum: weight of the stored mean and variance in their new values; None if y is the only
    output.

    Raises ValueError if the input is not float32, if its rank is below 2, or if its channels are
    empty and the new mean and variance are outputs.
    """

    op: ClassVar[str] = "batch_norm"
    epsilon: float = 1e-5
    momentum: float | None = None

    def __post_init__(self) -> None:
        if len(self.input.shape) < 2 or self.input.dtype != "float32":
            raise ValueError(f"batch norm needs float32 of rank 2 or more, not {self.input}")
        if self.momentum is not None and self.channels and not self.count:
            raise ValueError(f"the channels of {self.input} are empty and have no mean")

    @property
    def channels(self) -> int:
        return self.input.shape[1]

    @property
    def count(self) -> int:
        """Number of elements per channel."""
        return self.input.shape[0] * math.prod(self.input.shape[2:])

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


def reference(problem: BatchNormProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    x = np.asarray(inputs[0], np.float64)
    if not x.size:
        empty = np.zeros(problem.channels)
        return [x, *([] if problem.momentum is None else [empty, empty])]
    others = tuple(axis for axis in range(x.ndim) if axis != 1)
    constants = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    mean, variance = x.mean(others), x.var(others)
    factor = constants["gamma"] / np.sqrt(variance + problem.epsilon)
    by_channel = (-1, *[1] * (x.ndim - 2))
    results = [(x - mean.reshape(by_channel)) * factor.reshape(by_channel)
               + constants["beta"].reshape(by_channel)]
    if problem.momentum is not None:
        results += [problem.momentum * constants[f"stored_{name}"]
                    + (1 - problem.momentum) * statistic
                    for name, statistic in (("mean", mean), ("variance", variance))]
    return results
