"""The algorithm few_channels_mma computes a convolution of few input channels, such as the first of
a network, on tensor cores in float16 from the float32 image itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import DIALECT, KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.common.tensor_cores import TENSOR_CORES
from gossamer.ops.copies import ASYNC_COPIES
from gossamer.ops.early_begin import EARLY_BEGIN
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("few_channels.cu")
_SHAPES = ((8, 16), (4, 16), (8, 32), (4, 32), (16, 16))
"""Rows and columns of outputs of a work-group, the columns a multiple of 16."""
_MOST_CHANNELS = 4
_MOST_DEPTH = 160
"""Inputs of a window, beyond which reading the image again costs little."""
_MOST_SHARED = 40 * 1024
"""Bytes of shared memory without asking for more than every device has."""
_MOST_GRID = 65535
"""Work-groups that a grid may have along y and along z."""
_WARPS = 4
_MULTIPLE = 8


class FewChannelsMma(Algorithm):
    """Computes a convolution of up to 4 input channels on tensor cores in float16 with float32
    sums. It reads float32 in NCHW, as networks get their images, and writes float16 in NHWC, so
    that the image is not converted before."""

    op = "conv2d"
    name = "few_channels_mma"

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.limits.mma:
            return f"{device.name} has no tensor cores for float16 and TF32 (sm_80 or newer)"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if problem.groups > 1 or problem.channels > _MOST_CHANNELS:
            return f"takes at most {_MOST_CHANNELS} input channels in one group"
        if problem.depth > _MOST_DEPTH:
            return f"{problem.depth} inputs of a window, takes at most {_MOST_DEPTH}"
        if problem.out_channels % _MULTIPLE:
            return f"{problem.out_channels} output channels, takes multiples of {_MULTIPLE}"
        if max(problem.out_height, problem.batch) > _MOST_GRID:
            return f"more than {_MOST_GRID} rows of results, or images"
        if not _fitting(problem):
            return "the pixels under the windows do not fit the shared memory"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        x = problem.inputs[0].with_format(layout="NCHW")
        y = problem.outputs[0].with_format(layout="NHWC", dtype="float16")
        for rows, columns in _fitting(problem):
            yield Variant((("rows", rows), ("columns", columns)),
                          (x, *[y] * problem.epilogue.tensor_count), (y,), "fp16")

    def variants_in(self, problem: Conv2dProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        return self.variants(problem, device) if "fp16" in precisions else iter(())

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        if variant.outputs[0].size == 0:
            return State(problem, variant, device)
        rows, columns = variant["rows"], variant["columns"]
        part, group = _part(problem), _group(problem)
        tiles = rows * columns // 16 // _WARPS
        kernel = device.compile(KernelSource.of(_SOURCE, "few_channels", {
            "HALVES": 1, "WARPS": _WARPS, "TILE_H": rows, "TILE_W": columns,
            "KERNEL_H": problem.kernel[0], "KERNEL_W": problem.kernel[1],
            "STRIDE_Y": problem.stride[0], "STRIDE_X": problem.stride[1],
            "DILATION_Y": problem.dilation[0], "DILATION_X": problem.dilation[1],
            "CHANNELS": problem.channels, "STEPS": _steps(problem), "OUT_PART": part,
            "GROUP_TILES": group // 8, "TILES_AT_ONCE": 2 if tiles % 2 == 0 and part <= 32 else 1,
            **epilogue_macros(problem.epilogue, tensor_dtype="float16"),
        }, architectures=("sm_80", "sm_100"), headers=(*DIALECT, EARLY_BEGIN, ASYNC_COPIES,
                                                      TENSOR_CORES),
            begins_early=True))
        packed = weights.packed("columns for few_channels_mma",
                                lambda arrays: _pack(arrays, problem))
        column_tiles = -(-problem.out_width // columns)
        launch = Launch(
            kernel, (column_tiles * (problem.out_channels // part),
                     -(-problem.out_height // rows), problem.batch), (32 * _WARPS, 1, 1),
            (input_buffer(0), packed, output_buffer(0), problem.out_channels, problem.height,
             problem.width, problem.out_height, problem.out_width, *problem.pads[:2], column_tiles,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)))
        return State(problem, variant, device, [launch])


def _steps(problem: Conv2dProblem) -> int:
    """Returns the steps of 16 inputs of a window."""
    return -(-problem.depth // 16)


def _group(problem: Conv2dProblem) -> int:
    """Returns the output channels whose columns share an order: up to 8 for each of four lanes."""
    return next(count for count in (32, 16, 8) if problem.out_channels % count == 0)


def _part(problem: Conv2dProblem) -> int:
    """Returns the output channels of a work-group, whose sums fit the registers."""
    group = _group(problem)
    most = 64 if problem.depth <= 64 else 32
    return max(count for count in range(group, max(group, most) + 1, group)
               if problem.out_channels % count == 0)


def _fitting(problem: Conv2dProblem) -> list[tuple[int, int]]:
    """Returns the rows and columns of outputs of a work-group whose inputs and weights fit its
    shared memory."""
    fitting = []
    for shape in _SHAPES:
        halo = math.prod((count - 1) * stride + (taps - 1) * dilation + 1
                         for count, stride, taps, dilation in zip(
                             shape, problem.stride, problem.kernel, problem.dilation, strict=True))
        weights = 32 * _steps(problem) * _part(problem) + 64 * _steps(problem)
        if 2 * problem.channels * halo + weights <= _MOST_SHARED:
            fitting.append(shape)
    return fitting


def _pack(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem) -> np.ndarray:
    """Returns the weights as two registers of 32 lanes for each part of the output channels, step
    of inputs and tile of 8 columns.

    Register h of lane l holds inputs 2 (l % 4) and the next of half h of the step for column l / 4.
    Column 2 q + i of tile t of a group is channel (2 q T + 2 t + i) of it, with T tiles a group.
    """
    weight = arrays["weight"].astype(np.float32).reshape(problem.out_channels, -1)
    padded = np.zeros((problem.out_channels, _steps(problem) * 16), np.float32)
    padded[:, :weight.shape[1]] = weight
    tiles = _group(problem) // 8
    # axes: group, q, tile, i, input
    columns = padded.reshape(-1, 4, tiles, 2, padded.shape[1]).transpose(0, 2, 1, 3, 4)
    # axes: part, tile, column, step, half, quarter, input
    parts = columns.reshape(problem.out_channels // _part(problem), -1, 8, _steps(problem), 2, 4, 2)
    with np.errstate(over="ignore"):
        ordered = np.ascontiguousarray(parts.transpose(0, 3, 1, 2, 5, 4, 6), np.float16)
    return ordered.reshape(-1).view(np.uint32)
