"""Depthwise convolution, with windows in registers or with tiles in shared memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.common import window_macros
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.gpu import LaunchWork, groups_per_unit
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import KernelAlgorithm, cannot_compile, divisor, layout_variants
from gossamer.ops.weights import Weights
from gossamer.tensor import rounded_up

_SOURCE = Path(__file__).with_name("depthwise.cl")
_WORK_GROUP = 64
_SHAPES = ((4, 1), (4, 2), (4, 4), (2, 2), (1, 1))
_HALF_SHAPES = {1: ((4, 2), (4, 4), (2, 2), (4, 1), (1, 1)),
                2: ((4, 1), (2, 2), (4, 2), (4, 4), (1, 1))}
"""Rows and columns of outputs that a work-item computes, in the order in which they are tried for
large problems. `_SHAPES` is for float32. `_HALF_SHAPES` is for float16: key 1 is for a stride of 1,
and key 2 for larger strides. The fastest shapes on an H200 come first. On any device, every shape
may be measured."""
_MAX_TAPS = 49
_EIGHTFOLD_TAPS = 9
"""Maximum number of taps for which registers have room for the weights of eight channels."""
_MAX_WIDTH = 64


class Depthwise(KernelAlgorithm):
    """Depthwise convolution with windows in registers.

    The algorithm is memory-bound: each work-item holds the input window of a few neighbouring
    outputs in registers and loads every input once.
    """

    op = "conv2d"
    name = "depthwise"
    reads_parts = True
    writes_parts = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if not problem.is_depthwise:
            return (f"needs one group per input channel, has {problem.groups} for "
                    f"{problem.channels} channels")
        if problem.taps > _MAX_TAPS:
            return f"more than {_MAX_TAPS} taps do not fit the registers"
        if problem.window(1, max(columns for _, columns in _SHAPES)) > _MAX_WIDTH:
            return f"windows wider than {_MAX_WIDTH} columns do not fit the registers"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        return _variants(problem, device, _SHAPES)

    def variants_in(self, problem: Conv2dProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        shapes = _HALF_SHAPES[min(2, max(problem.stride))] if "fp16" in precisions else _SHAPES
        return (variant for variant in _variants(problem, device, shapes)
                if variant.precision in precisions)

    def kernel_launches(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        x, y = variant.inputs[0], variant.outputs[0]
        nhwc = x.layout == "NHWC"
        vector = _vector(problem, variant)
        source = KernelSource.of(_SOURCE, "depthwise", {
            "ROWS": variant["rows"],
            "COLUMNS": variant["columns"],
            **window_macros(problem),
            "MULTIPLIER": problem.out_channels // problem.channels,
            "VECTOR": vector,
            "CHANNELS_FIRST": int(nhwc),
            "WORK_GROUP_SIZE": _WORK_GROUP,
            "HALVES": int(variant.precision == "fp16"),
            **epilogue_macros(problem.epilogue, tensor_dtype=y.dtype),
        })
        packed = weights.packed("taps by channels, depthwise", _pack_taps)
        units = problem.out_channels // vector
        tiles_y = -(-problem.out_height // variant["rows"])
        tiles_x = -(-problem.out_width // variant["columns"])
        items = problem.batch * tiles_y * tiles_x * units
        return [Launch(
            device.compile(source), (-(-items // _WORK_GROUP),), (_WORK_GROUP,),
            (input_buffer(0), packed, output_buffer(0), items, *divisor(units), *divisor(tiles_x),
             *divisor(tiles_y), -(-problem.out_channels // 4) * 4, problem.height, problem.width,
             problem.out_height, problem.out_width, *problem.pads[:2], x.offset, *x.strides,
             y.offset, *y.strides,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)))]


def _variants(problem: Conv2dProblem, device: Device,
              shapes: Sequence[tuple[int, int]]) -> Iterator[Variant]:
    """Yield the variants of all shapes.

    shapes: the shapes to try for large problems, in order; small problems use `_SHAPES`, reversed.
    """
    # tall tiles reuse input rows; small problems need as many work-items as possible
    tall_items = problem.outputs[0].size // 16
    is_large = tall_items >= 512 * device.limits.compute_units
    for rows, columns in shapes if is_large else _SHAPES[::-1]:
        variants = layout_variants(problem, ("NHWC", "NCHW"),
                                   (("rows", rows), ("columns", columns)))
        yield from variants
        yield from (variant.as_fp16 for variant in variants)


def _vector(problem: Conv2dProblem, variant: Variant) -> int:
    """Return the number of channels that a work-item computes.

    If channels are adjacent in memory and each input channel has one output channel, the result is
    the largest of 8, 4 and 1 that divides the number of channels; 8 is possible only in float16
    with at most _EIGHTFOLD_TAPS taps. In all other cases, the result is 1.
    """
    x = variant.inputs[0]
    if x.layout != "NHWC" or problem.out_channels != problem.channels:
        return 1
    most = 16 // x.stored_dtype.itemsize if problem.taps <= _EIGHTFOLD_TAPS else 4
    return next(count for count in (most, 4, 1) if problem.channels % count == 0)


def _pack_taps(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the weights as (taps, output channels rounded up to 4)."""
    weight = arrays["weight"].astype(np.float32)
    m = weight.shape[0]
    packed = np.zeros((weight.shape[2] * weight.shape[3], -(-m // 4) * 4), dtype=np.float32)
    packed[:, :m] = weight.reshape(m, -1).T
    return packed


_TILED_SOURCE = Path(__file__).with_name("depthwise_tiled.cu")
_MAX_TILED_TAPS = 121
_MAX_VALUES = 80
"""Maximum number of values that a work-item holds in registers: its sums, an input row of its
window, and a row of taps. With more values, 128 registers would have no room for addresses."""
_MAX_PAIRS = 32
_MOST_SHARED = 48 * 1024
_MOST_THREADS = 512
_RESIDENT_THREADS = 512
"""Number of work-items that must fit a multiprocessor at once. The number limits the registers of
each work-item."""
_TILINGS = 4
"""Maximum number of candidate tilings in each precision."""
_ROWS, _COLUMNS = (1, 2), (4, 7, 8)
_STRIPS_Y, _STRIPS_X = (1, 2, 4, 7, 8, 14), (1, 2, 4, 8)
# The rates below are estimates for an H100, not yet fitted to measurements. They only decide the
# order in which tilings are tried.
_SCHEDULERS = 4
"""Warp schedulers of a multiprocessor."""
_COPY_INSTRUCTIONS = 14
"""Instructions of a copy to shared memory."""
_STORE_INSTRUCTIONS = 14
"""Instructions that apply an epilogue to a pair of results and store the pair."""
_READ, _STORED = 24.0, 14.0
"""Bytes per cycle that a multiprocessor reads, partly from the L2 cache, and bytes per cycle that
it writes."""


@dataclass(frozen=True)
class _Tiling:
    """A division of a convolution's outputs into tiles.

    problem: the convolution.
    itemsize: bytes of an element of x.
    rows, columns: rows and columns of outputs that a work-item computes.
    strips_y, strips_x: numbers of work-items along the height and along the width of a tile.
    """

    problem: Conv2dProblem
    itemsize: int
    rows: int
    columns: int
    strips_y: int
    strips_x: int

    @property
    def copy_bytes(self) -> int:
        """Bytes of a copy: the largest of 16, 8 and 4 that divides the bytes of a pixel."""
        return math.gcd(16, self.problem.channels * self.itemsize)

    @property
    def pairs(self) -> int:
        """Number of channel pairs of a tile; channels are divided about evenly among tiles."""
        pairs = self.problem.channels // 2
        chunks = -(-pairs // _MAX_PAIRS)
        return rounded_up(-(-pairs // chunks), max(1, self.copy_bytes // (2 * self.itemsize)))

    @property
    def chunks(self) -> int:
        """Number of tiles along the channels."""
        return -(-self.problem.channels // (2 * self.pairs))

    @property
    def tiles(self) -> tuple[int, int]:
        """Numbers of tiles along the height and along the width of an image."""
        return (-(-self.problem.out_height // (self.rows * self.strips_y)),
                -(-self.problem.out_width // (self.columns * self.strips_x)))

    @property
    def groups(self) -> int:
        """Number of work-groups for all images."""
        return self.problem.batch * math.prod(self.tiles) * self.chunks

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return rounded_up(self.strips_y * self.strips_x * self.pairs, 32)

    @property
    def halo_bytes(self) -> int:
        """Bytes of the inputs that a tile reads."""
        rows = self.problem.window(0, self.rows * self.strips_y)
        columns = self.problem.window(1, self.columns * self.strips_x)
        return rows * columns * 2 * self.pairs * self.itemsize

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group."""
        return self.halo_bytes + self.problem.taps * 2 * self.pairs * 4

    @property
    def fits(self) -> bool:
        """Whether registers and shared memory have room for the tile."""
        values = 2 * (self.rows * self.columns + self.problem.window(1, self.columns)
                      + self.problem.kernel[1])
        return (values <= _MAX_VALUES and self.threads <= _MOST_THREADS
                and self.shared_bytes <= _MOST_SHARED)

    def expected_us(self, limits: Limits) -> float:
        """Return the expected time of the kernel in microseconds."""
        taps = self.problem.taps
        window = self.problem.window(0, self.rows) * self.problem.window(1, self.columns)
        outputs = self.rows * self.columns
        copies = self.halo_bytes / self.copy_bytes + taps * self.pairs
        instructions = (3 * window + taps + 2 * taps * outputs + _STORE_INSTRUCTIONS * outputs
                        + _COPY_INSTRUCTIONS * copies / self.threads)
        issued = instructions * self.threads / 32 / _SCHEDULERS
        stored = outputs * self.strips_y * self.strips_x * 2 * self.pairs * self.itemsize
        return LaunchWork(
            self.groups,
            groups_per_unit(self.shared_bytes, limits, _RESIDENT_THREADS // self.threads),
            busy=max(issued, self.halo_bytes / _READ + stored / _STORED),
            waited=0.0).expected_us(limits)


class DepthwiseTiled(KernelAlgorithm):
    """Depthwise convolution with inputs and weights in shared memory.

    The registers therefore have room for a strip of outputs even if filters are large.
    """

    op = "conv2d"
    name = "depthwise_tiled"
    reads_parts = True
    writes_parts = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.limits.mma:
            return f"needs an NVIDIA GPU of sm_80 or newer, which {device.name} is not"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if not problem.is_depthwise:
            return (f"needs one group per input channel, has {problem.groups} for "
                    f"{problem.channels} channels")
        if problem.out_channels != problem.channels:
            return (f"needs as many output channels as input channels, has "
                    f"{problem.out_channels} for {problem.channels}")
        if problem.channels % 2:
            return f"needs an even number of channels, has {problem.channels}"
        if problem.taps > _MAX_TILED_TAPS:
            return f"needs filters of at most {_MAX_TILED_TAPS} taps, has {problem.taps}"
        if not _tilings(problem, 4, device):
            return "a window does not fit the registers or the shared memory"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        return _tiled_variants(problem, device, ("fp32", "fp16"))

    def variants_in(self, problem: Conv2dProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        # variants of float16 come first: float16 and float32 have different tilings, and the tuner
        # may try only the first few variants
        return _tiled_variants(problem, device, [precision for precision in ("fp16", "fp32")
                                           if precision in precisions])

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        return _tiling(problem, variant).expected_us(device.limits)

    def kernel_launches(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        x, y = variant.inputs[0], variant.outputs[0]
        tiling = _tiling(problem, variant)
        source = KernelSource.of(_TILED_SOURCE, "depthwise_tiled", {
            "ROWS": tiling.rows,
            "COLUMNS": tiling.columns,
            "STRIPS_Y": tiling.strips_y,
            "STRIPS_X": tiling.strips_x,
            "PAIRS": tiling.pairs,
            "COPY_BYTES": tiling.copy_bytes,
            **window_macros(problem),
            "THREADS": tiling.threads,
            "GROUPS": max(1, _RESIDENT_THREADS // tiling.threads),
            "HALVES": int(variant.precision == "fp16"),
            **epilogue_macros(problem.epilogue, tensor_dtype=y.dtype),
        }, architectures=("sm_80", "sm_100"))
        tiles_y, tiles_x = tiling.tiles
        x_image, _, x_row, x_column = x.strides
        y_image, _, y_row, y_column = y.strides
        return [Launch(
            device.compile(source), (tiling.groups,), (tiling.threads,),
            (input_buffer(0), weights.packed("taps by channels, depthwise", _pack_taps),
             output_buffer(0), *divisor(tiling.chunks), *divisor(tiles_x), *divisor(tiles_y),
             problem.channels, rounded_up(problem.channels, 4), problem.height, problem.width,
             problem.out_height, problem.out_width, *problem.pads[:2], x.offset, x_image, x_row,
             x_column, y.offset, y_image, y_row, y_column,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)))]


def _tiled_variants(problem: Conv2dProblem, device: Device,
              precisions: Sequence[str]) -> Iterator[Variant]:
    """Yield the variants of each precision, in the order of the precisions."""
    for precision in precisions:
        is_half = precision == "fp16"
        for tiling in _tilings(problem, 2 if is_half else 4, device):
            (plain,) = layout_variants(problem, ("NHWC",), (
                ("rows", tiling.rows), ("columns", tiling.columns),
                ("strips_y", tiling.strips_y), ("strips_x", tiling.strips_x)))
            yield plain.as_fp16 if is_half else plain


def _tiling(problem: Conv2dProblem, variant: Variant) -> _Tiling:
    return _Tiling(problem, variant.inputs[0].stored_dtype.itemsize, variant["rows"],
                   variant["columns"], variant["strips_y"], variant["strips_x"])


def _tilings(problem: Conv2dProblem, itemsize: int, device: Device) -> list[_Tiling]:
    """Return the candidate tilings, the fastest expected first.

    For each work-group size, only the tiling with the lowest expected time is a candidate. Several
    sizes are tried, because it is hard to estimate how much the work-groups of a multiprocessor
    slow each other down.
    """
    tilings = [_Tiling(problem, itemsize, *sizes)
               for sizes in itertools.product(_ROWS, _COLUMNS, _STRIPS_Y, _STRIPS_X)]
    fastest: dict[int, _Tiling] = {}
    for tiling in sorted((tiling for tiling in tilings if tiling.fits),
                         key=lambda tiling: tiling.expected_us(device.limits)):
        fastest.setdefault(tiling.threads, tiling)
    return list(fastest.values())[:_TILINGS]
