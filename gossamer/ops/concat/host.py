"""Concatenation in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.concat.reference import reference
from gossamer.ops.strided import HostAlgorithm


class NumpyConcat(HostAlgorithm):
    """Concatenates by numpy.concatenate."""

    op = "concat"

    def compute(self, problem: ConcatProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return reference(problem, inputs, weights)
