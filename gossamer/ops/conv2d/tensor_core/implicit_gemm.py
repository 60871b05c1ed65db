"""pointwise_mma and implicit_gemm_mma: convolution as a matrix product on tensor cores.

The left matrix is the im2col matrix. This matrix is never stored: its values are copied from the
input during the product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from gossamer.device.base import Argument, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import PRECISIONS, Algorithm, State, Variant
from gossamer.ops.conv2d.common import (
    channels_in_memory,
    config_of,
    in_lane_order,
    k_table,
    rounded,
    rounded_to_tf32,
    sizes_of,
    specs_in,
)
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.tensor_core.tiling import (
    CHUNKS,
    MmaTile,
    bytes_at_once,
    columns_at_once,
    copies,
    expected_us,
    fitting,
    lines_of,
    stages_of,
    stored_at_once,
    vector_of,
)
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.gpu import without_tensor_cores
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import divisor
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("implicit_gemm.cu")
_PRECISIONS = ("tf32", "fp16")
_MOST_ROWS = 2**15
_OUTSIDE = 0x7fff
"""A row index that is outside of every image."""


class _MmaProduct(Algorithm):
    """Convolution on tensor cores in TF32 or float16, with float32 sums."""

    op = "conv2d"
    reads_parts = True
    writes_parts = True
    operand_parts = True
    _pointwise: ClassVar[bool]

    def reads_parts_of(self, problem: Conv2dProblem) -> bool:
        # the columns of a part are not adjacent
        return columns_at_once(problem) == 1 or problem.channels % vector_of("fp16") == 0

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device)) is not None:
            return reason
        if (problem.kernel == (1, 1) and not any(problem.pads)) != self._pointwise:
            return ("needs a 1x1 window without padding" if self._pointwise else
                    "1x1 windows without padding are computed by pointwise_mma")
        if problem.is_depthwise:
            return "tensor cores are mostly idle with one input channel per group"
        if max(problem.height + problem.pads[0], problem.window(0), problem.window(1)
               ) >= _MOST_ROWS:
            return f"the image or the window has {_MOST_ROWS} rows or more"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        return self.variants_in(problem, device, PRECISIONS)

    def variants_in(self, problem: Conv2dProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        forms = [(precision, layout) for precision in _PRECISIONS if precision in precisions
                 for layout in _layouts(problem, precision)]

        def least_us(tile: MmaTile) -> float:
            # tiles are ordered by their expected time in the lowest precision, which is the fastest
            return expected_us(problem, tile, *forms[-1], device.limits)

        tiles = {form: fitting(problem, *form, device.limits) for form in forms}
        for tile in sorted(dict.fromkeys(itertools.chain(*tiles.values())), key=least_us):
            for form in forms:
                if tile in tiles[form]:
                    yield _variant(problem, tile, *form)

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        return expected_us(problem, sizes_of(MmaTile, variant), variant.precision,
                           variant.inputs[0].layout, device.limits)

    def kernel_sources(self, problem: Conv2dProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        return (_source(problem, variant, {}),) if variant.outputs[0].size else ()

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        return State(problem, variant, device,
                     self.launches(weights, problem, variant, device, {}, ()))

    def launches(self, weights: Weights, problem: Conv2dProblem, variant: Variant, device: Device,
                 macros: Mapping[str, object],
                 arguments: Sequence[Argument | Callable[..., Argument]]) -> list[Launch]:
        """Return the launch of a variant; no launch if the output is empty.

        If the epilogue has one tensor operand, the operand may be a part of a larger tensor.

        macros, arguments: further macros and arguments of the kernel.
        """
        x, y, precision = variant.inputs[0], variant.outputs[0], variant.precision
        if y.size == 0:
            return []
        operand = variant.inputs[1] if problem.epilogue.tensor_count else y
        tile = sizes_of(MmaTile, variant)
        kernel = device.compile(_source(problem, variant, macros))
        packed = weights.packed(f"lines for mma {precision}",
                                lambda arrays: packed_lines(arrays, problem, precision))
        table = None
        if not _reads_pixels(problem, variant):
            values = _values_at_once(problem, variant)
            table = weights.packed(
                f"table of k for mma {x.strides[1:]} {problem.dilation} {precision}",
                lambda _: table_of_lines(problem, x, precision, values))
        x_image, x_channel, x_row, x_column = x.strides
        tiles_p, tiles_m = tile.tiles_of(problem)
        tiles = tiles_p * tiles_m
        groups = tiles * tile.cluster
        if tile.takes_several:
            # launch only work-groups that run at the same time; each computes several tiles
            at_once = tile.at_once(stages_of(problem, precision), device.limits)
            groups = min(tiles, max(1, at_once // problem.groups))
            if tile.keeps_weights:
                # the tiles of a work-group have the same output channels
                groups = max(tiles_m, groups // tiles_m * tiles_m)
        launch = Launch(
            kernel, (groups, problem.groups), (tile.work_group, 1),
            (input_buffer(0), packed, output_buffer(0), table, tiles, *divisor(tiles_m),
             problem.pixels, problem.group_out_channels, lines_of(problem, precision),
             problem.depth, stages_of(problem, precision),
             problem.height, problem.width, *divisor(problem.image_pixels),
             *divisor(problem.out_width), *problem.stride, *problem.pads[:2], x_image, x_row,
             x_column, x_channel * problem.group_channels, x.offset, y.offset,
             channels_in_memory(y), operand.offset, channels_in_memory(operand), *arguments,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)),
            tile.shared_bytes(stages_of(problem, precision)))
        return [launch]


class PointwiseMma(_MmaProduct):
    """1x1 convolution on tensor cores in TF32 or float16, with float32 sums.

    In TF32, inputs and weights are rounded, not truncated, before they are multiplied.
    """

    name = "pointwise_mma"
    _pointwise = True


class ImplicitGemmMma(_MmaProduct):
    """Convolution on tensor cores in TF32 or float16, except 1x1 convolution without padding.

    Sums are float32. In TF32, inputs and weights are rounded, not truncated, before they are
    multiplied.
    """

    name = "implicit_gemm_mma"
    _pointwise = False


def _layouts(problem: Conv2dProblem, precision: str) -> tuple[str, ...]:
    """Return the layouts in which the input is read.

    The layouts are NHWC and, if the bytes of a group's channels are not a multiple of 16, also
    NCHW.
    """
    is_whole = problem.group_channels % vector_of(precision) == 0
    return ("NHWC",) if is_whole else ("NCHW", "NHWC")


def _variant(problem: Conv2dProblem, tile: MmaTile, precision: str, layout: str) -> Variant:
    """Return the variant of a tile for an input in the given layout."""
    variant = Variant(config_of(tile), *specs_in(problem, layout, "NHWC"), precision)
    return variant.as_fp16 if precision == "fp16" else variant


def _values_at_once(problem: Conv2dProblem, variant: Variant) -> int:
    """Return the number of adjacent values that are copied at once."""
    x = variant.inputs[0]
    if not copies(problem, variant.precision, x.layout):
        return 1
    return bytes_at_once(problem, variant.precision) // x.stored_dtype.itemsize


def _reads_pixels(problem: Conv2dProblem, variant: Variant) -> bool:
    """Return whether each output reads only adjacent values of a single pixel."""
    return (problem.kernel == (1, 1) and not any(problem.pads)
            and variant.inputs[0].layout == "NHWC")


def _source(problem: Conv2dProblem, variant: Variant,
            others: Mapping[str, object]) -> KernelSource:
    tile, precision = sizes_of(MmaTile, variant), variant.precision
    vector, out_vector = vector_of(precision), stored_at_once(problem, precision)
    macros = {key.upper(): value for key, value in variant.config}
    tensors = [i for i, kind in enumerate(problem.epilogue.operands) if kind == "tensor"]
    is_staged = (len(tensors) == 1 and out_vector == vector
                 and tile.stages_ahead_of_operand(precision) >= 0)
    return KernelSource.of(_SOURCE, "implicit_gemm", {
        **macros,
        "HALVES": int(precision == "fp16"),
        "TF32": 1,
        "POINTWISE": int(_reads_pixels(problem, variant)),
        "AT_ONCE": _values_at_once(problem, variant),
        "LOADS": int(not copies(problem, precision, variant.inputs[0].layout)),
        "PIXELS_FIRST": int(variant.inputs[0].layout == "NCHW"),
        "OUT_VECTOR": out_vector,
        "STAGED": int(is_staged),
        "NORMALISED": 0,
        "SECOND": 0,
        **(dict(zip(("COPIER_REGISTERS", "MULTIPLIER_REGISTERS"),
                    tile.registers, strict=True)) if tile.wgmma else {}),
        **({"STAGED_OPERAND": f"operand{tensors[0]}"} if is_staged else {}),
        **epilogue_macros(problem.epilogue, tensor_dtype=variant.outputs[0].dtype),
        **others,
    }, architectures=("sm_90a", "sm_90a") if tile.wgmma else (
        "sm_90" if tile.cluster > 1 else "sm_80", "sm_100"), dynamic_shared=True)


def packed_lines(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem,
                 precision: str) -> np.ndarray:
    """Return the weights in the shape (groups, stages, lines, values of a line).

    A line is one output channel in one stage. If a lane stores 4 output channels or more at once,
    the lines of each block of 4 * vector channels are ordered by `in_lane_order`. If a lane stores
    fewer at once, the lines are in the order of channels, and successive pairs of channels belong
    to successive lanes.

    Chunk p of line l is stored as chunk p ^ (l % 8) of the line, so that eight lines are read
    without bank conflicts.
    """
    vector = vector_of(precision)
    groups, stages = problem.groups, stages_of(problem, precision)
    lines = lines_of(problem, precision)
    weight = np.asarray(arrays["weight"], np.float32)
    per_group = problem.out_channels // groups
    rows = weight.reshape(groups, per_group, -1, *problem.kernel).transpose(0, 1, 3, 4, 2)
    padded = np.zeros((groups, lines, stages * CHUNKS * vector), np.float32)
    padded[:, :per_group, :problem.depth] = rows.reshape(groups, per_group, -1)
    if stored_at_once(problem, precision) > 2:
        padded = in_lane_order(padded, vector // 2, axis=1)
    # axes: group, eight lines, line, stage, chunk, value
    split = padded.reshape(groups, -1, CHUNKS, stages, CHUNKS, vector)
    ordered = split.transpose(0, 3, 1, 2, 4, 5)
    row, chunk = np.meshgrid(np.arange(CHUNKS), np.arange(CHUNKS), indexing="ij")
    swizzled = ordered[:, :, :, row, chunk ^ row].reshape(groups, stages, lines, -1)
    if precision == "tf32":
        return rounded_to_tf32(np.ascontiguousarray(swizzled))
    return rounded(swizzled)


def table_of_lines(problem: Conv2dProblem, x: TensorSpec, precision: str, values: int
                   ) -> np.ndarray:
    """Return the index table along K, (entries, 2) in int32.

    The entry for every `values`-th k holds the offset in x from a window's first pixel, and the
    position within the window as row << 16 | column. Entries after the last k have a row outside of
    every image.

    values: number of adjacent values of a pixel that are copied at once.
    """
    vector = vector_of(precision)
    table = np.zeros((stages_of(problem, precision) * CHUNKS * vector, 2), np.int32)
    table[:, 1] = _OUTSIDE << 16
    table[:problem.depth] = k_table(problem, x, channels_last=True)
    return table[::values]
