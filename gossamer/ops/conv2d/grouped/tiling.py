"""Tiles of grouped_mma: which of them fit, and their expected times."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

from gossamer.device.limits import Limits
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gpu import BEGIN, COPIED, LaunchWork, groups_per_unit
from gossamer.tensor import rounded_up

Size = TypeVar("Size")

WARPS = 4
"""Warps of a work-group."""
_PER_UNIT = {72: 4, 88: 3}
"""Number of work-groups that a multiprocessor should hold at once. A key is the maximum number of
registers that the sums of a work-item and the weights of one window column may take. With four
work-groups, a work-item has 128 registers. With three, a work-item has 168 registers. Addresses,
pixels and indices take up to 60 registers."""
_ROWS, _STRIPS, _COLUMNS, _UNITS = (1, 2, 4, 7), (1, 2, 4), (7, 8, 14, 16, 28, 32, 56), (1, 2, 4)
_EXCESS_ROWS, _EXCESS_COLUMNS = 1.15, 1.1
"""The number of rows, and of columns, that tiles cover may be at most this many times the minimum
over all tile sizes."""
_CANDIDATES = 6
"""Maximum number of candidate tiles in each precision."""
# The rates below are estimates for an H200, not yet fitted to measurements. They only decide the
# order in which tiles are tried.
_PRODUCT = 1.5
"""Cycles of a multiprocessor for one mma instruction of a warp."""
_BANKS = 128
"""Bytes per cycle that a multiprocessor reads from or writes to shared memory."""
_READ, _STORED = 24.0, 14.0
"""Bytes per cycle that a multiprocessor reads from device memory or the L2 cache, and bytes per
cycle that it writes to device memory."""
_LINE = 128
"""Bytes of a line of the L1 cache; a multiprocessor accesses one line per cycle."""
_COPY_INSTRUCTIONS, _SCHEDULERS = 20, 4
"""Instructions that a warp runs to copy 16 bytes per lane to shared memory, and warp schedulers of
a multiprocessor."""
_LATENCY, _COPY_LATENCY, _STORE_LATENCY, _INSTRUCTION = 40, 1200, 80, 2
"""Cycles of a warp: to wait for a fragment from shared memory, to wait for a tile from device
memory, to store a row of outputs, and to run one instruction of a copy."""


@dataclass(frozen=True)
class GroupedTile:
    """The sizes of a work-group. They are the config of a variant.

    rows: rows of outputs of a warp.
    strips: strips of `rows` rows in a tile.
    columns: columns of outputs of a tile.
    units: units of output channels of a work-group.
    tiles: tiles of 8 output channels of a unit, 2 or 4.
    stages: number of tiles whose input pixels are in shared memory at once. It is 2 if a work-group
    may compute several tiles, else 1.
    """

    rows: int
    strips: int
    columns: int
    units: int
    tiles: int
    stages: int


@dataclass(frozen=True)
class Layout:
    """Division of a problem's channels into units.

    word_channels: number of channels in a word of 16 bytes.
    unit: number of output channels of a unit.
    """

    problem: Conv2dProblem
    word_channels: int
    unit: int

    @cached_property
    def units(self) -> int:
        """Number of units."""
        return -(-self.problem.out_channels // self.unit)

    def first_word(self, unit: int) -> int:
        """Return the index of the first word that a unit reads in each pixel."""
        problem = self.problem
        group = unit * self.unit // problem.group_out_channels
        return group * problem.group_channels // self.word_channels

    @cached_property
    def span(self) -> int:
        """Number of words that a unit reads in each pixel, rounded up to an even number."""
        return rounded_up(max(map(self._words, range(self.units))), 2)

    def _words(self, unit: int) -> int:
        """Return in how many words of each pixel the input channels of a unit lie."""
        problem = self.problem
        last = min((unit + 1) * self.unit, problem.out_channels) - 1
        end = (last // problem.group_out_channels + 1) * problem.group_channels
        return -(-end // self.word_channels) - self.first_word(unit)

    def pieces(self, count: int) -> int:
        """Return how many words a work-group of `count` units reads in each pixel."""
        ends = range(count - 1, self.units + count - 1, count)
        return self.span + max(self._first_words[end] - self._first_words[end + 1 - count]
                               for end in ends)

    @cached_property
    def _first_words(self) -> list[int]:
        """The first word of each unit, including the surplus units that pad the last work-group."""
        return [self.first_word(unit) for unit in range(self.units + max(_UNITS))]

    @cached_property
    def lines(self) -> Mapping[int, int]:
        """Number of input rows that a warp reads, by the number of output rows that it computes."""
        stride, dilation = self.problem.stride[0], self.problem.dilation[0]
        return {rows: len({i * stride + r * dilation for i in range(rows)
                           for r in range(self.problem.kernel[0])}) for rows in _ROWS}

    @property
    def unit_bytes(self) -> int:
        """Bytes of the packed weights of a unit."""
        return self.problem.taps * self.span * 16 * self.unit


@lru_cache(maxsize=256)
def layout_of(problem: Conv2dProblem, precision: str, tiles: int) -> Layout:
    """Return the layout whose units have `tiles` tiles of 8 output channels."""
    return Layout(problem, 8 if precision == "fp16" else 4, 8 * tiles)


@dataclass(frozen=True)
class Work:
    """The work of a launch with one tile size.

    The terms are those of grouped_mma.cu.
    """

    layout: Layout
    tile: GroupedTile

    @cached_property
    def pieces(self) -> int:
        """Number of words that a work-group reads in each pixel."""
        return self.layout.pieces(self.tile.units)

    @property
    def chunks(self) -> int:
        """Number of work-groups that together compute all units of a tile."""
        return -(-self.layout.units // self.tile.units)

    @property
    def tiles_y(self) -> int:
        """Tiles over the height of an image."""
        return -(-self.layout.problem.out_height // (self.tile.strips * self.tile.rows))

    @property
    def tiles_x(self) -> int:
        """Tiles over the width of an image."""
        return -(-self.layout.problem.out_width // self.tile.columns)

    @property
    def tiles(self) -> int:
        """Tiles of outputs of the whole batch, at least 1."""
        return max(1, self.layout.problem.batch * self.tiles_y * self.tiles_x)

    @cached_property
    def halo(self) -> tuple[int, int]:
        """Rows and columns of input pixels that a tile reads."""
        problem, tile = self.layout.problem, self.tile
        return problem.window(0, tile.strips * tile.rows), problem.window(1, tile.columns)

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group."""
        stride = self.layout.problem.stride[1]
        pixels = self.halo[0] * rounded_up(self.halo[1], stride)
        return (self.tile.units * self.layout.unit_bytes
                + self.tile.stages * pixels * (self.pieces | 1) * 16)

    def fits(self, limits: Limits) -> bool:
        """Return whether registers and shared memory have room for the tile."""
        return (self._registers <= max(_PER_UNIT)
                and self.shared_bytes <= limits.shared_bytes_opt_in)

    @property
    def _registers(self) -> int:
        """Registers for the sums of a work-item and the weights of a column of the window."""
        return self.tile.tiles * (4 * self.tile.rows + 2 * self.layout.problem.kernel[0])

    def at_once(self, limits: Limits) -> int:
        """Return the number of work-groups that a multiprocessor holds at once."""
        return groups_per_unit(self.shared_bytes, limits, next(
            count for most, count in _PER_UNIT.items() if self._registers <= most))

    def groups(self, limits: Limits) -> int:
        """Return the number of work-groups that compute the same units of different tiles."""
        if self.tile.stages == 1:
            return self.tiles
        of_device = max(1, limits.compute_units) * self.at_once(limits)
        return min(self.tiles, max(1, of_device // self.chunks))

    def expected_us(self, limits: Limits) -> float:
        """Return the expected time of the kernel in microseconds."""
        problem, tile, layout = self.layout.problem, self.tile, self.layout
        itemsize = 16 // layout.word_channels
        tasks = -(-tile.strips * tile.columns // 16) * tile.units
        steps = problem.kernel[1] * layout.span // 2
        lines = layout.lines[tile.rows]
        products = problem.kernel[0] * tile.rows * tile.tiles
        halo_bytes = self.halo[0] * self.halo[1] * self.pieces * 16
        outputs = tile.strips * tile.rows * tile.columns * tile.units * layout.unit
        weight_bytes = tile.units * layout.unit_bytes
        taken = self.tiles / self.groups(limits)
        step_bytes = 512 * lines + 256 * problem.kernel[0] * tile.tiles
        begun = weight_bytes / COPIED / taken
        lines_of_memory = (self.halo[0] * self.halo[1] * -(-self.pieces * 16 // _LINE)
                           + outputs / layout.unit)
        busy = max(
            tasks * steps * products * _PRODUCT,
            (tasks * steps * step_bytes + halo_bytes) / _BANKS + lines_of_memory,
            halo_bytes / _READ + outputs * itemsize / _STORED + begun,
            halo_bytes / 16 / 32 * _COPY_INSTRUCTIONS / _SCHEDULERS)
        of_warp = steps * (_LATENCY + products * _PRODUCT * WARPS) + tile.rows * _STORE_LATENCY
        waited = (-(-tasks // WARPS) * of_warp
                  + -(-halo_bytes // (16 * 32 * WARPS)) * _COPY_INSTRUCTIONS * _INSTRUCTION)
        if tile.stages == 1:
            waited += _COPY_LATENCY
        moved = (problem.inputs[0].size + problem.outputs[0].size) * itemsize
        return LaunchWork(self.tiles * self.chunks, self.at_once(limits), busy, waited,
                          begin=BEGIN / taken, moved=moved).expected_us(limits)


@lru_cache(maxsize=256)
def works_of(problem: Conv2dProblem, precision: str, limits: Limits) -> tuple[Work, ...]:
    """Return the candidates, the fastest expected first.

    For each pair (number of units, number of stages), the tile with the lowest expected time is a
    candidate. Several pairs are tried, because the effect of units and stages on the time is the
    least certain part of the estimate.
    """
    most = 4 if precision == "fp16" and problem.group_out_channels % 32 == 0 else 2
    layout = layout_of(problem, precision, most)
    heights = _close_covers({(rows, strips): rows * strips for rows, strips in itertools.product(
        _ROWS, _STRIPS)}, problem.out_height, _EXCESS_ROWS)
    widths = _close_covers({columns: columns for columns in _COLUMNS}, problem.out_width,
                           _EXCESS_COLUMNS)
    found = []
    for (rows, strips), columns, units in itertools.product(heights, widths, _UNITS):
        if units >= 2 * layout.units:
            continue
        one = Work(layout, GroupedTile(rows, strips, columns, units, most, 1))
        if not one.fits(limits):
            continue
        found.append((one.expected_us(limits), one))
        several = Work(layout, GroupedTile(rows, strips, columns, units, most, 2))
        if several.fits(limits) and several.groups(limits) < several.tiles:
            found.append((several.expected_us(limits), several))
    fastest: dict[tuple[int, int], Work] = {}
    for _, work in sorted(found, key=lambda pair: pair[0]):
        fastest.setdefault((work.tile.units, work.tile.stages), work)
    return tuple(fastest.values())[:_CANDIDATES]


def _close_covers(sizes: Mapping[Size, int], outputs: int, most: float) -> list[Size]:
    """Return the keys of the tile sizes whose tiles cover few outputs beyond the last one.

    Tiles of one size cover `outputs`, rounded up to whole tiles. A size is among the results if
    this number is at most `most` times the minimum over all sizes.
    """
    covered = {key: -(-outputs // size) * size for key, size in sizes.items()}
    return [key for key, count in covered.items()
            if count <= most * min(covered.values())]
