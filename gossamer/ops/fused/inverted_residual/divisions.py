"""Divide the work of inverted_residual_mma among warps.

A work-group computes the hidden channels chunk by chunk, each chunk in up to three phases:
expansion, depthwise convolution and projection. For each phase, the division with the fewest
expected cycles is chosen among those whose accumulators fit the registers. Divisions are cached,
because many tiles of a network's blocks have the same numbers of warps, channels and pixels.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

ROWS = 16
"""Number of pixels per pixel tile: the rows of the left operand of a warp's mma instruction."""
DEPTHS = {"fp16": 16, "tf32": 8, "fp32": 8}
"""Number of input channels per step of K (the dimension of summation), by precision."""
# The limits of accumulators were found by compiling for sm_80, sm_90a and sm_100: beyond them the
# compiler spills registers. On other architectures it may spill earlier, which makes kernels
# slower.
_MOST_SUMS_BESIDE = 24
"""In float32 a warp expands two pixel tiles at once only if the projection has at most this many
accumulators per work-item."""
_MOST_SUMS_AT_ONCE = {"fp16": 72, "tf32": 56}
"""Maximum number of accumulators per work-item, by precision, with 16 warps per multiprocessor.

Accumulators of the expansion and of the projection count together. With more accumulators the
compiler spilled registers on sm_100. The limit does not apply to small expansions (see
_MOST_PAIRS).
"""
_MOST_PAIRS = 4
"""Maximum of (pixel tiles) x (pairs of channel tiles) that a warp has at once in a small expansion.

The accumulators of a small expansion fit the registers together with those of any projection.
"""
WARPGROUP_SUMS = {24: 24, 20: 40, 16: 72}
"""Maximum number of accumulators per work-item with wgmma, by warps per multiprocessor.

Accumulators of the expansion and of the projection count together. With 8 warps any number fits the
registers.
"""
_LARGE_FILTER = 24
"""Number of registers per work-item that a filter of more than FEW_TAPS taps occupies."""
FEW_TAPS = 9
"""Maximum number of taps of a small filter."""
WARPS = (4, 8, 16)
"""Candidate numbers of warps per work-group."""
WARPGROUP_WARPS = 4
"""Number of warps per warpgroup. One wgmma instruction multiplies one pixel tile of each warp."""
_OUTPUTS_AT_ONCE = (1, 2, 4, 7, 8)
# The cycles below were determined for an H200. They affect only the order in which tiles are tried.
_PRODUCT = {"fp16": 6.5, "tf32": 6.5, "fp32": 12.0}
"""Cycles in which one tensor core multiplies 16 pixels by 8 channels for one step of K."""
_LOADED = {"fp16": 4.0, "tf32": 4.0, "fp32": 16.0}
"""Cycles in which a scheduler issues the loads of a pixel tile, or of the weights of 16 channels,
for one step of K. In float32 this includes splitting each number into TF32 numbers."""
_CYCLES_OF_PAIR = 8.0
"""Cycles in which all tensor cores of a multiprocessor together multiply 64 pixels by 16 channels
for one step of K with wgmma."""
_WGMMA_LATENCY = 120.0
"""Cycles from the first product of a warpgroup until its accumulators can be read, excluding the
products themselves."""
_ACCESS = 4
"""Cycles in which shared memory delivers 16 bytes to each lane of a warp."""
_CHAIN = {"fp16": 35.0, "tf32": 35.0, "fp32": 90.0}
"""Latency in cycles of a product that depends on the previous product's accumulators. In float32,
this is the latency of three products and an addition."""
_PHASE = 150.0
"""Fixed overhead of a phase in cycles, including the barrier after it."""
_CACHED = 2**15
"""Number of cached results per function. A network with 25 blocks has about 10,000 different
expansions."""


class WorkGroup(NamedTuple):
    """The warps of a work-group.

    warps: number of warps.
    wgmma: 1 if four warps multiply together with wgmma (sm_90a), 0 if each warp uses mma.
    precision: precision of the products.
    """

    warps: int
    wgmma: int
    precision: str

    @property
    def word(self) -> int:
        """Number of elements in a 16-byte word."""
        return 8 if self.precision == "fp16" else 4

    @property
    def warpgroup_warps(self) -> int:
        """Number of warps that multiply together: 4 with wgmma, else 1."""
        return WARPGROUP_WARPS if self.wgmma else 1

    @property
    def warpgroups(self) -> int:
        """Number of warpgroups, each of warpgroup_warps warps."""
        return self.warps // self.warpgroup_warps


class Division(NamedTuple):
    """The division of a phase of a chunk among warps, with its cost.

    sizes: sizes of the work that a warp computes at once. Their meaning depends on the phase, and
    is described at the function that returns the division.
    busy: cycles in which the phase occupies the schedulers or shared memory.
    waited: cycles that a warp spends waiting for the results of its instructions.
    """

    sizes: tuple[int, ...]
    busy: float
    waited: float

    @property
    def cycles(self) -> float:
        """Cycles of the phase if a work-group runs alone on a multiprocessor."""
        return max(self.busy, self.waited + _PHASE)


def _phase_cycles(group: WorkGroup, sizes: tuple[int, ...], issued: float, waited: float,
                  shared: float) -> Division:
    """Return a division with the cost of its phase.

    Each of the four schedulers of a multiprocessor serves a quarter of the warps.

    issued: cycles in which one warp issues its instructions.
    waited: cycles that a warp spends waiting for the results of its instructions.
    shared: cycles in which shared memory serves the accesses of all warps.
    """
    return Division(sizes, max(issued * group.warps / 4, shared), waited)


def _product_cycles(group: WorkGroup, sizes: tuple[int, ...], units: int, unit: tuple[int, int],
                    steps: int, finished: float = 0.0, stored: int = 0) -> Division:
    """Return a division of products among warpgroups.

    units: number of units; a unit is what a warp multiplies at once.
    unit: numbers of pixel tiles and of pairs of channel tiles per unit.
    steps: number of steps of K.
    finished: cycles in which a warp applies the epilogue to a unit.
    stored: number of words that each lane stores per unit.
    """
    tiles, pairs = unit
    rounds = -(-units // group.warpgroups)
    if group.wgmma:
        multiplied = rounds * steps * tiles * pairs * _CYCLES_OF_PAIR
        shared = (rounds * group.warps * steps * tiles * (_ACCESS + pairs)
                  + units * WARPGROUP_WARPS * _ACCESS * stored)
        return _phase_cycles(group, sizes, multiplied + rounds * finished, multiplied + rounds * (
            10 * steps * tiles + 2 * finished) + _WGMMA_LATENCY, shared)
    of_step = 2 * tiles * pairs * _PRODUCT[group.precision]
    loaded = of_step + _LOADED[group.precision] * (tiles + pairs)
    waited = steps * max(of_step, _CHAIN[group.precision]) + 2 * finished
    return _phase_cycles(group, sizes, rounds * (steps * loaded + finished), rounds * waited,
                         units * _ACCESS * (steps * (tiles + pairs) + stored))


def _fastest(divisions: list[Division]) -> Division:
    return min(divisions, key=lambda division: division.cycles)


@lru_cache(_CACHED)
def projection(group: WorkGroup, pixel_tiles: int, pairs: int, chunk: int) -> Division:
    """Return the division of a chunk's projection.

    The division's sizes are the number of groups into which the output channels are divided, and
    the number of accumulators per work-item. Warpgroups that compute the same group of channels
    divide the pixels among themselves.

    pixel_tiles: number of tiles of 16 pixels.
    pairs: number of pairs of tiles of 8 output channels.
    chunk: number of hidden channels.
    """
    steps = chunk // DEPTHS[group.precision]
    of_warpgroups = -(-pixel_tiles // group.warpgroup_warps)

    def with_cycles(parts: int) -> Division:
        own_tiles = -(-of_warpgroups // (group.warpgroups // parts))
        own_pairs = -(-pairs // parts)
        return _product_cycles(group, (parts, 8 * own_tiles * own_pairs), group.warpgroups,
                               (own_tiles, own_pairs), steps)

    return _fastest([with_cycles(count) for count in (1, 2, 4, 8, 16)
                     if group.warpgroups % count == 0
                     and (not group.wgmma or pairs % count == 0)])


@lru_cache(_CACHED)
def expansion(group: WorkGroup, pixel_tiles: int, chunk: int, steps: int, *, sums: int, taps: int,
              convolves: bool) -> Division:
    """Return the division of a chunk's expansion.

    The division's sizes are the numbers of pixel tiles and of pairs of channel tiles that a warp
    expands at once. The warp loads the weights only once for all of these pixel tiles. In float32,
    it also splits the weights into TF32 numbers only once.

    pixel_tiles: number of pixel tiles of the inputs that the work-group's depthwise windows cover.
    chunk: number of hidden channels.
    steps: number of steps of K.
    sums: number of accumulators of the projection that a work-item holds during the expansion.
    taps: number of taps of the depthwise filter.
    convolves: whether tensor cores compute the depthwise convolution.
    """
    all_pairs = chunk // 16

    def with_cycles(tiles: int, pairs: int) -> Division:
        units = -(-pixel_tiles // (tiles * group.warpgroup_warps)) * (all_pairs // pairs)
        return _product_cycles(group, (tiles, pairs), units, (tiles, pairs), steps,
                               tiles * pairs * (24 if convolves else 60) + 40,
                               tiles * pairs * 8 // group.word)

    return _fastest([with_cycles(tiles, pairs) for tiles in (1, 2, 3, 4)
                     for pairs in range(1, (all_pairs if group.wgmma else 4) + 1)
                     if all_pairs % pairs == 0
                     and _fits(group, sums, pixel_tiles, all_pairs, tiles, pairs, taps)])


def _fits(group: WorkGroup, sums: int, pixel_tiles: int, all_pairs: int, tiles: int,
          pairs: int, taps: int) -> bool:
    """Return whether the accumulators of an expansion fit the registers.

    tiles, pairs: numbers of pixel tiles and of pairs of channel tiles that a warp expands at once.
    """
    if group.wgmma:
        return tiles == 1 and (pairs == 1 or fits_warpgroup(group, sums, pairs, taps))
    if group.precision == "fp32":
        several = pixel_tiles > 1 and all_pairs >= group.warps // 2
        fits = sums <= _MOST_SUMS_BESIDE and several
        return tiles == (2 if fits else 1) and tiles * pairs <= _MOST_PAIRS
    return tiles * pairs <= _MOST_PAIRS or (
        8 * tiles * pairs + sums <= _MOST_SUMS_AT_ONCE[group.precision])


def fits_warpgroup(group: WorkGroup, sums: int, pairs: int, taps: int) -> bool:
    """Return whether the accumulators of a wgmma expansion fit the registers.

    pairs: number of pairs of channel tiles that a warp expands at once.
    """
    most = WARPGROUP_SUMS[max(WARPS)] if group.warps == max(WARPS) else math.inf
    return warpgroup_sums(sums, pairs, taps) <= most


def warpgroup_sums(sums: int, pairs: int, taps: int) -> int:
    """Return the number of registers that a work-item needs with wgmma.

    The registers hold the accumulators of the projection, those of an expansion of `pairs` pairs of
    channel tiles, and the filter if it is large.
    """
    return sums + 8 * pairs + _LARGE_FILTER * (taps > FEW_TAPS)


@lru_cache(_CACHED)
def convolution_on_tensor_cores(group: WorkGroup, outputs: tuple[int, int], chunk: int,
                                kernel: tuple[int, int], stride: int,
                                rows_at_once: int) -> Division:
    """Return the division of a chunk's depthwise convolution on tensor cores.

    The division's size is the number of consecutive outputs of a column that a warp computes.

    outputs: numbers of rows and columns of outputs.
    chunk: number of hidden channels.
    stride: the stride in rows.
    rows_at_once: number of rows of outputs that a warp accumulates at once.
    """
    # A product covers two neighbouring taps of a row. If rows have odd length, further products
    # cover the last taps of two rows.
    taps, columns_of_taps = math.prod(kernel), kernel[1] // 2 + kernel[1] % 2
    pairs = -(-taps // 2)

    def with_cycles(run: int) -> Division:
        units = chunk // 8 * -(-outputs[0] // run * outputs[1] // ROWS)
        of_warp = -(-units // group.warps)
        rows = (run - 1) * min(stride, kernel[0]) + kernel[0]
        issued = (3 * taps + 2 * rows * columns_of_taps
                  + run * (pairs * _PRODUCT["fp16"] + 8) + 50)
        waited = 100 + -(-run // rows_at_once) * (pairs * _CHAIN["fp16"] + 80)
        loads = rows * (kernel[1] // 2) + rows // stride * (kernel[1] % 2)
        return _phase_cycles(group, (run,), of_warp * issued, of_warp * waited,
                             units * (_ACCESS * loads + 2 * run))

    return _fastest([with_cycles(run) for run in _OUTPUTS_AT_ONCE if outputs[0] % run == 0])


@lru_cache(_CACHED)
def convolution(group: WorkGroup, outputs: tuple[int, int], chunk: int, kernel: tuple[int, int],
                stride: int) -> Division:
    """Return the division of a chunk's depthwise convolution without tensor cores.

    The division's size is the number of neighbouring outputs that a work-item computes at once.

    outputs: numbers of rows and columns of outputs.
    chunk: number of hidden channels.
    stride: the stride in columns.
    """
    def with_cycles(at_once: int) -> Division:
        units = outputs[0] * (outputs[1] // at_once) * (chunk // 4)
        window = (at_once - 1) * stride + kernel[1]
        per_unit = kernel[0] * (6 * window + 4 * kernel[1] + 4 * at_once * kernel[1])
        issued = -(-units // (32 * group.warps)) * (per_unit + 24 * at_once + 30)
        accesses = kernel[0] * (window + kernel[1]) + at_once
        return _phase_cycles(group, (at_once,), issued, 1.5 * issued,
                             units / 32 * _ACCESS * accesses)

    return _fastest([with_cycles(count) for count in _OUTPUTS_AT_ONCE if outputs[1] % count == 0])
