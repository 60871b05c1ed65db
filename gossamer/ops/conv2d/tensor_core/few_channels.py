"""few_channels_mma: convolution of few input channels on tensor cores in float16.

Typically, this is the first convolution of a network. The kernel reads the float32 image itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.common import in_lane_order, rounded
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.gpu import without_tensor_cores
from gossamer.ops.image import image_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("few_channels.cu")
_SHAPES = ((8, 16), (4, 16), (8, 32), (4, 32), (16, 16))
"""Rows and columns of outputs of a work-group. The number of columns is a multiple of 16. On every
device, shapes are tried in this order, which is a rule of thumb."""
_MOST_CHANNELS = 4
_MOST_DEPTH = 192
"""Maximum number of values of a window, including the zeros that pad its rows. The limit is a rule
of thumb: in larger windows, the products take so long that a separate conversion of the image would
hardly add to the time."""
_MOST_PART = 64
"""Maximum number of output channels whose sums fit the registers of a work-group."""
_MOST_SHARED = 40 * 1024
"""Maximum bytes of shared memory of a work-group. Every device allows this size without an
opt-in."""
_MOST_GRID = 65535
"""Maximum number of work-groups of a grid along y and along z."""
_WARPS = 4
_MULTIPLE = 8


class FewChannelsMma(Algorithm):
    """Convolution of up to 4 input channels in float16, with float32 sums.

    The kernel reads float32 in NCHW, the usual format of a network's images, and writes float16 in
    NHWC, so that no other kernel has to convert the image.
    """

    op = "conv2d"
    name = "few_channels_mma"

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device)) is not None:
            return reason
        if problem.groups > 1 or problem.channels > _MOST_CHANNELS:
            return f"needs one group of at most {_MOST_CHANNELS} input channels"
        if problem.dilation != (1, 1):
            return "needs windows without dilation"
        if (depth := _depth(problem)) > _MOST_DEPTH:
            return (f"needs windows of at most {_MOST_DEPTH} values, has {problem.channels}x"
                    f"{problem.kernel[0]}x{problem.kernel[1]}, which is {depth} with padding")
        if problem.out_channels % _MULTIPLE:
            return (f"needs a multiple of {_MULTIPLE} output channels, has "
                    f"{problem.out_channels}")
        if max(problem.out_height, problem.batch) > _MOST_GRID:
            return f"needs at most {_MOST_GRID} rows of results and at most {_MOST_GRID} images"
        if not _fitting(problem):
            return "the inputs and weights of a tile do not fit the shared memory"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        x = problem.inputs[0].with_format(layout="NCHW")
        y = problem.outputs[0].with_format(layout="NHWC", dtype="float16")
        for part, rows, columns in _fitting(problem):
            yield Variant((("rows", rows), ("columns", columns), ("channels", part)),
                          (x, *[y] * problem.epilogue.tensor_count), (y,), "fp16")

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        launches = self.launches(weights, problem, variant, device, image_macros(
            variant.inputs[0], None), [])
        return State(problem, variant, device, launches)

    def launches(self, weights: Weights, problem: Conv2dProblem, variant: Variant, device: Device,
                 image: Mapping[str, object], given: Sequence[Argument]) -> list[Launch]:
        """Return one launch, or none if the output is empty.

        image: the macros that describe how the kernel reads the image.
        given: kernel arguments for the arithmetic that computes the image's values.
        """
        if variant.outputs[0].size == 0:
            return []
        rows, columns = variant["rows"], variant["columns"]
        part, group = variant["channels"], _group(problem)
        tiles = rows * columns // 16 // _WARPS
        kernel = device.compile(KernelSource.of(_SOURCE, "few_channels", {
            "HALVES": 1, "WARPS": _WARPS, "TILE_H": rows, "TILE_W": columns,
            "KERNEL_H": problem.kernel[0], "KERNEL_W": problem.kernel[1],
            "STRIDE_Y": problem.stride[0], "STRIDE_X": problem.stride[1],
            "ROW_WIDTH": _row_width(problem), "CHANNELS": problem.channels,
            "STEPS": _steps(problem), "OUT_PART": part, "GROUP_TILES": group // 8,
            "TILES_AT_ONCE": 2 if tiles % 2 == 0 else 1,
            **epilogue_macros(problem.epilogue, tensor_dtype="float16"), **image,
        }, architectures=("sm_80", "sm_100")))
        packed = weights.packed(f"{part} columns for few_channels_mma",
                                lambda arrays: _pack(arrays, problem, part))
        column_tiles = -(-problem.out_width // columns)
        return [Launch(
            kernel, (column_tiles * (problem.out_channels // part),
                     -(-problem.out_height // rows), problem.batch), (32 * _WARPS, 1, 1),
            (input_buffer(0), packed, output_buffer(0), problem.out_channels, problem.height,
             problem.width, problem.out_height, problem.out_width, *problem.pads[:2], column_tiles,
             *given, *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)))]


def _row_width(problem: Conv2dProblem) -> int:
    """Return the padded length of a window's row in one channel.

    Zeros pad the row to a power of 2, at least 2.
    """
    return max(2, 1 << (problem.kernel[1] - 1).bit_length())


def _depth(problem: Conv2dProblem) -> int:
    """Return the number of values of a window, with the padding of its rows."""
    return problem.channels * problem.kernel[0] * _row_width(problem)


def _steps(problem: Conv2dProblem) -> int:
    """Return the number of steps of 16 values of a window."""
    return -(-_depth(problem) // 16)


def _group(problem: Conv2dProblem) -> int:
    """Return the number of output channels of a group. Channels are permuted within their group.

    The permutation assigns up to 8 neighbouring channels to each of four lanes.
    """
    return next(count for count in (32, 16, 8) if problem.out_channels % count == 0)


def _parts(problem: Conv2dProblem) -> list[int]:
    """Return one or two numbers of output channels that a work-group may compute.

    The first is the largest number whose sums fit the registers. With more channels per work-group,
    fewer work-groups read the same part of the image. The second number is for small batches. It is
    smaller than the first, but at least half of it.
    """
    group = _group(problem)
    fitting = [count for count in range(group, _MOST_PART + 1, group)
               if problem.out_channels % count == 0]
    return [count for count in reversed(fitting) if 2 * count >= fitting[-1]][:2]


def _fitting(problem: Conv2dProblem) -> list[tuple[int, int, int]]:
    """Return the sizes of a work-group that fit shared memory.

    Each entry is (output channels, rows of outputs, columns of outputs).
    """
    fitting = []
    for part, (rows, columns) in itertools.product(_parts(problem), _SHAPES):
        height, width = problem.window(0, rows), problem.window(1, columns)
        pitch = -(-width // 2) * 2
        # with an odd stride, shared memory holds two copies of all values
        copies = 1 + problem.stride[1] % 2
        numbers = copies * (pitch * (problem.channels * height + 16) + 96)
        if 2 * numbers + 32 * _steps(problem) * part <= _MOST_SHARED:
            fitting.append((part, rows, columns))
    return fitting


def _pack(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem, part: int) -> np.ndarray:
    """Return the weights as registers of the 32 lanes of a warp.

    The axes are, from the outermost: parts of `part` output channels, steps of 16 values of a
    window, and tiles of 8 output channels. Each lane has two registers per tile. If a part has an
    even number of tiles, a lane's registers of two neighbouring tiles are adjacent. The values of a
    window are ordered by row, channel and column, with zeros as the padding of each row.

    Register h of lane l for a tile holds values 2 (l % 4) and 2 (l % 4) + 1 of half h of the step.
    These values belong to output channel l // 4 of the tile. The output channels of a group are
    ordered by `in_lane_order`.
    """
    lines = arrays["weight"].astype(np.float32).transpose(0, 2, 1, 3)
    filled = np.zeros((*lines.shape[:3], _row_width(problem)), np.float32)
    filled[..., :problem.kernel[1]] = lines
    padded = np.zeros((problem.out_channels, _steps(problem) * 16), np.float32)
    padded[:, :_depth(problem)] = filled.reshape(problem.out_channels, -1)
    columns = in_lane_order(padded, _group(problem) // 8)
    # axes: part, tiles, tile, column, step, half, quarter, number
    parts = columns.reshape(problem.out_channels // part, -1, 1 if part % 16 else 2, 8,
                            _steps(problem), 2, 4, 2)
    ordered = np.ascontiguousarray(rounded(parts.transpose(0, 4, 1, 3, 6, 2, 5, 7)))
    return ordered.reshape(-1).view(np.uint32)
