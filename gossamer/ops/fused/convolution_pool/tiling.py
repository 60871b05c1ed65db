"""Divides the work of convolution_pool_mma into tiles, and estimates their times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gossamer.device.limits import Limits
from gossamer.ops.conv2d.common import CYCLES_PER_MICROSECOND
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.pool.problem import PoolProblem

COLUMNS = 64
"""Columns of the convolution's outputs that a work-group computes."""
WORK_GROUP_SIZE = 128
TAPS = 8
"""Columns of a window that 16 bytes hold."""
_PARTS = (64, 48, 32, 16, 8)
_WGMMA_PARTS = (64, 48, 32, 16)
"""The possible numbers of output channels of a work-group, with mma and with wgmma."""
_MOST_DIVISIONS = 8
"""The most work-groups along the rows of results; each smaller number is considered, too."""
_SMALL_HEIGHTS = (4, 2, 1)
"""Further heights of tiles, in rows of results, that are considered."""
_OFFERED = 5
"""Number of tiles that are offered: the tiles with the least expected times."""
_MOST_SUMS = 128
"""The largest product of rows of outputs and output channels whose sums fit the registers of a
work-group."""
_AT_ONCE = 3
"""The most work-groups whose registers fit a multiprocessor."""
_UNIT_BYTES, _RESERVED_BYTES = 233472, 1024
"""Bytes of shared memory of a multiprocessor of sm_90, and bytes that CUDA reserves for each
work-group."""

# The rates below were fitted to the times of 84 tiles in six problems on an H200, to within 14%.
# On another device they decide only the order in which tiles are tried: the tuner corrects the
# scale of an algorithm's estimates by its measurements.
_MMA = 3.0
"""Cycles in which a multiprocessor computes a product of 16 x 8 x 16 by mma."""
_SHARED = 82.0
"""Bytes that shared memory gives in a cycle."""
_ISSUED = 0.54
"""Instructions that a scheduler issues in a cycle."""
_OF_LINE, _OF_SUM, _OF_RESULT = 21.0, 6.3, 31.0
"""Instructions of a warp: for a line of the image, for a sum, and for the 8 channels of a result
that a lane stores."""
_ACCESSES_OF_LINE = 26
"""Cycles of shared memory in which a line of the image is loaded, exchanged and stored."""
_LATENCY = 1400.0
"""Cycles in which a work-group begins, and loads its weights and first rows."""
_BARRIERS = 680.0
"""Cycles of a band of rows that no other work of the same work-group hides."""
_BYTES_PER_MICROSECOND = 4.26e6
"""Bytes that device memory reads and writes in a microsecond."""


@dataclass(frozen=True)
class PoolTile:
    """The work of a work-group; its fields are the config of a variant.

    height: rows of results of a work-group.
    channels: output channels of a work-group.
    wgmma: 1 where the warps multiply together by wgmma (sm_90a), 0 where each warp multiplies alone
    by mma.
    """

    height: int
    channels: int
    wgmma: int


@dataclass(frozen=True)
class PoolTiling:
    """A convolution and the maximum after it, divided into tiles."""

    convolution: Conv2dProblem
    pool: PoolProblem
    tile: PoolTile

    @property
    def shared_rows(self) -> int:
        """Rows of the convolution's outputs that a window shares with the next window."""
        return max(0, self.pool.kernel[0] - self.pool.stride[0])

    @property
    def rows(self) -> int:
        """Rows of the convolution's outputs that are new in a window."""
        return self.pool.kernel[0] - self.shared_rows

    @property
    def advance(self) -> int:
        """Rows of the image from one row of results to the next."""
        return self.pool.stride[0] * self.convolution.stride[0]

    @property
    def rows_held(self) -> int:
        """Rows of the image in shared memory."""
        p = self.convolution
        return (self.rows - 1) * p.stride[0] + p.kernel[0] + self.advance

    @property
    def lines(self) -> int:
        """Number of lines under a window, rounded up to an even number. Each line holds 8 numbers
        of the window."""
        return -(-self.convolution.channels * self.convolution.kernel[0] // 2) * 2

    @property
    def tiles_x(self) -> int:
        """Tiles along a row of results, each of at most 64 columns of convolution outputs."""
        most = (COLUMNS - self.pool.kernel[1]) // self.pool.stride[1] + 1
        return -(-self.pool.out_width // most)

    @property
    def tile_width(self) -> int:
        """Columns of results of a tile."""
        return -(-self.pool.out_width // self.tiles_x)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Work-groups along x, y and z."""
        return (self.tiles_x * (self.convolution.out_channels // self.tile.channels),
                -(-self.pool.out_height // self.tile.height), self.convolution.batch)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group: its weights; the lines of the image, a copy of
        the first line and a line of zeros; and the maxima of 64 columns, with padding so that
        columns begin in different banks."""
        part, held = self.tile.channels, self.convolution.channels * self.rows_held + 2
        column = 2 * part + (0 if part // 8 % 2 else 16)
        return 16 * (self.lines * part + COLUMNS * held) + COLUMNS * column

    def fits(self, limits: Limits) -> bool:
        """Returns whether a device can compute the tiling."""
        part = self.tile.channels
        return (self.convolution.out_channels % part == 0 and self.rows * part <= _MOST_SUMS
                and (not self.tile.wgmma or (limits.wgmma and part in _WGMMA_PARTS))
                and self.shared_bytes <= limits.shared_bytes_opt_in)

    def microseconds(self, limits: Limits) -> float:
        """Returns the expected time of the kernel, without its launch. Work-groups of a
        multiprocessor share its tensor cores, schedulers and shared memory, and wait at the same
        time."""
        p, part = self.convolution, self.tile.channels
        groups = self.grid[0] * self.grid[1] * self.grid[2]
        at_once = max(1, min(_AT_ONCE, _UNIT_BYTES // (self.shared_bytes + _RESERVED_BYTES)))
        waves = max(1, -(-groups // (limits.compute_units * at_once)))
        together = -(-groups // (limits.compute_units * waves))
        steps = self.rows * self.lines // 2
        if self.tile.wgmma:
            multiplied, instructions = steps * part / 2, 8.0 * steps
        else:
            multiplied = steps * part / 8 * 4 * _MMA
            instructions = steps * (5 + 1.5 * part / 8)
        instructions += _OF_LINE * p.channels * -(-self.advance // 4)
        instructions += _OF_SUM * self.rows * part / 2
        instructions += _OF_RESULT * -(-self.tile_width * part // (8 * WORK_GROUP_SIZE))
        issued = instructions / _ISSUED
        shared = (steps * (2048 + 32 * part) + 16 * self.tile_width * part // 8
                  * self.pool.kernel[1]) / _SHARED
        shared += _ACCESSES_OF_LINE * p.channels * self.advance + part
        band = max(max(multiplied, shared, issued) * together, multiplied + issued + _BARRIERS)
        bands = min(self.tile.height, self.pool.out_height) + min(1, self.shared_rows)
        moved = (p.inputs[0].size * 4 + self.pool.outputs[0].size * 2) / _BYTES_PER_MICROSECOND
        return max(moved, waves * (_LATENCY + bands * band) / CYCLES_PER_MICROSECOND)


def tilings(convolution: Conv2dProblem, pool: PoolProblem, limits: Limits) -> list[PoolTiling]:
    """Returns the tilings with the least expected times that a device can compute, fastest first.
    Tilings with mma are returned only where wgmma cannot compute the problem, because mma took
    longer in every measurement."""
    for wgmma in (1, 0):
        found = [tiling for tile in _tiles(convolution, pool, wgmma)
                 if (tiling := PoolTiling(convolution, pool, tile)).fits(limits)]
        if found:
            return sorted(found, key=lambda tiling: tiling.microseconds(limits))[:_OFFERED]
    return []


def _tiles(convolution: Conv2dProblem, pool: PoolProblem, wgmma: int) -> Iterator[PoolTile]:
    """Yields tiles with one of two numbers of output channels: the two largest of the possible
    numbers that divide the convolution's output channels and whose sums fit the registers."""
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
