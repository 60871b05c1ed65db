"""The im2col matrix of a convolution in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.im2col.problem import Im2colProblem
from gossamer.ops.im2col.reference import im2col
from gossamer.ops.strided import HostAlgorithm


class NumpyIm2col(HostAlgorithm):
    """Copies a view of sliding windows."""

    op = "im2col"

    def compute(self, problem: Im2colProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [im2col(problem, inputs[0])]
