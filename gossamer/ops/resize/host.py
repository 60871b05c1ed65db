"""Resizing in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.resize.problem import ResizeProblem
from gossamer.ops.resize.reference import resize
from gossamer.ops.strided import HostAlgorithm


class NumpyResize(HostAlgorithm):
    """Resizes by NumPy's indexing."""

    op = "resize"

    def compute(self, problem: ResizeProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [resize(problem, inputs[0])]
