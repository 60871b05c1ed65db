"""Reductions in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.reduce.reference import reduce
from gossamer.ops.strided import HostAlgorithm


class NumpyReduce(HostAlgorithm):
    """Reduces by numpy.sum or numpy.max."""

    op = "reduce"

    def compute(self, problem: ReduceProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [reduce(problem, inputs[0])]
