"""The im2col matrix of a convolution, tap by tap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.im2col.problem import Im2colProblem


def reference(problem: Im2colProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [im2col(problem, np.asarray(inputs[0], np.float64))]


def im2col(problem: Im2colProblem, x: np.ndarray) -> np.ndarray:
    """Returns the matrices (N, C R S, E F) of images (N, C, H, W), in the dtype of x."""
    conv = problem.convolution
    top, left, bottom, right = conv.pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, [(taps - 1) * step + 1 for taps, step in
                 zip(conv.kernel, conv.dilation, strict=True)], (2, 3))
    taps = windows[:, :, :: conv.stride[0], :: conv.stride[1],
                   :: conv.dilation[0], :: conv.dilation[1]]
    return taps.transpose(0, 1, 4, 5, 2, 3).reshape(problem.outputs[0].shape)
