"""Transposed convolution in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.conv_transpose2d.reference import conv_transpose2d
from gossamer.ops.strided import HostAlgorithm


class NumpyConvTranspose2d(HostAlgorithm):
    """Adds the contribution of each filter tap by NumPy."""

    op = "conv_transpose2d"

    def compute(self, problem: ConvTranspose2dProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [conv_transpose2d(problem, inputs[0], weights)]
