"""Matrix products of two tensors on tensor cores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import PRECISIONS, Variant
from gossamer.ops.conv2d.common import config_of, sizes_of
from gossamer.ops.gpu import (
    TILE,
    LaunchWork,
    copy_rate,
    groups_per_unit,
    product_cycles,
    wait_cycles,
    without_tensor_cores,
)
from gossamer.ops.launch import Launch
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.matmul.tiled import DeviceMatmul
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("mma.cu")
_CHUNK = 16
"""Bytes of the widest asynchronous copy."""
_STEP = 32
"""Bytes along K that one mma instruction multiplies."""
_LOADS = 8
"""Number of loads of single elements that a multiprocessor issues per cycle; a rule of thumb."""
_STORE = 0.14
"""Cycles per result to move its sum through shared memory and to store it as part of a vector."""


@dataclass(frozen=True)
class MatmulTile:
    """The sizes of a work-group's tile.

    tile_m, tile_n: numbers of rows and columns of results per work-group.
    warps_m, warps_n: numbers of warps among which the rows and the columns are divided.
    warps_k: number of warps among which K is divided.
    steps: number of steps per stage, each of 32 bytes along K.
    slots: number of stages that shared memory holds.
    blocks_per_unit: number of work-groups per multiprocessor for which the compiler must leave
    registers.
    """

    tile_m: int
    tile_n: int
    warps_m: int
    warps_n: int
    warps_k: int = 1
    steps: int = 4
    slots: int = 3
    blocks_per_unit: int = 2

    @property
    def work_group(self) -> int:
        """Number of work-items per work-group."""
        return 32 * self.warps_m * self.warps_n * self.warps_k


TILES = (
    MatmulTile(16, 16, 1, 1, 8, steps=8, slots=6, blocks_per_unit=2),
    MatmulTile(16, 16, 1, 1, 4, blocks_per_unit=8),
    MatmulTile(32, 32, 1, 1, 8, steps=8, slots=6, blocks_per_unit=2),
    MatmulTile(32, 32, 1, 1, 4, blocks_per_unit=5),
    MatmulTile(48, 48, 1, 1, 4, slots=4, blocks_per_unit=3),
    MatmulTile(64, 64, 2, 2, 2, steps=8, blocks_per_unit=2),
    MatmulTile(16, 128, 1, 4, blocks_per_unit=6),
    MatmulTile(32, 32, 2, 2, blocks_per_unit=8),
    MatmulTile(32, 128, 1, 4, blocks_per_unit=4),
    MatmulTile(48, 64, 1, 4, blocks_per_unit=5),
    MatmulTile(64, 32, 4, 1, blocks_per_unit=6),
    MatmulTile(64, 64, 2, 2, blocks_per_unit=4),
    MatmulTile(128, 64, 4, 2, blocks_per_unit=2),
    MatmulTile(128, 128, 4, 2, blocks_per_unit=1),
)
"""The candidate tiles; those with `warps_k` > 1 come first."""


class MmaMatmul(DeviceMatmul):
    """Products on tensor cores in TF32 or float16 with float32 accumulation.

    In TF32 the operands are rounded.
    """

    name = "matmul_mma"

    def supports(self, problem: MatmulProblem, device: Device) -> str | None:
        return without_tensor_cores(problem, device) or super().supports(problem, device)

    def variants(self, problem: MatmulProblem, device: Device) -> Iterator[Variant]:
        return self.variants_in(problem, device, PRECISIONS)

    def variants_in(self, problem: MatmulProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        def in_fp16(tile: MatmulTile) -> float:
            # tiles are ordered by their expected time in the fastest precision
            return _expected_us(problem, tile, 2, 2, device.limits)

        fitting = (tile for tile in TILES
                   if _shared_bytes(problem, tile, 4) <= device.limits.shared_bytes_opt_in)
        for tile in sorted(fitting, key=in_fp16):
            tf32 = Variant(config_of(tile), problem.inputs, problem.outputs, "tf32")
            for variant in (tf32, tf32.as_fp16, replace(tf32.as_fp16, outputs=problem.outputs)):
                if variant.precision in precisions:
                    yield variant

    def expected_us(self, problem: MatmulProblem, variant: Variant, device: Device) -> float:
        return _expected_us(problem, sizes_of(MatmulTile, variant), _itemsize(variant),
                            variant.outputs[0].stored_dtype.itemsize, device.limits)

    def kernel_sources(self, problem: MatmulProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        return (_source(problem, variant),) if problem.outputs[0].size else ()

    def kernel_launches(self, weights: Weights, problem: MatmulProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        tile = sizes_of(MatmulTile, variant)
        return [self._launch(
            weights, problem, variant, device, _source(problem, variant),
            (tile.tile_m, tile.tile_n), tile.work_group, _line_lengths(problem),
            _shared_bytes(problem, tile, _itemsize(variant)))]


def _itemsize(variant: Variant) -> int:
    """Return the size of an operand's element in bytes."""
    return 2 if variant.precision == "fp16" else 4


def _along_k(problem: MatmulProblem) -> tuple[bool, bool]:
    """Return whether K is the contiguous dimension, for `a` and for `b`.

    If `a` has one row, both dimensions of `a` are contiguous, and K is chosen. The same holds if
    `b` has one column.
    """
    return (0 not in problem.transposed or problem.matrix_a[-2] == 1,
            1 in problem.transposed or problem.matrix_b[-1] == 1)


def _line_lengths(problem: MatmulProblem) -> tuple[int, int]:
    """Return the sizes of the contiguous dimensions of `a` and of `b`."""
    rows, inner = problem.matrix_a[-2:]
    a_by_k, b_by_k = _along_k(problem)
    return inner if a_by_k else rows, inner if b_by_k else problem.matrix_b[-1]


def _at_once(length: int, itemsize: int) -> int:
    """Return the number of elements that can be copied at once.

    All lines of `length` elements must begin at a multiple of the copy's size.
    """
    return math.gcd(length, _CHUNK // itemsize)


def _source(problem: MatmulProblem, variant: Variant) -> KernelSource:
    itemsize = _itemsize(variant)
    a_length, b_length = _line_lengths(problem)
    a_by_k, b_by_k = _along_k(problem)
    return KernelSource.of(_SOURCE, "matmul_mma", {
        **{key.upper(): value for key, value in variant.config},
        "HALVES": int(variant.precision == "fp16"),
        "TF32": 1,
        "A_BY_K": int(a_by_k),
        "B_BY_K": int(b_by_k),
        "A_AT_ONCE": _at_once(a_length, itemsize),
        "B_AT_ONCE": _at_once(b_length, itemsize),
        "C_AT_ONCE": _at_once(problem.matrix_b[-1], variant.outputs[0].stored_dtype.itemsize),
        "ROUNDS": int(variant.outputs[0].dtype == "float16"),
    }, architectures=("sm_80", "sm_100"), dynamic_shared=True)


def _stages(problem: MatmulProblem, tile: MatmulTile, itemsize: int) -> int:
    """Return the number of stages into which K is divided."""
    return -(-problem.matrix_a[-1] * itemsize // (tile.steps * _STEP))


def _shared_bytes(problem: MatmulProblem, tile: MatmulTile, itemsize: int) -> int:
    """Return the bytes of shared memory per work-group.

    Shared memory holds the lines of several stages; in the end, the sums of all warps overwrite the
    lines.
    """
    depth = tile.steps * _STEP // itemsize
    slot = 0
    for by_k, across in zip(_along_k(problem), (tile.tile_m, tile.tile_n), strict=True):
        lines, length = (across, depth) if by_k else (depth, across)
        # padding between lines avoids bank conflicts
        slot += lines * (length * itemsize + (16 if by_k or itemsize == 2 else 32))
    sums = 4 * tile.warps_k * tile.tile_m * (tile.tile_n + 8)
    return max(min(tile.slots, _stages(problem, tile, itemsize)) * slot, sums)


def _expected_us(problem: MatmulProblem, tile: MatmulTile, itemsize: int, out_itemsize: int,
                 limits: Limits) -> float:
    """Return the estimated time in microseconds."""
    rows, inner = problem.matrix_a[-2:]
    columns = problem.matrix_b[-1]
    k_bytes = -(-inner * itemsize // _STEP) * _STEP
    stages = _stages(problem, tile, itemsize)
    area = tile.tile_m * tile.tile_n
    copied = 0.0
    for length, across, extent in zip(_line_lengths(problem), (tile.tile_m, tile.tile_n),
                                      (rows, columns), strict=True):
        copy = _at_once(length, itemsize) * itemsize
        rate = copy_rate(copy) if copy >= 4 else _LOADS * itemsize
        copied += min(across, extent) * k_bytes / rate
    stored = area * _STORE * (1 if _at_once(columns, out_itemsize) > 1 else 1.5) * (
        1 + (tile.warps_k - 1) / 4)
    return LaunchWork(
        math.prod(problem.batch) * -(-rows // tile.tile_m) * -(-columns // tile.tile_n),
        groups_per_unit(_shared_bytes(problem, tile, itemsize), limits, tile.blocks_per_unit),
        busy=max(copied, product_cycles(area, k_bytes, wgmma=False)) + stored,
        waited=wait_cycles(stages, min(tile.slots - 1, stages), tile.steps / 8) + stored,
        begin=TILE, moved=(itemsize * (problem.a.size + problem.b.size)
                            + out_itemsize * problem.outputs[0].size)).expected_us(limits)
