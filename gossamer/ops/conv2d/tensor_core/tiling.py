"""Tiles of matrix products on tensor cores, and estimates of their times.

K is the axis over which the product sums. K runs over the taps (r, s) of a window and, for each
tap, over the input channels of a group. Eight chunks of 16 bytes along K make a line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gossamer.device.limits import Limits
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gpu import (
    COPIED,
    REGISTERS,
    TILE,
    LaunchWork,
    copy_rate,
    groups_per_unit,
    product_cycles,
    wait_cycles,
)
from gossamer.tensor import rounded_up

CHUNKS = 8
"""Number of chunks of 16 bytes in a line."""


def vector_of(precision: str) -> int:
    """Return the number of values in a chunk of 16 bytes."""
    return 8 if precision == "fp16" else 4


def columns_at_once(problem: Conv2dProblem) -> int:
    """Return the number of adjacent columns of an input in NHWC that may be copied at once.

    In the rows of windows that are never padded, such columns are values of one row. Windows and
    rows of the input begin at multiples of this number.
    """
    if problem.groups > 1 or problem.pads[1] or problem.pads[3] or problem.dilation[1] > 1:
        return 1
    return math.gcd(problem.kernel[1], problem.stride[1], problem.width)


def bytes_at_once(problem: Conv2dProblem, precision: str) -> int:
    """Return the bytes of an input in NHWC that are copied at once.

    The number is the largest divisor of 16 (the bytes of a chunk) that also divides the bytes of a
    group's channels in adjacent columns.
    """
    return math.gcd(16, columns_at_once(problem) * problem.group_channels
                    * (2 if precision == "fp16" else 4))


def stored_at_once(problem: Conv2dProblem, precision: str) -> int:
    """Return the number of adjacent output channels that a lane stores at once.

    The number is 8 (in float16 only), 4, 2 or 1.
    """
    return math.gcd(vector_of(precision), problem.group_out_channels)


def stages_of(problem: Conv2dProblem, precision: str) -> int:
    """Return the number of stages, each of 128 bytes along K."""
    return -(-problem.depth // (CHUNKS * vector_of(precision)))


def lines_of(problem: Conv2dProblem, precision: str) -> int:
    """Return the number of lines of a stage.

    A line belongs to one output channel of a group. The number of lines is rounded up to a multiple
    of 4 * vector_of(precision).
    """
    return rounded_up(problem.group_out_channels, 4 * vector_of(precision))


_BARRIER_BYTES = 1024
"""Bytes of shared memory for barriers, before the slots."""
_LINE = 128
"""Bytes of a line."""


@dataclass(frozen=True)
class MmaTile:
    """The sizes of a work-group's tile.

    tile_p: number of output pixels of a work-group.
    tile_m: number of output channels of a work-group.
    warps_p: number of warps that share the pixels.
    warps_m: number of warps that share the output channels.
    warps_k: number of warps that share the K range.
    cluster: number of work-groups that share the K range.
    slots: number of stages, of 128 bytes of K each, that shared memory holds.
    blocks_per_unit: number of work-groups that a multiprocessor should hold at once.
    keeps_weights: 1 if a work-group keeps the weights of all its tiles in shared memory.
    wgmma: 1 if warpgroups multiply by wgmma (sm_90a), 0 if warps multiply by mma.
    copy_warps: with wgmma, number of warps that only copy.
    """

    tile_p: int
    tile_m: int
    warps_p: int
    warps_m: int
    warps_k: int = 1
    cluster: int = 1
    slots: int = 4
    blocks_per_unit: int = 1
    keeps_weights: int = 0
    wgmma: int = 0
    copy_warps: int = 0

    @property
    def work_group(self) -> int:
        """Work-items of a work-group, including the copy warps."""
        return 32 * (self.warps_p * self.warps_m * self.warps_k + self.copy_warps)

    @property
    def copiers(self) -> int:
        """Number of work-items that copy."""
        return 32 * self.copy_warps or self.work_group

    @property
    def registers(self) -> tuple[int, int]:
        """Numbers of registers of a copying and of a multiplying work-item, with wgmma."""
        each = REGISTERS // (self.work_group * self.blocks_per_unit) // 8 * 8
        copy = min(each, 32 + 24 * (self.tile_p // 64))
        left = each * self.work_group - copy * self.copiers
        return copy, min(240, left // (self.work_group - self.copiers) // 8 * 8)

    def shared_bytes(self, stages: int) -> int:
        """Return the bytes of shared memory of a work-group.

        After the barriers and slots, shared memory holds the weights of all stages, or the sums of
        the warps and work-groups that share K.
        """
        has_barriers = self.wgmma or self.cluster > 1
        slots = self.slots * self.slot_bytes + has_barriers * _BARRIER_BYTES
        if self.keeps_weights:
            return slots + stages * self.tile_m * _LINE
        if self.cluster * self.warps_k == 1:
            return slots
        # each work-group adds up its share of the sums, in sets of 8 pixels and 32 or 16 channels
        return slots + 4 * self.warps_k * max(self.tile_p * self.tile_m, 256 * self.cluster)

    @property
    def takes_several(self) -> bool:
        """Whether a work-group computes several tiles, one after the other."""
        return self.cluster == 1

    def at_once(self, stages: int, limits: Limits) -> int:
        """Return the number of work-groups that the device holds at once."""
        return max(1, limits.compute_units) * groups_per_unit(self.shared_bytes(stages), limits,
                                                              self.blocks_per_unit)

    @property
    def lead(self) -> int:
        """Number of stages that are copied ahead."""
        return self.slots - 1

    @property
    def slot_bytes(self) -> int:
        """Bytes of a stage's lines."""
        return (self.tile_p + (0 if self.keeps_weights else self.tile_m)) * _LINE

    def stages_ahead_of_operand(self, precision: str) -> int:
        """Return how many stages can be copied while slots hold an operand of the epilogue.

        At the end of a tile, a tensor operand may be copied to slots of the ring, as if it were
        further stages. The result is negative if the operand is not copied to slots.
        """
        itemsize = 2 if precision == "fp16" else 4
        fits = [stages for stages in (1, 2, 4)
                if self.tile_p // stages * self.tile_m * itemsize <= self.slot_bytes]
        if not fits or self.warps_k > 1 or not self.takes_several:
            return -1
        return self.lead - fits[0]

    def tiles_of(self, problem: Conv2dProblem) -> tuple[int, int]:
        """Return the numbers of tiles along the pixels and along the output channels of a group."""
        return (-(-problem.pixels // self.tile_p),
                -(-problem.group_out_channels // self.tile_m))


TILES = (
    MmaTile(64, 64, 4, 1, slots=4, blocks_per_unit=3, wgmma=1, copy_warps=4),
    MmaTile(64, 64, 4, 1, slots=6, blocks_per_unit=2, wgmma=1, copy_warps=4),
    MmaTile(64, 96, 4, 1, slots=5, blocks_per_unit=2, wgmma=1, copy_warps=4),
    MmaTile(64, 128, 4, 1, slots=4, blocks_per_unit=2, wgmma=1, copy_warps=4),
    MmaTile(64, 192, 4, 1, slots=6, wgmma=1, copy_warps=4),
    MmaTile(64, 256, 4, 1, slots=5, wgmma=1, copy_warps=4),
    MmaTile(128, 128, 8, 1, slots=6, wgmma=1, copy_warps=8),
    MmaTile(128, 256, 8, 1, slots=4, wgmma=1, copy_warps=4),
    MmaTile(64, 192, 4, 1, slots=6, blocks_per_unit=2, keeps_weights=1, wgmma=1, copy_warps=4),
    MmaTile(64, 64, 4, 1, slots=5, cluster=2, blocks_per_unit=2, wgmma=1, copy_warps=4),
    MmaTile(64, 64, 4, 1, slots=5, cluster=4, blocks_per_unit=2, wgmma=1, copy_warps=4),
    MmaTile(64, 64, 4, 1, slots=5, cluster=8, blocks_per_unit=2, wgmma=1, copy_warps=4),
    MmaTile(256, 32, 8, 1, slots=3, blocks_per_unit=2),
    MmaTile(64, 32, 4, 1, slots=6, blocks_per_unit=4, keeps_weights=1),
    MmaTile(64, 32, 4, 1, slots=4, blocks_per_unit=4),
    MmaTile(16, 32, 1, 1, warps_k=4, slots=6, blocks_per_unit=4),
    MmaTile(16, 32, 1, 1, warps_k=4, cluster=2, slots=4),
    MmaTile(16, 32, 1, 1, warps_k=4, cluster=4, slots=4),
    MmaTile(128, 128, 2, 4, slots=4),
    MmaTile(128, 64, 2, 2, slots=3, blocks_per_unit=3),
    MmaTile(64, 64, 2, 2, slots=4, blocks_per_unit=3),
)
"""Candidate tiles, chosen by times on an H200; the last three are for GPUs without wgmma. On any
device, every tile that fits may be measured."""

_WINDOW = 1.28
"""Slowdown of copies of windows, because their pixels are not contiguous."""
_GATHER = 0.6
"""Cycles that a multiprocessor needs to load a single value; a rule of thumb."""
_EPILOGUE, _STORE = 0.0577, 0.0255
"""Cycles of the epilogue per sum, and of a store per byte."""


def copies(problem: Conv2dProblem, precision: str, layout: str) -> bool:
    """Return whether inputs are copied asynchronously, at least 4 bytes at once.

    If not, values are loaded one at a time.
    """
    return layout == "NHWC" and bytes_at_once(problem, precision) >= 4


def fitting(problem: Conv2dProblem, precision: str, layout: str, limits: Limits) -> list[MmaTile]:
    """Return the tiles that a device can run.

    layout: the layout of the input.
    """
    stages = stages_of(problem, precision)
    # with wgmma, only few warps copy: they are too few to load values one at a time, and they have
    # too few registers for narrow copies of windows
    is_narrow = bytes_at_once(problem, precision) < 16
    most_wgmma = limits.wgmma and copies(problem, precision, layout) and not (
        is_narrow and (problem.kernel != (1, 1) or any(problem.pads)))
    return [tile for tile in TILES
            if tile.cluster <= limits.cluster and tile.wgmma <= most_wgmma
            and tile.shared_bytes(stages) <= limits.shared_bytes_opt_in
            # each warp has whole blocks of output channels
            and tile.tile_m // tile.warps_m % (4 * vector_of(precision)) == 0]


def expected_us(problem: Conv2dProblem, tile: MmaTile, precision: str, layout: str,
                limits: Limits) -> float:
    """Return the estimated time of a launch in microseconds."""
    itemsize = 2 if precision == "fp16" else 4
    vector = vector_of(precision)
    stages = stages_of(problem, precision)
    own_stages = -(-stages // tile.cluster)
    area = tile.tile_p * tile.tile_m
    operands = problem.epilogue.tensor_count * itemsize * area
    # x_bytes and weight_bytes are per stage of a work-group; the cycles below are per tile
    x_bytes = tile.tile_p * problem.depth * itemsize / max(1, stages)
    if problem.kernel != (1, 1):
        x_bytes *= _WINDOW
    weight_bytes = 0 if tile.keeps_weights else tile.tile_m * _LINE
    copied = (own_stages * weight_bytes + operands) / COPIED
    if copies(problem, precision, layout):
        copied += own_stages * x_bytes / copy_rate(bytes_at_once(problem, precision))
    else:
        copied += own_stages * (x_bytes / COPIED + tile.tile_p * vector * _GATHER)
    multiplied = product_cycles(area, own_stages * _LINE, bool(tile.wgmma))
    # a store of less than a chunk fills only half of a 32-byte sector of the L2 cache
    stores = 1 if stored_at_once(problem, precision) == vector else 2
    stored = area * (_EPILOGUE + stores * _STORE * itemsize)
    tiles_p, tiles_m = tile.tiles_of(problem)
    per_unit = (groups_per_unit(tile.shared_bytes(stages), limits, tile.blocks_per_unit)
                if tile.takes_several else tile.blocks_per_unit)
    return LaunchWork(
        tiles_p * tiles_m * problem.groups * tile.cluster, per_unit,
        busy=max(copied, multiplied) + stored, waited=wait_cycles(own_stages, tile.lead) + stored,
        begin=TILE, moved=itemsize * sum(
            spec.size for spec in (*problem.inputs, *problem.outputs))).expected_us(limits)
