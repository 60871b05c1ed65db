"""Layer norm and RMS norm in NumPy: in float64 for the reference, in float32 for the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.layer_norm.problem import LayerNormProblem


def reference(problem: LayerNormProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [layer_norm(problem, np.asarray(inputs[0], np.float64), weights)]


def layer_norm(problem: LayerNormProblem, x: np.ndarray,
               weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the result in the dtype of x."""
    if x.size == 0:
        return x.copy()
    others = [axis for axis in range(x.ndim) if axis not in problem.axes]
    scale, bias = (np.expand_dims(np.asarray(weights[name], x.dtype), others)
                   for name in ("scale", "bias"))
    centred = x - x.mean(problem.axes, keepdims=True) if problem.centred else x
    variance = np.square(centred).mean(problem.axes, keepdims=True)
    factor = 1 / np.sqrt(variance + x.dtype.type(problem.epsilon))
    return centred * factor * scale + bias
