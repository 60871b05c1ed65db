"""Resizing in NumPy: in float64 for the reference, in float32 for the host. This module also
computes the tables of input positions that kernels read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

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
    position = _positions(problem, axis)
    if problem.nearest_mode == "floor":
        rounded = np.floor(position)
    elif problem.nearest_mode == "ceil":
        rounded = np.ceil(position)
    elif problem.nearest_mode == "round_prefer_floor":
        rounded = np.ceil(position - np.float32(0.5))
    else:
        rounded = np.floor(position + np.float32(0.5))
    return np.clip(rounded, 0, problem.input.shape[2 + axis] - 1).astype(np.int32)


def linear(problem: ResizeProblem, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns three arrays over the output positions along an axis: the two input positions between
    which each output is interpolated, and the weight of the second position."""
    last = problem.input.shape[2 + axis] - 1
    position = np.clip(_positions(problem, axis), 0, last)
    low = np.floor(position)
    return (low.astype(np.int32), np.minimum(low + 1, last).astype(np.int32),
            (position - low).astype(np.float32))


def _positions(problem: ResizeProblem, axis: int) -> np.ndarray:
    """Returns the input position of each output position along an axis, before rounding to an
    index. The arithmetic is float32 for the float64 reference too. The rounding of the division
    decides whether a position lies exactly between two indices, and the reference has to take the
    same indices as the kernels."""
    length, original = problem.size[axis], problem.input.shape[2 + axis]
    x = np.arange(length, dtype=np.float32)
    scale = np.float32(problem.scales[axis])
    half = np.float32(0.5)
    if problem.coordinates == "asymmetric":
        return x / scale
    if problem.coordinates == "align_corners":
        if length == 1:
            return np.zeros_like(x)
        return x * np.float32(original - 1) / np.float32(length - 1)
    if problem.coordinates == "pytorch_half_pixel" and length == 1:
        return np.zeros_like(x)
    return (x + half) / scale - half
