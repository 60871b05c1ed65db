"""grouped_mma: grouped convolution on tensor cores, with several groups per product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import PRECISIONS, Variant
from gossamer.ops.conv2d.common import (
    config_of,
    in_lane_order,
    rounded,
    rounded_to_tf32,
    sizes_of,
    specs_in,
    window_macros,
)
from gossamer.ops.conv2d.grouped.tiling import (
    WARPS,
    GroupedTile,
    Layout,
    Work,
    layout_of,
    works_of,
)
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.gpu import without_tensor_cores
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import KernelAlgorithm, divisor
from gossamer.ops.weights import Weights
from gossamer.tensor import rounded_up

_SOURCE = Path(__file__).with_name("grouped_mma.cu")
_PRECISIONS = ("fp16", "tf32")
_MULTIPLE = 4
_MOST_KERNEL = 7


class GroupedMma(KernelAlgorithm):
    """Grouped convolution on tensor cores in float16 or TF32, with float32 sums.

    One product computes at least 16 neighbouring output channels. It sums over the input channels
    of all groups of these output channels; the weights between different groups are zeros. An
    infinity or NaN in the input of a group therefore becomes NaN in the results of all groups of
    the same product.
    """

    op = "conv2d"
    name = "grouped_mma"
    reads_parts = True
    writes_parts = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device)) is not None:
            return reason
        if problem.groups == 1:
            return "needs several groups"
        if problem.group_channels <= 1:
            return "tensor cores are mostly idle with fewer than two input channels per group"
        for number, kind in ((problem.channels, "input"), (problem.out_channels, "output")):
            if number == 0 or number % _MULTIPLE:
                return f"needs a multiple of {_MULTIPLE} {kind} channels, has {number}"
        if max(problem.kernel) > _MOST_KERNEL:
            return (f"needs windows of at most {_MOST_KERNEL} rows and columns, has "
                    f"{problem.kernel[0]}x{problem.kernel[1]}")
        if not any(_works(problem, precision, device) for precision in _PRECISIONS):
            return "the pixels and weights of a tile do not fit the shared memory"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        return self.variants_in(problem, device, PRECISIONS)

    def variants_in(self, problem: Conv2dProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        for precision in _PRECISIONS:
            if precision in precisions:
                for work in _works(problem, precision, device):
                    variant = Variant(config_of(work.tile), *specs_in(problem, "NHWC", "NHWC"),
                                      precision)
                    yield variant.as_fp16 if precision == "fp16" else variant

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        return _work(problem, variant).expected_us(device.limits)

    def kernel_launches(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        x, y, precision = variant.inputs[0], variant.outputs[0], variant.precision
        work = _work(problem, variant)
        layout, tile = work.layout, work.tile
        units = rounded_up(layout.units, tile.units)
        x_image, _, x_row, x_column = x.strides
        y_image, _, y_row, y_column = y.strides
        return [Launch(
            device.compile(_source(work, variant, device.limits)),
            (work.groups(device.limits), work.chunks), (32 * WARPS, 1),
            (input_buffer(0),
             weights.packed(f"{units} units of {layout.unit} for grouped_mma {precision}",
                            lambda arrays: pack(arrays, layout, units)),
             output_buffer(0), work.tiles, *divisor(work.tiles_x), *divisor(work.tiles_y),
             problem.channels, problem.out_channels, problem.height, problem.width,
             problem.out_height, problem.out_width, *problem.pads[:2], x.offset, x_image, x_row,
             x_column, y.offset, y_image, y_row, y_column,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)),
            work.shared_bytes)]


def _works(problem: Conv2dProblem, precision: str, device: Device) -> tuple[Work, ...]:
    """Return the candidates in a precision, or () if the channels do not fill whole words."""
    if problem.channels % layout_of(problem, precision, 2).word_channels:
        return ()
    return works_of(problem, precision, device.limits)


def _work(problem: Conv2dProblem, variant: Variant) -> Work:
    tile = sizes_of(GroupedTile, variant)
    return Work(layout_of(problem, variant.precision, tile.tiles), tile)


def _source(work: Work, variant: Variant, limits: Limits) -> KernelSource:
    problem = work.layout.problem
    return KernelSource.of(_SOURCE, "grouped_mma", {
        **{key.upper(): value for key, value in variant.config},
        "HALVES": int(variant.precision == "fp16"),
        "SPAN": work.layout.span,
        "PIECES": work.pieces,
        "GROUP_IN": problem.group_channels,
        "GROUP_OUT": problem.group_out_channels,
        **window_macros(problem),
        "WARPS": WARPS,
        "PER_UNIT": work.at_once(limits),
        **epilogue_macros(problem.epilogue, tensor_dtype=variant.outputs[0].dtype),
    }, architectures=("sm_80", "sm_100"), dynamic_shared=True)


def pack(arrays: Mapping[str, np.ndarray], layout: Layout, units: int) -> np.ndarray:
    """Return the weights as registers of the 32 lanes of a warp.

    The axes are, from the outermost: units, columns of the window, steps of two words of a pixel,
    rows of the window, pairs of tiles of 8 output channels, lanes, tiles of a pair, words of a
    step, and the numbers of a register. A register holds two numbers in float16, and one in TF32.

    Lane l has output channel l // 4 of a tile, and register l % 4 of each word. The output channels
    of a unit are ordered by `in_lane_order`.

    units: number of units, including surplus units of zeros that pad the last work-group.
    """
    problem, words = layout.problem, layout.word_channels
    weight = np.asarray(arrays["weight"], np.float32)
    channels = np.arange(problem.out_channels)
    unit = channels // layout.unit
    firsts = np.array([layout.first_word(i) for i in range(layout.units)]) * words
    begins = channels // problem.group_out_channels * problem.group_channels - firsts[unit]
    filled = np.zeros((units, layout.unit, layout.span * words, *problem.kernel), np.float32)
    filled[unit[:, None], (channels % layout.unit)[:, None],
           begins[:, None] + np.arange(problem.group_channels)] = weight
    # axes: unit, pair, tile, column, step, word, quarter, number, row and column of the window
    split = in_lane_order(filled, layout.unit // 8, axis=1).reshape(
        units, layout.unit // 16, 2, 8, layout.span // 2, 2, 4, words // 4, *problem.kernel)
    ordered = np.ascontiguousarray(split.transpose(0, 9, 4, 8, 1, 3, 6, 2, 5, 7)).reshape(-1)
    return rounded(ordered) if words == 8 else rounded_to_tf32(ordered)
