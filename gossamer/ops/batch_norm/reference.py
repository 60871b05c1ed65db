"""Batch norm with the mean and the variance of its own input, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.batch_norm.problem import BatchNormProblem


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
