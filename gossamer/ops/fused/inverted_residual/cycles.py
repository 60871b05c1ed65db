"""Expected cycles of a tile of a block, by models that were fitted to measurements.

The products and the depthwise convolution of a chunk are divided among the warps of
inverted_residual_mma, which gives the cycles of each phase of the chunk; the cycles of a wave of
work-groups follow from them. Many tiles of a network's blocks have the same numbers of warps,
channels and pixels, so that the divisions are cached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gossamer.device.limits import Limits
from gossamer.ops.peak_rates import CYCLES_OF_PRODUCT

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
# The cycles below hold for an H200. On another device they decide only the order in which tiles are
# tried.
_LOADED = {"fp16": 4.0, "tf32": 4.0, "fp32": 16.0}
"""Cycles of a scheduler for loading a tile of 16 pixels, or the weights of 16 channels, for one
step of K; in float32 the split of each number into TF32 numbers is included."""
_CYCLES_OF_PAIR = 8.0
"""Cycles in which all tensor cores of a multiprocessor multiply 64 pixels by 16 channels over one
step of K by wgmma."""
_WGMMA_LATENCY = 120.0
"""Cycles from the first product of a warpgroup until its sums can be read, without the cycles of
the products."""
_ACCESS = 4
"""Cycles in which shared memory gives 16 bytes to each lane of a warp."""
_CHAIN = {"fp16": 35.0, "tf32": 35.0, "fp32": 90.0}
"""Cycles from one product to the next product that adds to the same sums; in float32 the cycles of
three products and an addition."""
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

    def phase(self, issued: float, waited: float, shared: float) -> Phase:
        """Return the cycles of a phase.

        issued: cycles in which one warp issues its instructions; a scheduler issues the
        instructions of a quarter of the warps.
        """
        return Phase(issued * self.warps / 4, waited, shared)

    def wgmma_phase(self, tiles: int, pairs: int, steps: int, loads: int) -> Phase:
        """Return the cycles of products by wgmma.

        The loads of a warp's pixels are included.
        """
        multiplied = steps * tiles * pairs * _CYCLES_OF_PAIR
        return self.phase(multiplied, multiplied + 10 * steps * loads + _WGMMA_LATENCY,
                          steps * (_ACCESS * loads + tiles * pairs) * self.warps)


class Projection(NamedTuple):
    """The products of a chunk's projection.

    warpgroups_m: number of parts into which the warpgroups divide the channels. The pixels are
    divided into as many parts as are left. Without wgmma a warpgroup is one warp.
    sums: number of sums of a work-item.
    cycles: the cycles of the products.
    """

    warpgroups_m: int
    sums: int
    cycles: Phase


@lru_cache(_CACHED)
def projection(group: WorkGroup, pixel_tiles: int, pairs: int, chunk: int) -> Projection:
    """Return the fastest division of a chunk's projection.

    pixel_tiles: number of tiles of 16 pixels.
    pairs: number of pairs of tiles of 8 output channels.
    chunk: number of hidden channels.
    """
    steps = chunk // DEPTHS[group.precision]
    of_warpgroups = -(-pixel_tiles // group.warpgroup_warps)

    def divided(warpgroups_m: int) -> Projection:
        own_tiles = -(-of_warpgroups // (group.warpgroups // warpgroups_m))
        own_pairs = -(-pairs // warpgroups_m)
        return Projection(warpgroups_m, 8 * own_tiles * own_pairs,
                          _projection_cycles(group, own_tiles, own_pairs, steps))

    counts = [count for count in (1, 2, 4, 8, 16) if group.warpgroups % count == 0
              and (not group.wgmma or pairs % count == 0)]
    return min(map(divided, counts), key=lambda division: division.cycles.alone)


def _projection_cycles(group: WorkGroup, tiles: int, pairs: int, steps: int) -> Phase:
    if group.wgmma:
        return group.wgmma_phase(tiles, pairs, steps, tiles)
    of_step = 2 * tiles * pairs * CYCLES_OF_PRODUCT[group.precision]
    loaded = of_step + _LOADED[group.precision] * (tiles + pairs)
    return group.phase(steps * loaded, steps * max(of_step, _CHAIN[group.precision]),
                       steps * _ACCESS * (tiles + pairs) * group.warps)


class Expansion(NamedTuple):
    """The products of a chunk's expansion.

    tiles: tiles of 16 pixels that a warp expands at once. The weights are loaded, and in float32
    split, once for all of these tiles.
    pairs: pairs of channel tiles that a warp expands at once from the same pixels.
    cycles: the cycles of the products.
    """

    tiles: int
    pairs: int
    cycles: Phase


@lru_cache(_CACHED)
def expansion(group: WorkGroup, pixel_tiles: int, chunk: int, steps: int, *, sums: int, taps: int,
              convolves: bool) -> Expansion:
    """Return the fastest division of a chunk's expansion whose sums fit the registers.

    pixel_tiles: number of tiles of 16 pixels that hold the inputs under the windows of the
    work-group.
    chunk: number of hidden channels.
    steps: number of steps of K.
    sums: sums of the projection that a work-item has with the expansion.
    taps: number of taps of the depthwise filter.
    convolves: whether tensor cores compute the depthwise convolution.
    """
    all_pairs = chunk // 16
    if group.wgmma:
        units = [(1, pairs) for pairs in range(1, all_pairs + 1)
                 if all_pairs % pairs == 0 and (pairs == 1 or fits_warpgroup(
                     group, sums, pairs, taps))]
    else:
        units = [(tiles, pairs) for tiles in (1, 2, 3, 4) for pairs in range(1, 5)
                 if all_pairs % pairs == 0
                 and _fits(group, sums, pixel_tiles, all_pairs, tiles, pairs)]
    return min((Expansion(*unit, _expansion_cycles(
        group, pixel_tiles, all_pairs, steps, unit, convolves)) for unit in units),
        key=lambda division: division.cycles.alone)


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


def _expansion_cycles(group: WorkGroup, pixel_tiles: int, all_pairs: int, steps: int,
                      unit: tuple[int, int], convolves: bool) -> Phase:
    """Return the cycles of an expansion.

    unit: tiles of pixels, and pairs of channel tiles, that a warp expands at once.
    """
    tiles, pairs = unit
    units = -(-pixel_tiles // (tiles * group.warpgroup_warps)) * (all_pairs // pairs)
    of_warpgroup = -(-units // group.warpgroups)
    finished = tiles * pairs * (24 if convolves else 60) + 40
    if group.wgmma:
        products = group.wgmma_phase(of_warpgroup, pairs, steps, of_warpgroup)
        stored = units * WARPGROUP_WARPS * _ACCESS * pairs * 8 // group.word
        return Phase(products.issued + of_warpgroup * finished * group.warps / 4,
                     products.waited + of_warpgroup * 2 * finished, products.shared + stored)
    of_step = 2 * tiles * pairs * CYCLES_OF_PRODUCT[group.precision]
    loaded = of_step + _LOADED[group.precision] * (tiles + pairs)
    waited = steps * max(of_step, _CHAIN[group.precision]) + 2 * finished
    stored = tiles * pairs * 8 // group.word
    return group.phase(of_warpgroup * (steps * loaded + finished), of_warpgroup * waited,
                       units * _ACCESS * (steps * (tiles + pairs) + stored))


class Convolution(NamedTuple):
    """The depthwise convolution of a chunk.

    at_once: on tensor cores, the number of outputs below one another that a warp convolves in turn;
    otherwise the number of neighbouring outputs that a work-item convolves at once.
    cycles: the cycles of the convolution.
    """

    at_once: int
    cycles: Phase


@lru_cache(_CACHED)
def convolution_on_tensor_cores(group: WorkGroup, outputs: tuple[int, int], chunk: int,
                                kernel: tuple[int, int], stride: int,
                                rows_at_once: int) -> Convolution:
    """Return the fastest division of a chunk's depthwise convolution on tensor cores.

    outputs: rows and columns of outputs.
    chunk: number of hidden channels.
    stride: the stride in rows.
    rows_at_once: rows of outputs whose sums a warp holds at once.
    """
    def cycles(run: int) -> Phase:
        columns = -(-outputs[0] // run * outputs[1] // ROWS)
        units = chunk // 8 * columns
        of_warp = -(-units // group.warps)
        # a product takes two neighbouring taps, or the last taps of two rows of odd length
        taps, columns_of_taps = math.prod(kernel), kernel[1] // 2 + kernel[1] % 2
        pairs = -(-taps // 2)
        rows = (run - 1) * min(stride, kernel[0]) + kernel[0]
        of_output = pairs * CYCLES_OF_PRODUCT["fp16"] + 8
        issued = 3 * taps + 2 * rows * columns_of_taps + run * of_output + 50
        waited = 100 + -(-run // rows_at_once) * (pairs * _CHAIN["fp16"] + 80)
        loads = rows * (kernel[1] // 2) + rows // stride * (kernel[1] % 2)
        return group.phase(of_warp * issued, of_warp * waited, units * (_ACCESS * loads + 2 * run))

    return min((Convolution(run, cycles(run)) for run in _OUTPUTS_AT_ONCE if outputs[0] % run == 0),
               key=lambda division: division.cycles.alone)


@lru_cache(_CACHED)
def convolution(group: WorkGroup, outputs: tuple[int, int], chunk: int, kernel: tuple[int, int],
                stride: int) -> Convolution:
    """Return the fastest division of a chunk's depthwise convolution without tensor cores.

    outputs: rows and columns of outputs.
    chunk: number of hidden channels.
    stride: the stride in columns.
    """
    def cycles(at_once: int) -> Phase:
        units = outputs[0] * (outputs[1] // at_once) * (chunk // 4)
        window = (at_once - 1) * stride + kernel[1]
        per_unit = kernel[0] * (6 * window + 4 * kernel[1] + 4 * at_once * kernel[1])
        issued = -(-units // (32 * group.warps)) * (per_unit + 24 * at_once + 30)
        accesses = kernel[0] * (window + kernel[1]) + at_once
        return group.phase(issued, 1.5 * issued, units / 32 * _ACCESS * accesses)

    return min((Convolution(count, cycles(count)) for count in _OUTPUTS_AT_ONCE
                if outputs[1] % count == 0), key=lambda division: division.cycles.alone)


# The constants up to _CLUSTER_LATENCY hold for an H200. All of them but _PHASE belong to the model
# of blocks with squeeze-and-excite. The classes below say how the constants of other blocks were
# fitted. On another device the constants decide only the order in which tiles are tried: the tuner
# corrects the scale of an algorithm's estimates by its measurements.
_PHASE = 150.0
"""Cycles that a phase takes in addition to its instructions, the barrier behind it included."""
_FETCHED = 40.0
"""Bytes that a multiprocessor receives from the L2 cache in a cycle, with squeeze-and-excite."""
_LATENCY = 2500.0
"""Cycles in which a work-group with squeeze-and-excite begins, loads its first inputs and stores
its results."""
_EXCITES = 2500.0
"""Cycles of a squeeze-and-excite layer without the transfer of its weights."""
_CLUSTER_LATENCY = 700.0
"""Cycles in which a cluster adds up its sums, with squeeze-and-excite."""
_LEAST_GPC, _LARGEST_GPC = 16, 18
"""The least and the largest number of multiprocessors of a graphics processing cluster (GPC). All
work-groups of a cluster run in one GPC. The number of GPCs of a device is estimated with the larger
number, as 7 for an H200 with 132 multiprocessors. On an H200 eight clusters of 12 or 15 work-groups
took as long as two waves, and seven clusters did not."""


class Phase(NamedTuple):
    """Cycles of a phase of a chunk.

    issued: cycles in which a scheduler issues the instructions of its warps.
    waited: cycles in which a warp waits for the results of its instructions.
    shared: cycles in which all warps of the work-group access shared memory.
    """

    issued: float
    waited: float
    shared: float

    @property
    def alone(self) -> float:
        """The cycles of the phase when one work-group runs alone."""
        return max(self.issued, self.waited + _PHASE, self.shared)


@dataclass(frozen=True)
class _OneImage:
    """Constants of the expected cycles of a single image, fitted on an H200.

    In float16 and TF32 they are fitted to the times that 38 tiles of MobileNetV2's blocks add to a
    plan, with an error of 12% (root mean square). In float32 they are fitted to 330 times of tiles
    that ran alone, with an error of 13%.

    latency: cycles in which a work-group begins, loads its first inputs and stores its results.
    member: cycles that each further work-group of a cluster adds to `latency`.
    slowdown: share of `latency` by which each further work-group of a multiprocessor delays the
    others.
    phase: cycles of a phase in addition to its instructions.
    first: bytes that a multiprocessor receives in a cycle before the first chunk. Most of these
    bytes arrive while the previous kernel still runs.
    fetched: bytes that a multiprocessor receives in a cycle from the first chunk on.
    stalled: factor on the cycles of a phase in which a warp waits.
    issued: factor on the cycles of a phase in which a scheduler issues instructions.
    """

    latency: float = 1600.0
    member: float = 85.0
    slowdown: float = 0.35
    phase: float = 235.0
    first: float = 83.0
    fetched: float = 28.0
    stalled: float = 2.25
    issued: float = 2.25


_ONE_IMAGE = {"fp16": _OneImage(), "tf32": _OneImage(),
              "fp32": _OneImage(1740.0, 40.0, 0.84, 729.0, 60.0, 12.7, 1.72, 1.33)}


@dataclass(frozen=True)
class _SeveralImages:
    """Constants of the expected cycles of many work-groups.

    They were fitted to 500 measured times of tiles of MobileNetV2's blocks at batch 64 in float16
    on an H200. The tiles that are expected to be fastest take 352 us together, and the tiles that
    were fastest take 345 us. The constants of float32 come from an earlier fit.

    latency: cycles in which a work-group begins, loads its first inputs and stores its results.
    cluster: cycles that a cluster adds to `latency`.
    stalled: factor on the cycles of a phase in which a warp waits.
    phase: cycles of a phase in addition to the other terms.
    shared: factor on the cycles of a phase in which warps access shared memory.
    fetched: bytes that a multiprocessor receives from the L2 cache in a cycle.
    issued: factor on the cycles of a phase in which a scheduler issues instructions.
    """

    latency: float = 2400.0
    cluster: float = 2500.0
    stalled: float = 1.28
    phase: float = 53.0
    shared: float = 1.25
    fetched: float = 50.0
    issued: float = 0.7


_SEVERAL_IMAGES = {"fp16": _SeveralImages(), "tf32": _SeveralImages(),
                   "fp32": _SeveralImages(2500.0, 3600.0, 1.8, 105.0, 1.05, 33.0, 1.0)}


@dataclass(frozen=True)
class ChunkWork:
    """The work of the work-groups of a launch.

    phases: the phases of a chunk of hidden channels.
    cluster: work-groups of a cluster.
    own_chunks: chunks of a work-group.
    weight_bytes: bytes of the weights of a chunk.
    precision: the precision of the products, such as "fp16".
    """

    phases: tuple[Phase, ...]
    cluster: int
    own_chunks: int
    weight_bytes: int
    precision: str

    @property
    def issued(self) -> float:
        """Cycles in which a scheduler issues the instructions of a chunk."""
        return sum(phase.issued for phase in self.phases)

    def least_at_once(self, groups: int, limits: Limits) -> int:
        """Return a lower bound of work-groups that run at once.

        On the multiprocessor that runs the most. The bound follows from the GPCs: all work-groups
        of a cluster run in one GPC.

        groups: number of work-groups of the launch.
        """
        if self.cluster == 1:
            return 1
        gpcs = max(1, limits.compute_units // _LARGEST_GPC)
        return -(-(-(-(groups // self.cluster) // gpcs) * self.cluster) // _LEAST_GPC)


def cycles_of_image(work: ChunkWork, together: int) -> float:
    """Return the expected cycles of a single image.

    All its work-groups run at once, and `together` work-groups run on one multiprocessor.
    """
    model = _ONE_IMAGE[work.precision]
    latency = (model.latency + model.member * (work.cluster - 1)) * (
        1 + model.slowdown * (together - 1))
    computed = max(
        sum(max(model.issued * phase.issued, model.stalled * phase.waited) + model.phase
            for phase in work.phases), work.issued * together)
    return (latency + work.weight_bytes / model.first
            + work.own_chunks * max(computed, work.weight_bytes / model.fetched * together))


def cycles_of_wave(work: ChunkWork, together: int) -> float:
    """Return the expected cycles of a wave of several images.

    together: work-groups that run on one multiprocessor.

    The time of a chunk has four components, which overlap in part: the time of one work-group
    alone, and for all work-groups the times of their instructions, of their accesses to shared
    memory, and of the transfer of weights. The square of the chunk's time is the sum of the squares
    of these four components.
    """
    model = _SEVERAL_IMAGES[work.precision]
    alone = sum(max(phase.issued, model.stalled * phase.waited, model.shared * phase.shared)
                + model.phase for phase in work.phases)
    issued = model.issued * work.issued * together
    shared = model.shared * together * sum(phase.shared for phase in work.phases)
    fetched = work.weight_bytes / model.fetched
    latency = model.latency + (model.cluster if work.cluster > 1 else 0.0)
    return latency + fetched + work.own_chunks * math.hypot(
        alone, issued, shared, fetched * together)


def cycles_with_excite(work: ChunkWork, small: float, together: int) -> float:
    """Return the expected cycles of a wave with squeeze-and-excite.

    together: work-groups that run on one multiprocessor.

    A phase of a chunk takes the longest of three times: the time in which a warp waits, the time in
    which the scheduler issues the instructions of its warps, and the time in which all warps access
    shared memory. Work-groups of one multiprocessor wait at the same time.

    small: bytes of the weights of the two small products.
    """
    computed = max(sum(phase.alone for phase in work.phases), work.issued * together)
    fetched = work.weight_bytes / _FETCHED
    latency = (_LATENCY + (_CLUSTER_LATENCY if work.cluster > 1 else 0.0)
               + _EXCITES + small / work.cluster / _FETCHED * together)
    return latency + fetched + work.own_chunks * max(computed, fetched * together)
