"""im2col_gemm: a tiled matrix product with implicit im2col, for OpenCL and CUDA.

The kernels follow the usual tiled im2col GEMM in OpenCL: tiles of 64 x 64 in shared memory, and
8 x 4 results per work-item. Unlike the usual GEMM, the kernels never store the im2col matrix, and
they fuse the epilogue.

K is the axis over which the matrix product sums. An index k stands for an input channel c of the
group and a tap (r, s).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.conv2d.common import (
    channels_in_memory,
    config_of,
    k_table,
    sizes_of,
    specs_of_layouts,
)
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.gpu import CYCLES_PER_MICROSECOND
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer.ops.peak_rates import rates_of_unit
from gossamer.ops.strided import WORK_GROUP_SIZE, KernelAlgorithm, divisor, groups_for, too_large
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("im2col_gemm.cl")
_SUM_SOURCE = Path(__file__).with_name("split_sum.cl")


@dataclass(frozen=True)
class Tile:
    """The sizes of a work-group's tile.

    tile_p: number of output pixels of a work-group.
    tile_m: number of output channels of a work-group.
    tile_k: number of values of k for which operands are in shared memory at a time.
    work_p: number of output pixels of a work-item.
    work_m: number of output channels of a work-item.
    slice_k: number of sets of work-items (k-slices); each set sums over a part of the tile's K
    range.
    blocks_per_unit: number of work-groups that must fit a multiprocessor at once.
    split_k: number of work-groups that share the K range of a tile; another kernel adds up the sums
    of these work-groups.
    """

    tile_p: int
    tile_m: int
    tile_k: int
    work_p: int
    work_m: int
    slice_k: int = 1
    blocks_per_unit: int = 1
    split_k: int = 1

    @property
    def work_group(self) -> int:
        """Work-items of a work-group."""
        return self.tile_p // self.work_p * (self.tile_m // self.work_m) * self.slice_k

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group.

        This memory holds two tiles of each operand (one is filled ahead) and later, in the same
        place, the sums of the k-slices.
        """
        tiles = 2 * self.tile_k * (self.tile_p + 4 + self.tile_m)
        sums = self.slice_k * self.tile_p * self.tile_m if self.slice_k > 1 else 0
        return 4 * max(tiles, sums)


TILES = (
    Tile(64, 64, 16, 8, 4),
    Tile(64, 64, 8, 8, 4),
    Tile(256, 32, 8, 8, 8, blocks_per_unit=2),
    Tile(256, 16, 8, 8, 4),
    Tile(128, 128, 8, 8, 8, blocks_per_unit=2),
    Tile(128, 96, 16, 8, 8, blocks_per_unit=2),
    Tile(256, 128, 8, 16, 8),
    Tile(128, 256, 8, 8, 16),
    Tile(128, 32, 16, 8, 4, blocks_per_unit=2),
    Tile(64, 32, 16, 4, 4, slice_k=2),
    Tile(32, 32, 32, 4, 4, slice_k=4),
    Tile(32, 32, 16, 4, 4, slice_k=2),
    Tile(16, 32, 32, 4, 4, slice_k=4),
    Tile(16, 16, 64, 4, 4, slice_k=16),
)
"""Candidate tiles, chosen by times on an H200. On any device, every tile that fits may be
measured."""

_SPLITS = (2, 4, 8, 16)
"""Numbers of work-groups that may share the K range of a tile."""
_LEAST_STEPS = 4
"""Minimum number of steps along K that each work-group has with split-K."""
_PROCESSOR_COST = {
    (128, 96, 16): 1.0, (64, 64, 8): 1.25, (128, 32, 16): 1.39, (64, 64, 16): 1.51,
    (256, 32, 8): 2.4, (64, 32, 16): 3.0, (256, 16, 8): 3.0, (32, 32, 16): 3.1, (128, 128, 8): 3.7,
    (16, 32, 32): 4.0, (32, 32, 32): 4.2, (16, 16, 64): 6.2, (256, 128, 8): 9.0,
    (128, 256, 8): 9.0}
"""Relative time of a multiply-add on a CPU, by tile_p, tile_m and tile_k. The table was fitted to
times of SqueezeNet's layers under PoCL on two cores with AVX-512. On these cores, the better of the
two tiles with the lowest estimates is 11% slower than the best tile of a layer. On other CPUs, this
table and the two numbers below only decide the order in which tiles are tried."""
_PROCESSOR_STORE = 30
"""Time of storing a result, as a multiple of the time of a multiply-add."""
_PROCESSOR_SHARE = 0.11
"""Fraction of a core's peak rate of multiply-adds that a tile with the relative time 1 reaches."""


class Im2colGemm(KernelAlgorithm):
    """Product of the im2col matrix and the weights.

    Kernels gather tiles of the im2col matrix from the input into shared memory.
    """

    op = "conv2d"
    name = "im2col_gemm"
    reads_parts = True
    writes_parts = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.compiles:
            return f"{device.name} compiles no kernels"
        if (reason := too_large(problem)) is not None:
            return reason
        if max((taps - 1) * step for taps, step in
               zip(problem.kernel, problem.dilation, strict=True)) >= 2**15:
            return "needs windows of less than 2^15 rows and columns"
        if not _fitting(device.limits):
            return (f"no tile fits the {device.limits.shared_bytes} bytes of shared memory and "
                    f"the work-groups of {device.name}")
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        tiles = [tile for whole in _fitting(device.limits)
                 for tile in (whole, *_split(problem, whole, device))]

        def expected_us(tile: Tile) -> float:
            return (_expected_us(problem, tile, device)
                    + device.queued_us * (2 if tile.split_k > 1 else 1))

        for tile in sorted(tiles, key=expected_us):
            workspace = 4 * tile.split_k * problem.outputs[0].size if tile.split_k > 1 else 0
            variants = [Variant(config_of(tile), inputs, outputs, workspace=workspace)
                        for inputs, outputs in specs_of_layouts(problem)]
            yield from variants
            yield from (variant.as_fp16 for variant in variants)

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        return _expected_us(problem, sizes_of(Tile, variant), device)

    def launch_count(self, variant: Variant) -> int:
        return 2 if variant["split_k"] > 1 else 1

    def kernel_sources(self, problem: Conv2dProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        sources = (_source(problem, variant),)
        return sources if variant["split_k"] == 1 else (*sources, _sum_source(problem, variant))

    def kernel_launches(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        tile, x, y = sizes_of(Tile, variant), variant.inputs[0], variant.outputs[0]
        nhwc = x.layout == "NHWC"
        vector = _vector(problem, x)
        per_group = problem.group_out_channels
        kernel = device.compile(_source(problem, variant))
        stride = -(-per_group // 4) * 4
        packed = weights.packed(f"k by channels, {'rsc' if nhwc else 'crs'}",
                                lambda arrays: _pack(arrays, problem, nhwc))
        x_image, x_channel, x_row, x_column = x.strides
        table = None
        if not problem.is_pointwise:
            key = f"table of k {x.strides[1:]} {problem.dilation} {vector}"
            table = weights.packed(
                key, lambda _: k_table(problem, x, channels_last=nhwc)[::vector])
        groups_m = -(-per_group // tile.tile_m)
        groups_p = -(-problem.pixels // tile.tile_p)
        epilogue = epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)
        is_split = tile.split_k > 1
        launches = [Launch(
            kernel, (groups_m * groups_p, problem.groups, tile.split_k), (tile.work_group, 1, 1),
            (input_buffer(0), packed, workspace_buffer if is_split else output_buffer(0), table,
             problem.pixels, per_group,
             problem.depth, stride, problem.height, problem.width, problem.out_width,
             problem.image_pixels, *problem.stride, *problem.pads[:2],
             x.offset, x_image, x_row, x_column, x_channel,
             x_channel * problem.group_channels,
             *((0, problem.out_channels) if is_split else (y.offset, channels_in_memory(y))),
             *([] if is_split else epilogue)))]
        if is_split:
            results = problem.outputs[0].size
            launches.append(Launch(
                device.compile(_sum_source(problem, variant)), groups_for(results),
                (WORK_GROUP_SIZE,),
                (workspace_buffer, output_buffer(0), results, *divisor(problem.out_channels),
                 *divisor(problem.image_pixels), y.offset,
                 channels_in_memory(y), *epilogue)))
        return launches


def _vector(problem: Conv2dProblem, x: TensorSpec) -> int:
    """Return the number of adjacent inputs along K that one load reads."""
    return 4 if x.layout == "NHWC" and problem.group_channels % 4 == 0 else 1


def _source(problem: Conv2dProblem, variant: Variant) -> KernelSource:
    x, y = variant.inputs[0], variant.outputs[0]
    vector = _vector(problem, x)
    is_split = variant["split_k"] > 1
    out_nhwc = is_split or y.layout == "NHWC"
    # output channels are adjacent in NHWC only; stores of four channels are aligned if a group has
    # a multiple of 4 channels
    out_vector = 4 if out_nhwc and problem.group_out_channels % 4 == 0 else 1
    return KernelSource.of(_SOURCE, "im2col_gemm", {
        **{key.upper(): value for key, value in variant.config},
        "BLOCKS_PER_UNIT": _blocks_per_unit(sizes_of(Tile, variant), vector),
        "VECTOR": vector,
        "POINTWISE": int(problem.is_pointwise),
        "PIXELS_FIRST": int(x.layout != "NHWC"),
        "OUT_NHWC": int(out_nhwc),
        "OUT_VECTOR": out_vector,
        "HALVES": int(variant.precision == "fp16"),
        **epilogue_macros(Epilogue() if is_split else problem.epilogue, tensor_dtype=y.dtype),
    })


def _sum_source(problem: Conv2dProblem, variant: Variant) -> KernelSource:
    y = variant.outputs[0]
    return KernelSource.of(_SUM_SOURCE, "split_sum", {
        "SPLIT_K": variant["split_k"],
        "HALVES": int(variant.precision == "fp16"),
        "OUT_NHWC": int(y.layout == "NHWC"),
        **epilogue_macros(problem.epilogue, tensor_dtype=y.dtype),
    })


def _split(problem: Conv2dProblem, tile: Tile, device: Device) -> list[Tile]:
    """Return the split-K tile with the lowest expected time, as a list.

    The list is empty if no split is expected to be faster than the tile without split-K.
    """
    steps = -(-problem.depth // tile.tile_k)
    splits = [replace(tile, split_k=split) for split in _SPLITS
              if steps >= split * _LEAST_STEPS
              and split * problem.outputs[0].size < 2**31]
    if device.on_processors or not splits:
        return []

    def expected_us(tile: Tile) -> float:
        return _expected_us(problem, tile, device)

    best = min(splits, key=expected_us)
    return [best] if expected_us(best) < expected_us(tile) else []


def _blocks_per_unit(tile: Tile, vector: int) -> int:
    """Return the number of work-groups that must fit a multiprocessor.

    Scalar loads need four times as many registers for addresses as vector loads do, so the widest
    tiles would spill registers if two work-groups had to fit.
    """
    return 1 if vector == 1 and tile.tile_p * tile.tile_m > 8192 else tile.blocks_per_unit


def _fitting(limits: Limits) -> list[Tile]:
    """Return the tiles that the device can run."""
    return [tile for tile in TILES
            if tile.shared_bytes <= limits.shared_bytes
            and tile.work_group <= limits.work_group_size]


def _expected_us(problem: Conv2dProblem, tile: Tile, device: Device) -> float:
    """Return the estimated time of a launch in microseconds."""
    estimate = _processor_us if device.on_processors else _gpu_us
    return estimate(problem, tile, device)


def _work_groups(problem: Conv2dProblem, tile: Tile) -> int:
    per_group = problem.group_out_channels
    return (-(-problem.pixels // tile.tile_p) * -(-per_group // tile.tile_m) * problem.groups
            * tile.split_k)


def _processor_us(problem: Conv2dProblem, tile: Tile, device: Device) -> float:
    """Return the estimated time on a CPU in microseconds.

    The estimate covers the multiply-adds and stores of all work-groups, including padding.
    """
    rounds = -(-_work_groups(problem, tile) // max(device.limits.compute_units, 1))
    padded_k = -(-problem.depth // tile.tile_k) * tile.tile_k
    multiply_add = _PROCESSOR_COST[tile.tile_p, tile.tile_m, tile.tile_k]
    return (rounds * tile.tile_p * tile.tile_m * (padded_k * multiply_add + _PROCESSOR_STORE)
            / (_PROCESSOR_SHARE * rates_of_unit(device).multiply_adds))


def _gpu_us(problem: Conv2dProblem, tile: Tile, device: Device) -> float:
    """Return the estimated time on a GPU in microseconds.

    The time is the sum of the launch overhead, the steps along K, and the stores. A step takes the
    longer of two times: its latency, or the arithmetic and the staging of all work-groups of a
    multiprocessor.

    The six constants were fitted to 600 timings of MobileNetV2's layers on an H200. With these
    constants, the tile with the lowest estimate is 4% (batch 1) and 12% (batch 64) slower than the
    best tile of a layer.
    """
    # All constants are in cycles, except `read`: the time to read an operand from shared memory,
    # divided by the time of a multiply-add. `fill` is the time to fill the multiply-add pipeline.
    start, read, latency, fill, store, stage = 3800, 0.4, 224, 3.76, 0.29, 0.029
    groups = _work_groups(problem, tile)
    units = max(device.limits.compute_units, 1)
    groups_per_unit = max(1.0, groups / units)
    most_groups_per_unit = -(-groups // units) if groups < 4 * units else groups_per_unit
    steps = -(-problem.depth // tile.tile_k // tile.split_k)
    k_of_slice = tile.tile_k / tile.slice_k
    arithmetic = tile.work_group / 128 * k_of_slice * (
        tile.work_p * tile.work_m + read * (tile.work_p + tile.work_m))
    staging = stage * tile.work_group / 32 * (tile.tile_p + tile.tile_m) * tile.tile_k
    waiting = latency + fill * k_of_slice * tile.work_p * tile.work_m**0.5
    adding = (start + tile.split_k * store * problem.outputs[0].size / units
              if tile.split_k > 1 else 0.0)
    cycles = (start + steps * max(waiting, most_groups_per_unit * (arithmetic + staging))
              + groups_per_unit * store * tile.tile_p * tile.tile_m + adding)
    return cycles / CYCLES_PER_MICROSECOND


def _pack(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem,
          channels_last: bool) -> np.ndarray:
    """Return the weights as (groups, K, output channels of a group rounded up to 4).

    k runs over (r, s, c) if `channels_last`, else over (c, r, s).
    """
    weight = arrays["weight"].astype(np.float32)
    groups, m = problem.groups, problem.group_out_channels
    order = (0, 3, 4, 2, 1) if channels_last else (0, 2, 3, 4, 1)
    split = weight.reshape(groups, m, -1, *problem.kernel).transpose(order).reshape(groups, -1, m)
    packed = np.zeros((*split.shape[:2], -(-m // 4) * 4), dtype=np.float32)
    packed[:, :, :m] = split
    return packed
