"""The statistics of each channel over the whole batch in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.batch_statistics.problem import BatchStatisticsProblem
from gossamer.ops.batch_statistics.reference import reference
from gossamer.ops.strided import HostAlgorithm


class NumpyBatchStatistics(HostAlgorithm):
    """Computes in float64, and gives what float32 cannot hold of a mean as its rest."""

    op = "batch_statistics"

    def compute(self, problem: BatchStatisticsProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        (statistics,) = reference(problem, inputs, weights)
        statistics[1] = statistics[0] - statistics[0].astype(np.float32)
        return [statistics]
