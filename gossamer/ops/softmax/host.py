"""Softmax in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.ops.softmax.reference import softmax
from gossamer.ops.strided import HostAlgorithm


class NumpySoftmax(HostAlgorithm):
    """Computes the softmax of values shifted by their maximum."""

    op = "softmax"

    def compute(self, problem: SoftmaxProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [softmax(problem, inputs[0])]
