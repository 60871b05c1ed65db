"""Pooling in NumPy, one position in the window after another: in float64 for the reference, in
float32 for the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.pool.problem import PoolProblem


def reference(problem: PoolProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [pool(problem, np.asarray(inputs[0], np.float64))]


def pool(problem: PoolProblem, x: np.ndarray) -> np.ndarray:
    """Returns the result (N, C, E, F) for x (N, C, H, W), in the dtype of x."""
    e, f = problem.out_height, problem.out_width
    is_max = problem.kind == "max"
    result = np.full((*x.shape[:2], e, f), -np.inf if is_max else 0, x.dtype)
    for r in range(problem.kernel[0]):
        rows, ys = taps_along(problem, 0, r)
        for s in range(problem.kernel[1]):
            columns, xs = taps_along(problem, 1, s)
            window = result[:, :, rows, columns]
            values = x[:, :, ys, xs]
            if is_max:
                np.maximum(window, values, out=window)
            else:
                window += values
    if not is_max:
        counts = np.outer(counts_along(problem, 0), counts_along(problem, 1)).astype(x.dtype)
        with np.errstate(invalid="ignore"):
            result /= counts
    return result


def taps_along(problem: PoolProblem, axis: int, tap: int) -> tuple[slice, slice]:
    """Returns two slices along an axis: the outputs for which a tap of the window lies in the
    input, and the inputs that the tap reads for these outputs.

    axis: 0 for height, 1 for width.
    tap: position in the window along the axis.
    """
    out = problem.outputs[0].shape[2 + axis]
    size, stride = problem.input.shape[2 + axis], problem.stride[axis]
    origin = tap * problem.dilation[axis] - problem.pads[axis]
    first = max(0, -(origin // stride))
    last = min(out - 1, (size - 1 - origin) // stride)
    if last < first:
        return slice(0, 0), slice(0, 0)
    start = first * stride + origin
    return slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)


def counts_along(problem: PoolProblem, axis: int) -> np.ndarray:
    """Returns for each output along an axis the number of taps that its average counts: taps in the
    input, and with count_include_pad also taps in the padding."""
    out = problem.outputs[0].shape[2 + axis]
    before, after = problem.pads[axis], problem.pads[2 + axis]
    low, high = (-before, after) if problem.count_include_pad else (0, 0)
    starts = np.arange(out) * problem.stride[axis] - before
    places = starts[:, None] + np.arange(problem.kernel[axis]) * problem.dilation[axis]
    return ((places >= low) & (places < problem.input.shape[2 + axis] + high)).sum(axis=1)
