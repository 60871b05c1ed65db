"""The algorithms pointwise_mma and implicit_gemm_mma compute a convolution as a matrix product on
tensor cores. The left matrix is the im2col matrix. This matrix is never stored: its values are
copied from the input during the product."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import PRECISIONS, Algorithm, State, Variant
from gossamer.ops.conv2d.dense.implicit_im2col import channels_in_memory
from gossamer.ops.conv2d.dense.mma.packing import (
    bytes_at_once,
    lines_of,
    packed_lines,
    stages_of,
    stored_at_once,
    table_of_lines,
    vector_of,
)
from gossamer.ops.conv2d.dense.mma.tiling import (
    MmaTile,
    config_of,
    copies,
    expected_us,
    fitting,
    tile_of,
)
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile, divisor
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("implicit_gemm.cu")
_PRECISIONS = ("tf32", "fp16")
_MOST_ROWS = 2**15


class _MmaProduct(Algorithm):
    """Computes a convolution on tensor cores in TF32 or float16 with float32 sums. In TF32 inputs
    are rounded."""

    op = "conv2d"
    reads_parts = True
    writes_parts = True
    _pointwise: ClassVar[bool]

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.limits.mma:
            return f"{device.name} has no tensor cores for float16 and TF32 (sm_80 or newer)"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if (problem.kernel == (1, 1) and not any(problem.pads)) != self._pointwise:
            return ("needs a 1x1 window without padding" if self._pointwise else
                    "1x1 windows without padding are pointwise_mma's")
        if problem.is_depthwise:
            return "one input channel a group leaves tensor cores empty"
        spans = [(taps - 1) * step + 1
                 for taps, step in zip(problem.kernel, problem.dilation, strict=True)]
        if max(problem.height + problem.pads[0], *spans) >= _MOST_ROWS:
            return f"images or windows of {_MOST_ROWS} rows or more"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        return self.variants_in(problem, device, PRECISIONS)

    def variants_in(self, problem: Conv2dProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        forms = [(precision, layout) for precision in _PRECISIONS if precision in precisions
                 for layout in _layouts(problem, precision)]

        def least_us(tile: MmaTile) -> float:
            # tiles are ordered by their time in the least precise and fastest precision
            return expected_us(problem, tile, *forms[-1], device.limits)

        tiles = {form: fitting(problem, *form, device.limits) for form in forms}
        for tile in sorted(dict.fromkeys(itertools.chain(*tiles.values())), key=least_us):
            for form in forms:
                if tile in tiles[form]:
                    yield _variant(problem, tile, *form)

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        return expected_us(problem, tile_of(variant), variant.precision, variant.inputs[0].layout,
                           device.limits)

    def kernel_sources(self, problem: Conv2dProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        return (_source(problem, variant),) if variant.outputs[0].size else ()

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        x, y, precision = variant.inputs[0], variant.outputs[0], variant.precision
        if y.size == 0:
            return State(problem, variant, device)
        tile = tile_of(variant)
        kernel = device.compile(_source(problem, variant))
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
             problem.pixels, problem.out_channels // problem.groups, lines_of(problem, precision),
             problem.depth, stages_of(problem, precision),
             problem.height, problem.width, *divisor(problem.out_height * problem.out_width),
             *divisor(problem.out_width), *problem.stride, *problem.pads[:2], x_image, x_row,
             x_column, x_channel * (problem.channels // problem.groups), x.offset, y.offset,
             channels_in_memory(y),
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)),
            tile.shared_bytes(stages_of(problem, precision)))
        return State(problem, variant, device, [launch])


class PointwiseMma(_MmaProduct):
    """Computes a 1x1 convolution on tensor cores in TF32 or float16 with float32 sums. In TF32
    inputs are truncated."""

    name = "pointwise_mma"
    _pointwise = True


class ImplicitGemmMma(_MmaProduct):
    """Computes a convolution on tensor cores in TF32 or float16 with float32 sums, with an im2col
    matrix that is never stored. In TF32 inputs are truncated."""

    name = "implicit_gemm_mma"
    _pointwise = False


def _layouts(problem: Conv2dProblem, precision: str) -> tuple[str, ...]:
    """Returns the layouts in which the input is read: NHWC, and also NCHW where the bytes of a
    group's channels are no multiple of 16."""
    return ("NHWC",) if bytes_at_once(problem, precision) == 16 else ("NCHW", "NHWC")


def _variant(problem: Conv2dProblem, tile: MmaTile, precision: str, layout: str) -> Variant:
    """Returns the variant of a tile for an input in a layout."""
    x, y = problem.inputs[0], problem.outputs[0].with_format(layout="NHWC")
    variant = Variant(config_of(tile), (x.with_format(layout=layout),
                                        *[y] * problem.epilogue.tensor_count), (y,), precision)
    return variant.as_fp16 if precision == "fp16" else variant


def _values_at_once(problem: Conv2dProblem, variant: Variant) -> int:
    """Returns the number of neighbouring values of a pixel that a variant loads or copies at
    once."""
    x = variant.inputs[0]
    if not copies(problem, variant.precision, x.layout):
        return 1
    return bytes_at_once(problem, variant.precision) // x.stored_dtype.itemsize


def _reads_pixels(problem: Conv2dProblem, variant: Variant) -> bool:
    """Returns whether all values of K that belong to an output lie side by side in one pixel."""
    return (problem.kernel == (1, 1) and not any(problem.pads)
            and variant.inputs[0].layout == "NHWC")


def _source(problem: Conv2dProblem, variant: Variant) -> KernelSource:
    tile, precision = tile_of(variant), variant.precision
    vector, out_vector = vector_of(precision), stored_at_once(problem, precision)
    macros = {key.upper(): value for key, value in variant.config}
    tensors = [i for i, kind in enumerate(problem.epilogue.operands) if kind == "tensor"]
    is_staged = (len(tensors) == 1 and out_vector == vector
                 and tile.stages_ahead_of_operand(precision) >= 0)
    return KernelSource.of(_SOURCE, "implicit_gemm", {
        **macros,
        "HALVES": int(precision == "fp16"),
        "POINTWISE": int(_reads_pixels(problem, variant)),
        "AT_ONCE": _values_at_once(problem, variant),
        "LOADS": int(not copies(problem, precision, variant.inputs[0].layout)),
        "PIXELS_FIRST": int(variant.inputs[0].layout == "NCHW"),
        "OUT_VECTOR": out_vector,
        "STAGED": int(is_staged),
        **(dict(zip(("COPIER_REGISTERS", "MULTIPLIER_REGISTERS"),
                    tile.registers, strict=True)) if tile.wgmma else {}),
        **({"STAGED_OPERAND": f"operand{tensors[0]}"} if is_staged else {}),
        **epilogue_macros(problem.epilogue, tensor_dtype=variant.outputs[0].dtype),
    }, architectures=_architectures(tile),
        dynamic_shared=True)


def _architectures(tile: MmaTile) -> tuple[str, str]:
    """Returns the oldest and the newest architecture on which a tile runs."""
    if tile.wgmma:
        return "sm_90a", "sm_90a"
    return "sm_90" if tile.cluster > 1 else "sm_80", "sm_100"
