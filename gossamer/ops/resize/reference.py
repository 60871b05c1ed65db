"""Resizing in NumPy: float64 for the reference, float32 for the host; and the tables by which
kernels find their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.resize.problem import ResizeProblem


def reference(problem: ResizeProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    x = inputs[0]
    return [resize(problem, x if problem.mode == "nearest" else np.asarray(x, np.float64))]


def resize(problem: ResizeProblem, x: np.ndarray) -> np.ndarray:
    """The result in x's dtype."""
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
    """For each output place along H (axis 0) or W (axis 1), the input place it takes."""
    place = _places(problem, axis)
    if problem.nearest_mode == "floor":
        rounded = np.floor(place)
    elif problem.nearest_mode == "ceil":
        rounded = np.ceil(place)
    elif problem.nearest_mode == "round_prefer_floor":
        rounded = np.ceil(place - np.float32(0.5))
    else:
        rounded = np.floor(place + np.float32(0.5))
    return np.clip(rounded, 0, problem.input.shape[2 + axis] - 1).astype(np.int32)


def linear(problem: ResizeProblem, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each output place along an axis: the two input places it mixes, and the part that the
    second one has."""
    last = problem.input.shape[2 + axis] - 1
    place = np.clip(_places(problem, axis), 0, last)
    low = np.floor(place)
    return (low.astype(np.int32), np.minimum(low + 1, last).astype(np.int32),
            (place - low).astype(np.float32))


def _places(problem: ResizeProblem, axis: int) -> np.ndarray:
    """Where each output place lies in the input; in float32, whose rounding decides ties."""
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
