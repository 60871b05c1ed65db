"""Layer norm and RMS norm in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.layer_norm.reference import layer_norm
from gossamer.ops.strided import HostAlgorithm


class NumpyLayerNorm(HostAlgorithm):
    """Computes the variance from the centred values, in float32."""

    op = "layer_norm"

    def compute(self, problem: LayerNormProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [layer_norm(problem, inputs[0], weights)]
