"""Helpers shared by algorithms of conv2d: layouts, the im2col index table, rounding."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.tensor import TensorSpec

Sizes = TypeVar("Sizes")
Specs = tuple[TensorSpec, ...]
_LAYOUTS = (("NHWC", "NHWC"), ("NCHW", "NHWC"), ("NCHW", "NCHW"), ("NHWC", "NCHW"))
"""Pairs of the input's layout and the output's layout."""


def config_of(sizes: Any) -> tuple[tuple[str, int | str], ...]:
    """Return the fields of a dataclass, such as a tile, as a config."""
    return tuple((field.name, getattr(sizes, field.name)) for field in fields(sizes))


def sizes_of(kind: type[Sizes], variant: Variant) -> Sizes:
    """Return a variant's config as a dataclass of type `kind`."""
    return kind(**dict(variant.config))


def window_macros(problem: Conv2dProblem) -> dict[str, int]:
    """Return a kernel's macros for the filter size, the stride and the dilation."""
    return {"KERNEL_H": problem.kernel[0], "KERNEL_W": problem.kernel[1],
            "STRIDE_Y": problem.stride[0], "STRIDE_X": problem.stride[1],
            "DILATION_Y": problem.dilation[0], "DILATION_X": problem.dilation[1]}


def specs_in(problem: Conv2dProblem, source: str, target: str) -> tuple[Specs, Specs]:
    """Return the inputs and the outputs of a variant.

    source: layout of the input.
    target: layout of the output and of the epilogue's tensor operands.
    """
    y = problem.outputs[0].with_format(layout=target)
    return ((problem.inputs[0].with_format(layout=source), *[y] * problem.epilogue.tensor_count),
            (y,))


def specs_of_layouts(problem: Conv2dProblem) -> list[tuple[Specs, Specs]]:
    """Return the inputs and the outputs of a variant for each pair of layouts."""
    return [specs_in(problem, *layouts) for layouts in _LAYOUTS]


def panels(weights: np.ndarray, blocks: int, lanes: int) -> np.ndarray:
    """Return weights in panels of adjacent output channels.

    The result is (groups, blocks, taps, depth, lanes).

    weights: (groups, output channels of a group, depth, taps).
    blocks: number of panels of a group; the last one is padded with zeros.
    lanes: output channels of a panel.
    """
    padded = np.zeros((len(weights), blocks * lanes, *weights.shape[2:]), weights.dtype)
    padded[:, :weights.shape[1]] = weights
    by_block = padded.reshape(len(weights), blocks, lanes, *weights.shape[2:])
    return np.ascontiguousarray(by_block.transpose(0, 1, 4, 3, 2))


def in_lane_order(weights: np.ndarray, fragments: int, axis: int = 0) -> np.ndarray:
    """Return weights with output channels in an order that gives each lane neighbouring channels.

    In the results of tensor cores, lane q of the four lanes that share a row has columns 2 q and
    2 q + 1 of each fragment of 8 columns. In each block of `fragments` fragments, column
    8 f + 2 q + j is therefore channel 2 q * fragments + 2 f + j, where j is 0 or 1.

    axis: axis of the output channels, whose number is a multiple of 8 * fragments.
    """
    before, after = weights.shape[:axis], weights.shape[axis + 1:]
    blocks = weights.reshape(*before, -1, 4, fragments, 2, *after)
    return blocks.swapaxes(axis + 1, axis + 2).reshape(weights.shape)


def channels_in_memory(spec: TensorSpec) -> int:
    """Return the number of channels that each pixel has in memory.

    These channels include channels of other tensors that share the memory.
    """
    return spec.shape[1] + sum(spec.format.other_channels)


def k_table(problem: Conv2dProblem, x: TensorSpec, *, channels_last: bool) -> np.ndarray:
    """Return the index table of im2col, (K, 2) in int32.

    Entry k holds the offset in x from a window's first pixel, and the position within the window as
    row << 16 | column.

    channels_last: True if k runs over (r, s, c): the row and the column of the tap, and the
    input channel within the group. False if k runs over (c, r, s).
    """
    _, x_channel, x_row, x_column = x.strides
    c, r, s = np.meshgrid(np.arange(problem.group_channels), *map(np.arange, problem.kernel),
                          indexing="ij")
    rows, columns = r * problem.dilation[0], s * problem.dilation[1]
    offsets = c * x_channel + rows * x_row + columns * x_column
    table = np.stack([offsets, rows << 16 | columns], axis=-1).astype(np.int32)
    if channels_last:
        table = table.transpose(1, 2, 0, 3)
    return table.reshape(-1, 2)


def rounded(values: np.ndarray, dtype: str | np.dtype[Any] = "float16") -> np.ndarray:
    """Convert values to a dtype; values beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def rounded_to_tf32(values: np.ndarray) -> np.ndarray:
    """Round float32 to the 10 mantissa bits of TF32, ties to even."""
    bits = values.view(np.uint32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint32(0x1FFF)
    return np.where(np.isfinite(values), rounded, bits).view(np.float32)
