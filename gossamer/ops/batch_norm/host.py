"""Batch norm with the mean and the variance of its own input, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.ops.batch_norm.reference import reference
from gossamer.ops.strided import HostAlgorithm


class NumpyBatchNorm(HostAlgorithm):
    """Computes in float64, because the rounding error of a mean in float32 is too large where the
    mean is far from 0."""

    op = "batch_norm"

    def compute(self, problem: BatchNormProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return reference(problem, inputs, weights)
