"""Softmax in NumPy: in float64 for the reference, in float32 for the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.softmax.problem import SoftmaxProblem


def reference(problem: SoftmaxProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    with np.errstate(invalid="ignore"):
        # the softmax of a row of -inf is NaN, without a warning
        return [softmax(problem, np.asarray(inputs[0], np.float64))]


def softmax(problem: SoftmaxProblem, x: np.ndarray) -> np.ndarray:
    """Returns the result in the dtype of x."""
    if x.size == 0:
        return x.copy()
    shifted = x - x.max(problem.axis, keepdims=True)
    powers = np.exp(shifted)
    total = powers.sum(problem.axis, keepdims=True)
    return shifted - np.log(total) if problem.log else powers / total
