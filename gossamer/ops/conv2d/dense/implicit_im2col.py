"""Lists the layouts and makes the index tables of the kernels with implicit im2col, which multiply
the im2col matrix without storing it."""

from __future__ import annotations

import numpy as np

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.tensor import TensorSpec

Specs = tuple[TensorSpec, ...]

_LAYOUTS = (("NHWC", "NHWC"), ("NCHW", "NHWC"), ("NCHW", "NCHW"), ("NHWC", "NCHW"))
"""Pairs of layouts: the first is the input's; the second is the layout of the output and of the
epilogue's tensor operands."""


def specs_of_layouts(problem: Conv2dProblem) -> list[tuple[Specs, Specs]]:
    """Returns the inputs and the outputs of a variant for each pair of layouts."""
    specs: list[tuple[Specs, Specs]] = []
    for source, target in _LAYOUTS:
        x = problem.inputs[0].with_format(layout=source)
        y = problem.outputs[0].with_format(layout=target)
        specs.append(((x, *[y] * problem.epilogue.tensor_count), (y,)))
    return specs


def channels_in_memory(spec: TensorSpec) -> int:
    """Returns how many channels a pixel has in memory, the channels of other tensors included."""
    return spec.shape[1] + sum(spec.format.other_channels)


def k_table(problem: Conv2dProblem, x: TensorSpec, *, channels_last: bool) -> np.ndarray:
    """Returns a table (K, 2) of int32: for each k the offset in x from the corner of a window, and
    the position in the window as row << 16 | column.

    channels_last: True where k stands for (r, s, c), the tap's row and column and the input channel
    of the group; False where k stands for (c, r, s).
    """
    channels = problem.channels // problem.groups
    _, x_channel, x_row, x_column = x.strides
    c, r, s = np.meshgrid(np.arange(channels), np.arange(problem.kernel[0]),
                          np.arange(problem.kernel[1]), indexing="ij")
    rows, columns = r * problem.dilation[0], s * problem.dilation[1]
    offsets = c * x_channel + rows * x_row + columns * x_column
    table = np.stack([offsets, rows << 16 | columns], axis=-1).astype(np.int32)
    if channels_last:
        table = table.transpose(1, 2, 0, 3)
    return table.reshape(-1, 2)
