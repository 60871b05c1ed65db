"""Transposed convolution in NumPy: in float64 for the reference, in float32 for the host. Every
tap of the filter scatters the input over the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem


def reference(problem: ConvTranspose2dProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    weights64 = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    return [conv_transpose2d(problem, np.asarray(inputs[0], np.float64), weights64)]


def conv_transpose2d(problem: ConvTranspose2dProblem, x: np.ndarray,
                     weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the result in the dtype of x."""
    n, channels, height, width = x.shape
    groups, m = problem.groups, problem.out_channels
    x = x.reshape(n, groups, channels // groups, height * width)
    weight = weights["weight"].reshape(groups, channels // groups, m // groups, *problem.kernel)
    sizes = [(size - 1) * stride + (taps - 1) * dilation + 1 + extra
             for size, stride, taps, dilation, extra
             in zip((height, width), problem.stride, problem.kernel, problem.dilation,
                    problem.output_padding, strict=True)]
    uncropped = np.zeros((n, m, *sizes), x.dtype)
    for r in range(problem.kernel[0]):
        for s in range(problem.kernel[1]):
            product = weight[..., r, s].swapaxes(1, 2) @ x
            y0, x0 = r * problem.dilation[0], s * problem.dilation[1]
            uncropped[:, :, y0 : y0 + height * problem.stride[0] : problem.stride[0],
                  x0 : x0 + width * problem.stride[1] : problem.stride[1]][
                      :, :, :height, :width] += product.reshape(n, m, height, width)
    top, left = problem.pads[:2]
    result = uncropped[:, :, top : top + problem.out_height, left : left + problem.out_width]
    if problem.bias:
        result = result + weights["bias"][:, None, None]
    return result
