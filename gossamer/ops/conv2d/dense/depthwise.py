"""The algorithm depthwise computes a depthwise convolution with its windows in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile, divisor, layout_variants
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("depthwise.cl")
_WORK_GROUP = 64
_SHAPES = ((4, 1), (4, 2), (4, 4), (2, 2), (1, 1))
_HALF_SHAPES = {1: ((4, 2), (4, 4), (2, 2), (4, 1), (1, 1)),
                2: ((4, 1), (2, 2), (4, 2), (4, 4), (1, 1))}
"""Rows and columns of outputs of a work-item, in the order in which large problems try them:
`_HALF_SHAPES` for float16, by the stride (a stride above 2 counts as 2), and else `_SHAPES`. The
shapes that are fastest on an H200 come first. On every device each shape may be measured."""
_MAX_TAPS = 49
_EIGHTFOLD_TAPS = 9
"""The most taps for which registers hold the weights of eight channels."""
_MAX_WIDTH = 64


class Depthwise(Algorithm):
    """Computes a depthwise convolution, which is memory-bound: each work-item holds the input
    window of a few neighbouring outputs in registers and loads every input once."""

    op = "conv2d"
    name = "depthwise"
    reads_parts = True
    writes_parts = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if not problem.is_depthwise:
            return f"needs one group a channel, has {problem.groups} for {problem.channels}"
        if problem.kernel[0] * problem.kernel[1] > _MAX_TAPS:
            return f"more than {_MAX_TAPS} taps do not fit the registers"
        if _window_width(problem, max(columns for _, columns in _SHAPES)) > _MAX_WIDTH:
            return f"windows wider than {_MAX_WIDTH} columns do not fit the registers"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        return _variants(problem, device, _SHAPES)

    def variants_in(self, problem: Conv2dProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        shapes = _HALF_SHAPES[min(2, max(problem.stride))] if "fp16" in precisions else _SHAPES
        return (variant for variant in _variants(problem, device, shapes)
                if variant.precision in precisions)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        x, y = variant.inputs[0], variant.outputs[0]
        if y.size == 0:
            return State(problem, variant, device)
        nhwc = x.layout == "NHWC"
        vector = _vector(problem, variant)
        source = KernelSource.of(_SOURCE, "depthwise", {
            "ROWS": variant["rows"],
            "COLUMNS": variant["columns"],
            "KERNEL_H": problem.kernel[0],
            "KERNEL_W": problem.kernel[1],
            "STRIDE_Y": problem.stride[0],
            "STRIDE_X": problem.stride[1],
            "DILATION_Y": problem.dilation[0],
            "DILATION_X": problem.dilation[1],
            "MULTIPLIER": problem.out_channels // problem.channels,
            "VECTOR": vector,
            "CHANNELS_FIRST": int(nhwc),
            "WORK_GROUP_SIZE": _WORK_GROUP,
            "HALVES": int(variant.precision == "fp16"),
            **epilogue_macros(problem.epilogue, tensor_dtype=y.dtype),
        })
        packed = weights.packed("taps by channels, depthwise", pack_taps)
        units = problem.out_channels // vector
        tiles_y = -(-problem.out_height // variant["rows"])
        tiles_x = -(-problem.out_width // variant["columns"])
        items = problem.batch * tiles_y * tiles_x * units
        launch = Launch(
            device.compile(source), (-(-items // _WORK_GROUP),), (_WORK_GROUP,),
            (input_buffer(0), packed, output_buffer(0), items, *divisor(units), *divisor(tiles_x),
             *divisor(tiles_y), -(-problem.out_channels // 4) * 4, problem.height, problem.width,
             problem.out_height, problem.out_width, *problem.pads[:2], x.offset, *x.strides,
             y.offset, *y.strides,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)))
        return State(problem, variant, device, [launch])


def _variants(problem: Conv2dProblem, device: Device,
              shapes: Sequence[tuple[int, int]]) -> Iterator[Variant]:
    """Yields the variants of all shapes. shapes: the shapes in their order for large problems."""
    # tall tiles reuse input rows; small problems need as many work-items as possible
    tall_items = problem.outputs[0].size // 16
    is_large = tall_items >= 512 * device.limits.compute_units
    for rows, columns in shapes if is_large else _SHAPES[::-1]:
        variants = layout_variants(problem, ("NHWC", "NCHW"),
                                   (("rows", rows), ("columns", columns)))
        yield from variants
        yield from (variant.as_fp16 for variant in variants)


def _vector(problem: Conv2dProblem, variant: Variant) -> int:
    """Returns the number of channels of a work-item: 8 or 4 if these channels lie side by side in
    memory and take 16 bytes or less, else 1."""
    x = variant.inputs[0]
    if x.layout != "NHWC" or problem.out_channels != problem.channels:
        return 1
    taps = problem.kernel[0] * problem.kernel[1]
    most = 16 // x.stored_dtype.itemsize if taps <= _EIGHTFOLD_TAPS else 4
    return next(count for count in (most, 4, 1) if problem.channels % count == 0)


def _window_width(problem: Conv2dProblem, columns: int) -> int:
    """Returns the number of input columns that a work-item holds for `columns` outputs of a row."""
    return ((columns - 1) * problem.stride[1]
            + (problem.kernel[1] - 1) * problem.dilation[1] + 1)


def pack_taps(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the weights as (taps, output channels rounded up to 4)."""
    weight = arrays["weight"].astype(np.float32)
    m = weight.shape[0]
    packed = np.zeros((weight.shape[2] * weight.shape[3], -(-m // 4) * 4), dtype=np.float32)
    packed[:, :m] = weight.reshape(m, -1).T
    return packed
