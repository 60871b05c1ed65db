"""Resizing in NumPy: in float64 for the reference, in float32 for the host. This module also
computes the tables of input positions that kernels read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer import resampling
from gossamer.ops.resize.problem import ResizeProblem


def reference(problem: ResizeProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    x = inputs[0]
    return [resize(problem, x if problem.mode == "nearest" else np.asarray(x, np.float64))]


def resize(problem: ResizeProblem, x: np.ndarray) -> np.ndarray:
    """Returns the result in the dtype of x."""
    if 0 in problem.outputs[0].shape:
        return np.empty(problem.outputs[0].shape, x.dtype)
    if problem.mode == "nearest":
        rows, columns = nearest(problem, 0), nearest(problem, 1)
        return x[:, :, rows[:, None], columns]
    low, high, part = linear(problem, 0)
    part = part.astype(x.dtype)[:, None]
    x = x[:, :, low] * (1 - part) + x[:, :, high] * part
    low, high, part = linear(problem, 1)
    part = part.astype(x.dtype)
    return x[..., low] * (1 - part) + x[..., high] * part


def nearest(problem: ResizeProblem, axis: int) -> np.ndarray:
    """Returns the input position of each output position along H (axis 0) or W (axis 1)."""
    return resampling.nearest(problem.input.shape[2 + axis], problem.size[axis],
                              problem.scales[axis], problem.coordinates, problem.nearest_mode)


def linear(problem: ResizeProblem, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns three arrays over the output positions along an axis: the two input positions between
    which each output is interpolated, and the weight of the second position."""
    last = problem.input.shape[2 + axis] - 1
    low, part = resampling.between(last + 1, problem.size[axis], problem.scales[axis],
                                   problem.coordinates)
    part[(low < 0) | (low >= last)] = 0
    low = np.clip(low, 0, last).astype(np.int32)
    return low, np.minimum(low + 1, last), part.astype(np.float32)
