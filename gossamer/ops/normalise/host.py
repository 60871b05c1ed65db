"""Channels normalised by given statistics in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.normalise.problem import NormaliseProblem
from gossamer.ops.normalise.reference import reference
from gossamer.ops.strided import HostAlgorithm


class NumpyNormalise(HostAlgorithm):
    """Computes in float64, as `numpy` of the whole batch norm does."""

    op = "normalise"

    def compute(self, problem: NormaliseProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return reference(problem, inputs, weights)
