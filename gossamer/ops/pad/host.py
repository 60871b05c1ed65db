"""Padding in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.pad.reference import reference
from gossamer.ops.strided import HostAlgorithm


class NumpyPad(HostAlgorithm):
    """Pads by numpy.pad, then crops."""

    op = "pad"

    def compute(self, problem: PadProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return reference(problem, inputs, weights)
