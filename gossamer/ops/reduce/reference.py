"""Reductions in NumPy: in float64 for the reference, in float32 for the host. Reductions of
integers are exact in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.reduce.problem import ReduceProblem


def reference(problem: ReduceProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    dtype = "float64" if problem.input.dtype == "float32" else problem.input.dtype
    return [reduce(problem, np.asarray(inputs[0], dtype))]


def reduce(problem: ReduceProblem, x: np.ndarray) -> np.ndarray:
    """Returns the result in the dtype of x."""
    if problem.kind == "max":
        return np.asarray(x.max(problem.axes, keepdims=problem.keepdims))
    total = np.asarray(x.sum(problem.axes, keepdims=problem.keepdims, dtype=x.dtype))
    if problem.kind == "sum" or problem.count == 0:
        return total
    if x.dtype.kind == "f":
        return np.asarray(total / x.dtype.type(problem.count))
    return np.asarray(np.sign(total) * (np.abs(total) // problem.count))
