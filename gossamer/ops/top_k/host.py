"""The greatest or smallest elements in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.strided import HostAlgorithm
from gossamer.ops.top_k.problem import TopKProblem
from gossamer.ops.top_k.reference import reference


class NumpyTopK(HostAlgorithm):
    """Sorts by numpy.argsort; finds a single element by numpy.argmin."""

    op = "top_k"

    def compute(self, problem: TopKProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return reference(problem, inputs, weights)
