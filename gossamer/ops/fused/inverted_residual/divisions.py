"""Division of the products and convolutions of a chunk among the warps of inverted_residual_mma.

Many tiles of a network's blocks have the same numbers of warps, channels and pixels, so that the
divisions are cached.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

ROWS = 16
"""Number of pixels that a warp multiplies at once: the pixels of a pixel tile."""
DEPTHS = {"fp16": 16, "tf32": 8, "fp32": 8}
"""Input channels of a step, by precision."""
# The numbers of sums that fit the registers were found by compiling for sm_80, sm_90a and sm_100:
# with more sums the compiler spills registers. On another architecture the compiler may spill with
# fewer sums, which makes kernels slower.
_MOST_SUMS_BESIDE = 24
"""In float32 the registers hold two tiles of an expansion with at most this number of sums of the
projection."""
_MOST_SUMS_AT_ONCE = {"fp16": 72, "tf32": 56}
"""For each precision, the most sums of an expansion and of the projection together that fit the
registers of a work-item if a multiprocessor has 16 warps; more sums spilled on sm_100. This bound
does not hold for the small expansions of _MOST_PAIRS."""
_MOST_PAIRS = 4
"""An expansion is small where its number of pixel tiles times its number of pairs of channel tiles
is at most this number. The sums of a small expansion fit the registers with the sums of any
projection."""
WARPGROUP_SUMS = {24: 24, 20: 40, 16: 72}
"""For each number of warps of a multiprocessor, the most sums by wgmma of an expansion and of the
projection together that fit the registers of a work-item; with 8 warps all sums fit."""
_LARGE_FILTER = 24
"""Registers of a work-item that a filter of more than FEW_TAPS taps takes, so that fewer sums
fit."""
FEW_TAPS = 9
"""The most taps of a small filter."""
WARPS = (4, 8, 16)
"""Numbers of warps of a work-group."""
WARPGROUP_WARPS = 4
"""Warps of a warpgroup, which multiply together; each has one tile of pixels."""
_OUTPUTS_AT_ONCE = (1, 2, 4, 7, 8)
_CACHED = 2**15
"""Number of results of each function that are kept. A network with 25 blocks has about 10,000
different expansions."""


class WorkGroup(NamedTuple):
    """The warps of a work-group.

    warps: number of warps.
    wgmma: 1 where four warps multiply together by wgmma (sm_90a), 0 where each warp multiplies
    alone by mma.
    precision: precision of the products.
    """

    warps: int
    wgmma: int
    precision: str

    @property
    def word(self) -> int:
        """Number of elements in 16 bytes."""
        return 8 if self.precision == "fp16" else 4

    @property
    def warpgroup_warps(self) -> int:
        """Warps that multiply together: 4 with wgmma, else 1.

        Each has a tile of pixels.
        """
        return WARPGROUP_WARPS if self.wgmma else 1

    @property
    def warpgroups(self) -> int:
        """Warpgroups of the work-group, each of warpgroup_warps warps."""
        return self.warps // self.warpgroup_warps


class Projection(NamedTuple):
    """The products of a chunk's projection.

    warpgroups_m: number of parts into which the warpgroups divide the channels. The pixels are
    divided into as many parts as are left. Without wgmma a warpgroup is one warp.
    sums: number of sums of a work-item.
    """

    warpgroups_m: int
    sums: int


class Expansion(NamedTuple):
    """The products of a chunk's expansion.

    tiles: tiles of 16 pixels that a warp expands at once. The weights are loaded, and in float32
    split, once for all of these tiles.
    pairs: pairs of channel tiles that a warp expands at once from the same pixels.
    units_of_warp: how often a warp does so, at most.
    """

    tiles: int
    pairs: int
    units_of_warp: int


def _cost(tiles: int, pairs: int) -> int:
    """Return the relative time of products with their loads, and of a loop's other work."""
    return 3 * tiles * pairs + tiles + pairs + 3


@lru_cache(_CACHED)
def projection(group: WorkGroup, pixel_tiles: int, pairs: int) -> Projection:
    """Return the division of a chunk's projection with the least work of a warp.

    pixel_tiles: number of tiles of 16 pixels.
    pairs: number of pairs of tiles of 8 output channels.
    """
    of_warpgroups = -(-pixel_tiles // group.warpgroup_warps)
    sizes = {parts: (-(-of_warpgroups // (group.warpgroups // parts)), -(-pairs // parts))
             for parts in (1, 2, 4, 8, 16) if group.warpgroups % parts == 0
             and (not group.wgmma or pairs % parts == 0)}
    parts = min(sizes, key=lambda parts: _cost(*sizes[parts]))
    return Projection(parts, 8 * math.prod(sizes[parts]))


@lru_cache(_CACHED)
def expansion(group: WorkGroup, pixel_tiles: int, all_pairs: int, sums: int, taps: int
              ) -> Expansion:
    """Return the division of a chunk's expansion with the least work of a warp.

    The sums of the division fit the registers.

    pixel_tiles: number of tiles of 16 pixels that hold the inputs under the windows of the
    work-group.
    all_pairs: number of pairs of tiles of 8 hidden channels.
    sums: sums of the projection that a work-item has with the expansion.
    taps: number of taps of the depthwise filter.
    """
    def divided(tiles: int, pairs: int) -> Expansion:
        units = -(-pixel_tiles // (tiles * group.warpgroup_warps)) * (all_pairs // pairs)
        return Expansion(tiles, pairs, -(-units // group.warpgroups))

    if group.wgmma:
        units = [divided(1, pairs) for pairs in range(1, all_pairs + 1)
                 if all_pairs % pairs == 0 and (pairs == 1 or fits_warpgroup(
                     group, sums, pairs, taps))]
    else:
        units = [divided(tiles, pairs) for tiles in (1, 2, 3, 4) for pairs in range(1, 5)
                 if all_pairs % pairs == 0
                 and _fits(group, sums, pixel_tiles, all_pairs, tiles, pairs)]
    return min(units, key=lambda unit: unit.units_of_warp * _cost(unit.tiles, unit.pairs))


def _fits(group: WorkGroup, sums: int, pixel_tiles: int, all_pairs: int, tiles: int,
          pairs: int) -> bool:
    """Return whether the registers hold the sums of an expansion.

    tiles: tiles of pixels. pairs: pairs of channel tiles.
    """
    if group.precision == "fp32":
        several = pixel_tiles > 1 and all_pairs >= group.warps // 2
        fits = sums <= _MOST_SUMS_BESIDE and several
        return tiles == (2 if fits else 1) and tiles * pairs <= _MOST_PAIRS
    return tiles * pairs <= _MOST_PAIRS or (
        8 * tiles * pairs + sums <= _MOST_SUMS_AT_ONCE[group.precision])


def fits_warpgroup(group: WorkGroup, sums: int, pairs: int, taps: int) -> bool:
    """Return whether the registers hold the sums of an expansion by wgmma.

    pairs: pairs of tiles of channels.
    """
    most = WARPGROUP_SUMS[max(WARPS)] if group.warps == max(WARPS) else math.inf
    return warpgroup_sums(sums, pairs, taps) <= most


def warpgroup_sums(sums: int, pairs: int, taps: int) -> int:
    """Return the registers that a work-item needs with wgmma.

    They are for the sums of the projection, the sums of an expansion of `pairs` pairs of channel
    tiles, and a large filter.
    """
    return sums + 8 * pairs + _LARGE_FILTER * (taps > FEW_TAPS)


class Convolution(NamedTuple):
    """The depthwise convolution of a chunk.

    at_once: neighbouring outputs that a warp, or without tensor cores a work-item, convolves with
    the same inputs: a unit.
    units_of_warp: units of a warp or work-item, at most.
    """

    at_once: int
    units_of_warp: int


def convolution(outputs: int, units_of: Callable[[int], int], workers: int) -> Convolution:
    """Return the division of a chunk's depthwise convolution with the least work of a warp.

    The loads of a unit take as long as two outputs.

    outputs: number of neighbouring outputs, which outputs at once divide.
    units_of: the number of units for each number of outputs of a unit.
    workers: warps or work-items that share the units.
    """
    units = [Convolution(count, -(-units_of(count) // workers)) for count in _OUTPUTS_AT_ONCE
             if outputs % count == 0]
    return min(units, key=lambda unit: unit.units_of_warp * (unit.at_once + 2))
