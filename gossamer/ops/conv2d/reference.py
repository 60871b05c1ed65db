"""Computes conv2d in float64 for comparison: a sum over taps, without im2col and tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import operand_arrays


def reference(problem: Conv2dProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the output of a convolution in float64."""
    x = np.asarray(inputs[0], dtype=np.float64)
    weight = np.asarray(weights["weight"], dtype=np.float64)
    top, left, bottom, right = problem.pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, groups = problem.batch, problem.groups
    height, width = problem.out_height, problem.out_width
    split = padded.reshape(n, groups, problem.channels // groups, *padded.shape[2:])
    weight = weight.reshape(groups, problem.out_channels // groups, problem.channels // groups,
                            *problem.kernel)
    total = np.zeros((n, groups, problem.out_channels // groups, height, width))
    for r in range(problem.kernel[0]):
        for s in range(problem.kernel[1]):
            window = split[..., _tap_window(r, 0, problem), _tap_window(s, 1, problem)]
            total += np.einsum("ngchw,gmc->ngmhw", window, weight[..., r, s], optimize=True)
    result = total.reshape(n, problem.out_channels, height, width)
    tensors = [np.asarray(t, dtype=np.float64) for t in inputs[1:]]
    constants = {name: np.asarray(a, dtype=np.float64) for name, a in weights.items()}
    operands = operand_arrays(problem.epilogue, constants, tensors, 4)
    return [problem.epilogue.expression.evaluate(result, *operands)[0]]


def _tap_window(tap: int, axis: int, problem: Conv2dProblem) -> slice:
    """Returns the padded rows (axis 0) or columns (axis 1) that one tap reads."""
    outputs = (problem.out_height, problem.out_width)[axis]
    first, stride = tap * problem.dilation[axis], problem.stride[axis]
    return slice(first, first + (outputs - 1) * stride + 1, stride)
