"""Channels normalised by given statistics, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.normalise.problem import NormaliseProblem


def reference(problem: NormaliseProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    x, statistics = (np.asarray(array, np.float64) for array in inputs)
    by_channel = (-1, *[1] * (x.ndim - 2))
    mean, rest, factor = (row.reshape(by_channel) for row in statistics)
    beta = np.asarray(weights["beta"], np.float64).reshape(by_channel)
    return [(x - mean - rest) * factor + beta]
