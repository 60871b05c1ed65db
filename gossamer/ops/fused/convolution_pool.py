"""A network's first convolution fused with the max pooling of its result.

The convolution has few input channels. The algorithm convolution_pool_mma computes both layers in
one kernel for NVIDIA GPUs. The convolution's result, the largest tensor of many networks, is never
written to device memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue, State, Variant
from gossamer.ops.conv2d.common import config_of, sizes_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import ENTRY, FusionProblem
from gossamer.ops.gpu import LaunchWork, groups_per_unit, product_cycles, without_tensor_cores
from gossamer.ops.image import given_arguments, image_macros, makes_image
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("convolution_pool.cu")
_LARGEST_HALF = 65504
_BIAS = Epilogue(apply("add"), ("channel",))
_BIAS_RELU = Epilogue(apply("add").then(apply("relu")), ("channel",))


class ConvolutionPoolMma(FusionAlgorithm):
    """Convolution and max pooling in float16 with float32 accumulation.

    The kernel reads the network's input, such as float32 in NCHW or bytes in NHWC, and writes
    float16 in NHWC.
    """

    name = "convolution_pool_mma"
    patterns = (("conv2d", "pool"), ("elementwise", "conv2d", "pool"))

    def recognises(self, problem: FusionProblem) -> bool:
        return convolution_pool_of(problem) is not None

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device)) is not None:
            return reason
        layers = convolution_pool_of(problem)
        if layers is None:
            return "needs a first convolution followed by max pooling"
        if (reason := reason_unfused(layers)) is not None:
            return reason
        if not tilings(layers.convolution, layers.pool, device.limits):
            return "the tiles do not fit shared memory or registers"
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        layers = _layers(problem)
        x = problem.inputs[0]
        if layers.given is None:
            x = x.with_format(layout="NCHW")
        y = problem.outputs[0].with_format(layout="NHWC", dtype="float16")
        for tiling in tilings(layers.convolution, layers.pool, device.limits):
            yield Variant(config_of(tiling.tile), (x,), (y,), "fp16")

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        return _tiling(problem, variant).expected_us(device.limits)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        if not problem.outputs[0].size:
            return State(problem, variant, device)
        layers, tiling = _layers(problem), _tiling(problem, variant)
        convolution, pool, tile = layers.convolution, layers.pool, tiling.tile
        own = f"{len(problem.parts) - 2}."
        folded = _is_folded(convolution, weights.arrays.get(f"{own}operand0"))
        epilogue = Epilogue() if folded else convolution.epilogue
        kernel = device.compile(KernelSource.of(
            _SOURCE, "convolution_pool_mma",
            {**_macros(tiling, layers, variant, folded), **epilogue_macros(epilogue)},
            architectures=("sm_90a", "sm_90a") if tile.wgmma else ("sm_80", "sm_100"),
            dynamic_shared=True))
        packed = weights.packed(
            f"{tile.channels} channels for convolution_pool_mma, {folded}",
            lambda arrays: _pack(arrays[f"{own}weight"], tiling,
                                 arrays[f"{own}operand0"] if folded else None))
        arguments = (
            input_buffer(0), packed, output_buffer(0), convolution.out_channels,
            convolution.height, convolution.width, convolution.out_height, convolution.out_width,
            pool.out_height, pool.out_width, *convolution.pads[:2], *pool.pads[:2], tiling.tiles_x,
            tiling.tile_width, tile.height, *given_arguments(weights, layers.given),
            *epilogue_arguments(epilogue, weights, 1, convolution.out_channels, prefix=own))
        return State(problem, variant, device, [Launch(
            kernel, tiling.grid, (WORK_GROUP_SIZE, 1, 1), arguments, tiling.shared_bytes)])


def _layers(problem: FusionProblem) -> ConvolutionPool:
    layers = convolution_pool_of(problem)
    assert layers is not None
    return layers


def _tiling(problem: FusionProblem, variant: Variant) -> PoolTiling:
    layers = _layers(problem)
    return PoolTiling(layers.convolution, layers.pool, sizes_of(PoolTile, variant))


def _is_folded(convolution: Conv2dProblem, bias: np.ndarray | None) -> bool:
    """Return whether the tensor cores can add the bias.

    The epilogue must be a bias per channel, optionally followed by ReLU. The bias is split into two
    float16 numbers. They are stored as the last weights of a window's first two lines. The kernel
    multiplies them by ones, which it stores after the window's values in every line.
    """
    return (convolution.epilogue in (_BIAS, _BIAS_RELU) and bias is not None
            and convolution.kernel[1] < TAPS and convolution.channels * convolution.kernel[0] > 1
            and bool((np.abs(bias) <= _LARGEST_HALF).all()))


def _macros(tiling: PoolTiling, layers: ConvolutionPool, variant: Variant,
            folded: bool) -> dict[str, object]:
    """Return the macros described in convolution_pool.cu and ops/image.h."""
    convolution, pool = tiling.convolution, tiling.pool
    is_positive = folded and convolution.epilogue == _BIAS_RELU
    return {
        "HALVES": 1, "WGMMA": tiling.tile.wgmma,
        "TILE_M": tiling.tile.channels if tiling.tile.wgmma else 64,
        "CHANNELS": convolution.channels,
        "KERNEL_H": convolution.kernel[0], "KERNEL_W": convolution.kernel[1],
        "STRIDE_Y": convolution.stride[0], "STRIDE_X": convolution.stride[1],
        "POOL_H": pool.kernel[0], "POOL_W": pool.kernel[1], "POOL_Y": pool.stride[0],
        "POOL_X": pool.stride[1], "ROWS": tiling.rows, "SHARED_ROWS": tiling.shared_rows,
        "ROWS_HELD": tiling.rows_held, "OUT_PART": tiling.tile.channels,
        "FOLDED": int(folded), "LEAST": "0u" if is_positive else "0xfc00fc00u",
        "MAKES_IMAGE": int(layers.given is not None),
        **image_macros(variant.inputs[0], layers.given)}


def _pack(weight: np.ndarray, tiling: PoolTiling, bias: np.ndarray | None) -> np.ndarray:
    """Return the weights in the order in which the kernel reads them.

    The array is (work-groups, lines per window, output channels per work-group, 8). A line holds
    the values of one row and one input channel of a window, padded with zeros to 8. Lines are
    ordered by row, then by channel. A line of zeros is added if the number of lines is odd.

    bias: bias of each output channel that the tensor cores add; None if they add none.
    """
    out_channels, channels, rows, columns = weight.shape
    packed = np.zeros((tiling.lines, out_channels, TAPS), np.float16)
    with np.errstate(over="ignore"):
        packed[:channels * rows, :, :columns] = weight.transpose(2, 1, 0, 3).reshape(
            channels * rows, out_channels, columns).astype(np.float16)
    if bias is not None:
        packed[0, :, -1] = bias
        packed[1, :, -1] = bias - packed[0, :, -1].astype(np.float32)
    parts = packed.reshape(tiling.lines, -1, tiling.tile.channels, TAPS)
    return np.ascontiguousarray(parts.transpose(1, 0, 2, 3))


MOST_CHANNELS = 4
_MULTIPLE = 8
_MOST_GRID = 65535
"""Maximum number of work-groups of a grid along each of y and z."""


@dataclass(frozen=True)
class ConvolutionPool:
    """A convolution of few input channels and the max pooling of its result.

    problem: the fusion.
    given: layer that computes the convolution's input image from the network's input; None if the
    network's input is the image itself.
    convolution: the convolution.
    pool: the max pooling.
    """

    problem: FusionProblem
    given: ElementwiseProblem | None
    convolution: Conv2dProblem
    pool: PoolProblem


def convolution_pool_of(problem: FusionProblem) -> ConvolutionPool | None:
    """Return a fusion as a first convolution and the max pooling of its result.

    Returns None if the layers are not of these kinds.
    """
    *before, convolution, pool = problem.parts
    if not (isinstance(convolution, Conv2dProblem) and isinstance(pool, PoolProblem)):
        return None
    if convolution.channels > MOST_CHANNELS or convolution.groups > 1 or pool.kind != "max":
        return None
    count = len(before)
    if problem.sources[-1] != ((count, 0),) or count > 1:
        return None
    if not before:
        is_first = problem.sources[0][0] == ENTRY
        return ConvolutionPool(problem, None, convolution, pool) if is_first else None
    (given,) = before
    if not makes_image(given) or problem.sources[1][0] != (0, 0):
        return None
    assert isinstance(given, ElementwiseProblem)
    return ConvolutionPool(problem, given, convolution, pool)


def reason_unfused(layers: ConvolutionPool) -> str | None:
    """Return why the layers cannot be fused; None if they can."""
    convolution, pool = layers.convolution, layers.pool
    if layers.problem.exits != ((len(layers.problem.parts) - 1, 0),):
        return "a value between the layers is read elsewhere"
    if convolution.epilogue.tensor_count:
        return "the convolution's epilogue reads a tensor"
    if convolution.dilation != (1, 1) or pool.dilation != (1, 1):
        return "needs windows without dilation"
    if convolution.kernel[1] > TAPS:
        return f"needs windows of at most {TAPS} columns, not {convolution.kernel[1]}"
    if convolution.out_channels % _MULTIPLE:
        return f"needs a multiple of {_MULTIPLE} output channels, not {convolution.out_channels}"
    if pool.kernel[0] > 2 * pool.stride[0]:
        return ("needs pooling windows of at most twice their stride, not "
                f"{pool.kernel[0]} rows with a stride of {pool.stride[0]}")
    if any(pad >= length for pad, length in zip(pool.pads, pool.kernel * 2, strict=True)):
        return "a pooling window may lie entirely in the padding"
    if max(pool.out_height, convolution.batch) > _MOST_GRID:
        return f"supports at most {_MOST_GRID} rows of results and {_MOST_GRID} images"
    return None


COLUMNS = 64
"""Number of columns of convolution outputs per work-group."""
WORK_GROUP_SIZE = 128
TAPS = 8
"""Maximum number of columns of a window: the float16 values of one 16-byte word."""
_PARTS = (64, 48, 32, 16, 8)
_WGMMA_PARTS = (64, 48, 32, 16)
"""Possible numbers of output channels per work-group: _PARTS without wgmma, _WGMMA_PARTS with it.
"""
_MOST_DIVISIONS = 8
"""Candidate tile heights divide the rows of results among up to this number of work-groups."""
_SMALL_HEIGHTS = (4, 2, 1)
"""Further tile heights, in rows of results."""
_OFFERED = 5
"""Number of candidate tiles; those with the lowest expected times are chosen."""
_MOST_SUMS = 128
"""Maximum of (convolution output rows) x (output channels) per work-group for which the sums fit
the registers."""
_AT_ONCE = 3
"""Maximum number of work-groups per multiprocessor, limited by registers."""
# The rates below were fitted to the times of 84 tiles in six problems on an H200.
_OF_LINE, _OF_SUM, _OF_RESULT = 21.0, 6.3, 31.0
"""Instructions of a warp per line of the image, per sum, and per 8 channels of results that a lane
stores."""
_ISSUED = 0.54
"""Instructions issued per cycle and scheduler."""
_BARRIERS = 680.0
"""Cycles that a work-group spends at the barriers of a band of rows, without other work."""


@dataclass(frozen=True)
class PoolTile:
    """The tile of a work-group: the config of a variant.

    height: rows of results.
    channels: output channels.
    wgmma: 1 if the warps multiply together with wgmma (sm_90a), 0 if each warp uses mma.
    """

    height: int
    channels: int
    wgmma: int


@dataclass(frozen=True)
class PoolTiling:
    """The division of a convolution and its max pooling into tiles."""

    convolution: Conv2dProblem
    pool: PoolProblem
    tile: PoolTile

    @property
    def shared_rows(self) -> int:
        """Number of rows of convolution outputs that consecutive pooling windows share."""
        return max(0, self.pool.kernel[0] - self.pool.stride[0])

    @property
    def rows(self) -> int:
        """Number of rows of convolution outputs that each further pooling window adds."""
        return self.pool.kernel[0] - self.shared_rows

    @property
    def advance(self) -> int:
        """Distance in image rows between consecutive rows of results."""
        return self.pool.stride[0] * self.convolution.stride[0]

    @property
    def rows_held(self) -> int:
        """Number of image rows in shared memory."""
        p = self.convolution
        return (self.rows - 1) * p.stride[0] + p.kernel[0] + self.advance

    @property
    def lines(self) -> int:
        """Number of lines per window, rounded up to an even number.

        Each line holds 8 values: a row of one input channel, padded.
        """
        return -(-self.convolution.channels * self.convolution.kernel[0] // 2) * 2

    @property
    def tiles_x(self) -> int:
        """Number of tiles along a row of results.

        A tile has at most 64 columns of convolution outputs.
        """
        most = (COLUMNS - self.pool.kernel[1]) // self.pool.stride[1] + 1
        return -(-self.pool.out_width // most)

    @property
    def tile_width(self) -> int:
        """Number of columns of results per tile."""
        return -(-self.pool.out_width // self.tiles_x)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Number of work-groups along x, y and z."""
        return (self.tiles_x * (self.convolution.out_channels // self.tile.channels),
                -(-self.pool.out_height // self.tile.height), self.convolution.batch)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per work-group.

        Shared memory holds the weights; the lines of the image, a copy of the first line and a line
        of zeros; and the maxima of 64 columns, padded so that columns begin in different banks.
        """
        part, held = self.tile.channels, self.convolution.channels * self.rows_held + 2
        column = 2 * part + (0 if part // 8 % 2 else 16)
        return 16 * (self.lines * part + COLUMNS * held) + COLUMNS * column

    def fits(self, limits: Limits) -> bool:
        """Return whether the tiling fits a device with the given limits."""
        part = self.tile.channels
        return (self.convolution.out_channels % part == 0 and self.rows * part <= _MOST_SUMS
                and (not self.tile.wgmma or (limits.wgmma and part in _WGMMA_PARTS))
                and self.shared_bytes <= limits.shared_bytes_opt_in)

    def expected_us(self, limits: Limits) -> float:
        """Return the expected time of the kernel in microseconds."""
        p, part = self.convolution, self.tile.channels
        multiplied = product_cycles(COLUMNS * self.rows * part, 16 * self.lines,
                                    bool(self.tile.wgmma))
        issued = (_OF_LINE * p.channels * -(-self.advance // 4) + _OF_SUM * self.rows * part / 2
                  + _OF_RESULT * -(-self.tile_width * part // (8 * WORK_GROUP_SIZE))) / _ISSUED
        bands = min(self.tile.height, self.pool.out_height) + min(1, self.shared_rows)
        band = multiplied + issued
        return LaunchWork(
            math.prod(self.grid), groups_per_unit(self.shared_bytes, limits, _AT_ONCE),
            busy=bands * band, waited=bands * (band + _BARRIERS),
            moved=p.inputs[0].size * 4 + self.pool.outputs[0].size * 2).expected_us(limits)


def tilings(convolution: Conv2dProblem, pool: PoolProblem, limits: Limits) -> list[PoolTiling]:
    """Return the tilings with the lowest expected times, fastest first.

    All returned tilings fit the device. Tilings with mma are returned only if no tiling with wgmma
    fits, because mma was slower in every measurement.
    """
    for wgmma in (1, 0):
        found = [tiling for tile in _tiles(convolution, pool, wgmma)
                 if (tiling := PoolTiling(convolution, pool, tile)).fits(limits)]
        if found:
            return sorted(found, key=lambda tiling: tiling.expected_us(limits))[:_OFFERED]
    return []


def _tiles(convolution: Conv2dProblem, pool: PoolProblem, wgmma: int) -> Iterator[PoolTile]:
    """Yield the candidate tiles.

    Uses the two largest numbers of output channels per work-group that divide the convolution's
    output channels and whose sums fit the registers.
    """
    rows_of_results = max(1, pool.out_height)
    divided = {-(-rows_of_results // count) for count in range(1, _MOST_DIVISIONS + 1)}
    heights = sorted(divided | {min(height, rows_of_results) for height in _SMALL_HEIGHTS})
    parts = _WGMMA_PARTS if wgmma else _PARTS
    rows = PoolTiling(convolution, pool, PoolTile(1, parts[0], wgmma)).rows
    dividing = [part for part in parts
                if convolution.out_channels % part == 0 and rows * part <= _MOST_SUMS]
    for part in dividing[:2]:
        for height in heights:
            yield PoolTile(height, part, wgmma)
