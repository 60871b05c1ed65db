"""Configs of generated sparse convolution, in the order of the time that a model expects."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

from gossamer.device.base import Limits
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.generated.tiling import (
    BUFFERS,
    SUB_PARTITIONS,
    WARP,
    GeneratedConfig,
    GeneratedTiling,
)

_CYCLES_A_MICROSECOND = 1850
_START = 2000
"""Cycles before the first product and behind the last."""
_ISSUED = 1.07
"""Cycles of an instruction in each part of a multiprocessor."""
_FETCHED, _FETCHED_BY_TEAMS, _FETCHED_BY_SCOUTS, _ONE_STREAM = 4.1, 4.7, 6.1, 0.83
"""Bytes of code a cycle that a multiprocessor gets by several staggered_entries, by k_groups and by prefetch_warps; and
what is left of the first by one stream."""
_APART = 0.35
"""Work-groups of a multiprocessor share what they fetch in part: n fetch n to this power times
what one does."""
_COPIED = {32: 45.0, 64: 97.0, 128: 118.0}
"""Bytes a cycle that copies keep a multiprocessor from computing, by how many lie side by side."""
_FEW = 16
"""Images below which warps are few, and each fetches for itself: _FETCHED_BY_ONE bytes a cycle,
_FETCHED_BY_FEW in all of a multiprocessor, and _CACHED bytes of inputs; cycles between stages."""
_FETCHED_BY_ONE, _FETCHED_BY_FEW, _CACHED, _STAGE_CYCLES = 0.8, 4.5, 27, 200
_INSTRUCTION = 16
"""Bytes."""
_CHANNELS = (96, 80, 64, 48, 40, 32, 24, 16, 12, 8, 4, 3, 2, 1)
_IMAGES = (32, 16, 8)
_TEAMS = (1, 2, 4, 8, 16)
_STREAMS = (8, SUB_PARTITIONS, 1)
_STAGE = 500
"""Instructions of a work-item between two barriers, about."""
_LINES_A_KERNEL = 100_000
"""Kernels that run side by side are assembled side by side too, but each costs 2 microseconds."""
_MOST_KERNELS = 4
_MOST_BLOCKS_PER_UNIT = 8
_MOST_COPIES = 4
"""Vectors that a work-item copies of an input channel."""
_ITEMS = 2048
"""Work-items that a multiprocessor holds, at most."""
_KEPT = 16


@dataclass(frozen=True)
class Estimate:
    """Expected microseconds, and what they are made of: issuing instructions, copying inputs to
    shared memory, fetching instructions."""

    microseconds: float
    issue: float
    copies: float
    fetch: float


def lines(division: GeneratedTiling) -> float:
    """Instructions of the generated code, about; a pair of float16 is multiplied by one."""
    d, config = division, division.config
    density, block = d.problem.weights_info.density, division.block
    channels = _channels(d)
    parts = max(config.k_groups, config.staggered_entries)
    stages = math.ceil(channels / config.stage)
    copies = d.copies * (25 + channels + d.buffers * config.stage + 4 * stages)
    results = block * d.pair * (2 * config.k_groups + 1)
    one = (d.problem.depth * (block * density + 1 - (1 - density) ** block) + copies + results
           + stages * (4 + 6 * parts * (parts > 1)) + 6 * config.k_groups + 60)
    return one * d.groups[1]


def _channels(division: GeneratedTiling) -> float:
    """Input channels that a block has nonzeros of."""
    problem = division.problem
    weights = division.block * math.prod(problem.kernel)
    return problem.channels / problem.groups * (
        1 - (1 - problem.weights_info.density) ** weights)


def estimate(division: GeneratedTiling, limits: Limits) -> Estimate:
    """What a launch is expected to take, from counts and a few measured rates. Of many images
    issuing and fetching overlap in part, as a root of squares fits best; copies come on top, since
    all warps wait for them at the same time."""
    d, problem, config = division, division.problem, division.config
    density, block = problem.weights_info.density, division.block
    channels = _channels(d)
    reads = problem.depth * (1 - (1 - density) ** block)
    products = problem.depth * block * density
    stages = channels / config.stage
    instructions = (reads + products + stages * (12 + 6 * (config.staggered_entries - 1))
                    + 3 * channels * d.copies + 6 * block * d.pair + 200)
    warps = d.workers // WARP
    tiles, blocks = d.groups
    busy = -(-tiles * blocks // limits.compute_units)
    blocks_per_unit = min(config.blocks_per_unit, busy)
    rounds = -(-tiles * blocks // (limits.compute_units * blocks_per_unit))
    loads = busy * warps * reads / config.k_groups * _conflicts(d)
    copied = busy * channels * d.patch_rows * d.patch_columns * d.patch_pixel
    code = instructions * _INSTRUCTION
    if problem.batch < _FEW:
        issue = busy * warps * instructions / config.k_groups / SUB_PARTITIONS
        staggered_entries = config.k_groups if config.k_groups > 1 else config.staggered_entries
        copies = copied / _CACHED
        # groups of one block of channels run the same code at about the same time
        fetch = code * max(rounds / (_FETCHED_BY_ONE * staggered_entries),
                           min(busy, blocks) / _FETCHED_BY_FEW)
        bounds = [issue, loads + copied / 128, copies, fetch]
        together = max(bounds) + 0.2 * (sum(bounds) - max(bounds))
        cycles = _START + rounds * stages * _STAGE_CYCLES + together
    else:
        fullest = math.ceil(warps * blocks_per_unit / SUB_PARTITIONS) / blocks_per_unit
        issue = max(_ISSUED * busy * fullest * instructions / config.k_groups, loads)
        beside = d.patch_pixel * (d.patch_columns if config.images == problem.batch else 1)
        copies = copied / next((rate for most, rate in _COPIED.items() if beside <= most),
                               max(_COPIED.values()))
        fetched = _FETCHED
        if config.prefetch_warps:
            fetched = _FETCHED_BY_SCOUTS
        elif config.k_groups > 1:
            fetched = _FETCHED_BY_TEAMS
        elif config.staggered_entries == 1:
            fetched *= _ONE_STREAM
        fetch = code * rounds * blocks_per_unit**_APART / fetched
        cycles = _START + math.hypot(issue, fetch) + copies
    return Estimate(*(each / _CYCLES_A_MICROSECOND for each in (cycles, issue, copies, fetch)))


def _conflicts(d: GeneratedTiling) -> int:
    """How often a warp's reads meet one bank of shared memory, at most."""
    lanes, columns, width = d.lanes, d.config.columns, d.patch_columns
    (down, right), pixel = d.problem.stride, d.patch_pixel // 4
    words = [(item // lanes // columns * down * width + item // lanes % columns * right) * pixel
             + item % lanes for item in range(min(WARP, d.items))]
    banks: dict[int, set[int]] = {}
    for word in words:
        banks.setdefault(word % 32, set()).add(word)
    return max(map(len, banks.values()))


@functools.lru_cache(maxsize=256)
def configs(problem: Conv2dProblem, limits: Limits, halves: bool = False,
            most_lines: float = math.inf) -> tuple[GeneratedConfig, ...]:
    """Configs that fit and whose code is no longer than that, the one expected to be fastest
    first; none where nothing fits. Of many images the best with prefetch_warps, with k_groups and with neither
    come first, since the model tells these apart the least; then of each kind (channels, k_groups,
    prefetch_warps) the best, in turns with configs like the first but with other tiles, other numbers of
    staggered_entries or longer stages; last, where it is none of these, the one with the shortest code, for
    where little time may go into building."""
    def expected(config: GeneratedConfig) -> float:
        return estimate(GeneratedTiling(problem, config, halves), limits).microseconds

    @functools.cache
    def length(config: GeneratedConfig) -> float:
        return lines(GeneratedTiling(problem, config, halves))

    rated = sorted((config for config in _all(problem, limits, halves)
                    if length(config) <= most_lines), key=expected)
    if not rated:
        return ()
    kinds: dict[tuple[int, int, int], list[GeneratedConfig]] = {}
    first: dict[tuple[int, ...], GeneratedConfig] = {}
    for config in rated:
        kinds.setdefault((config.channels, config.k_groups, config.prefetch_warps), []).append(config)
        first.setdefault((config.k_groups > 1, config.prefetch_warps) if problem.batch >= _FEW else (), config)
    inputs = problem.channels // problem.groups
    best = [found[0] for found in kinds.values() if found[0] not in first.values()][:_KEPT]
    others = [config for found in list(kinds.values())[:3] for config in found[1:2]]
    for config in [*first.values(), *best][:3]:
        others.append(replace(config, stage=min(2 * config.stage, inputs)))
        if config.k_groups == 1 and not config.prefetch_warps:
            others += [replace(config, staggered_entries=staggered_entries) for staggered_entries in _STREAMS
                       if staggered_entries != config.staggered_entries and staggered_entries <= config.stage]
    others = sorted((config for config in others
                     if config not in best and config not in first.values()
                     and _fits(problem, config, limits, halves)
                     and length(config) <= most_lines), key=expected)
    # the first of equals: one that was kept already
    shortest = min([*first.values(), *best, *others, *rated], key=length)
    turns = (each for pair in zip_longest(best, others) for each in pair if each)
    return tuple(dict.fromkeys([*first.values(), *turns, shortest]))


def _all(problem: Conv2dProblem, limits: Limits, halves: bool) -> Iterator[GeneratedConfig]:
    per_group = problem.out_channels // problem.groups
    channels = dict.fromkeys(-(-per_group // -(-per_group // most)) for most in _CHANNELS)
    for images, rows, columns in _tiles(problem, halves):
        for block in channels:
            for k_groups in _TEAMS:
                d = GeneratedTiling(problem, GeneratedConfig(block, images, rows, columns, 1, k_groups), halves)
                if d.work_group > limits.work_group_size:
                    break
                yield from _at_once(d, limits)


def _at_once(d: GeneratedTiling, limits: Limits) -> Iterator[GeneratedConfig]:
    """The config for as many groups of a multiprocessor at once as fit, and for one with prefetch_warps."""
    there = -(-math.prod(d.groups) // limits.compute_units)
    most = min(there, _MOST_BLOCKS_PER_UNIT, _ITEMS // d.work_group)
    every = (_staged(d.problem, replace(d.config, blocks_per_unit=blocks_per_unit), limits, d.halves)
             for blocks_per_unit in range(most, 0, -1))
    staged = next(filter(None, every), None)
    if staged is None:
        return
    yield staged
    if _may_prefetch(d.problem, d.config):
        alone = staged if staged.blocks_per_unit == 1 else _staged(d.problem, d.config, limits, d.halves)
        if alone is not None and alone.staggered_entries == SUB_PARTITIONS:
            scouted = replace(alone, prefetch_warps=1)
            if _fits(d.problem, scouted, limits, d.halves):
                yield scouted


def _staged(problem: Conv2dProblem, config: GeneratedConfig, limits: Limits,
            halves: bool) -> GeneratedConfig | None:
    """The config with the stages, staggered_entries and kernels that suit it; None where it does not fit."""
    first = GeneratedTiling(problem, config, halves)
    if not first.vector or not _holds(first):
        return None
    inputs = problem.channels // problem.groups
    density = problem.weights_info.density
    each = math.prod(problem.kernel) * (first.block * density
                                        + 1 - (1 - density) ** first.block)
    room = _room(config, limits) // (first.plane * BUFFERS)
    wanted = max(1, round(_STAGE * config.k_groups / each))
    stage = inputs if inputs * first.plane <= _room(config, limits) and (
        inputs <= 2 * wanted) else min(max(wanted, SUB_PARTITIONS), room, inputs)
    if stage < config.k_groups:
        return None
    staggered_entries = SUB_PARTITIONS if config.k_groups == 1 and stage >= SUB_PARTITIONS else 1
    config = replace(config, stage=stage, staggered_entries=staggered_entries)
    staged = GeneratedTiling(problem, config, halves)
    kernels = min(_MOST_KERNELS, staged.groups[1], 1 + int(lines(staged) // _LINES_A_KERNEL))
    return replace(config, kernels=kernels) if staged.shared_bytes <= _room(config, limits) else None


def _fits(problem: Conv2dProblem, config: GeneratedConfig, limits: Limits, halves: bool) -> bool:
    d = GeneratedTiling(problem, config, halves)
    inputs = problem.channels // problem.groups
    if config.prefetch_warps and not _may_prefetch(problem, config):
        return False
    return (config.k_groups <= config.stage <= inputs and d.work_group <= limits.work_group_size and _holds(d)
            and d.shared_bytes <= _room(config, limits))


def _may_prefetch(problem: Conv2dProblem, config: GeneratedConfig) -> bool:
    """Prefetch warps need a stage to run ahead of, and gain nothing where few warps or several groups
    share a multiprocessor."""
    return (config.k_groups == config.blocks_per_unit == 1 and problem.batch >= _FEW
            and config.stage < problem.channels // problem.groups)


def _room(config: GeneratedConfig, limits: Limits) -> int:
    """Bytes of shared memory for a work-group; each takes a kilobyte of the system's too."""
    return limits.shared_bytes_opt_in // config.blocks_per_unit - 1024 * (config.blocks_per_unit > 1)


def _holds(d: GeneratedTiling) -> bool:
    """Whether a work-item has registers for its sums and for the vectors that it copies."""
    return d.copies <= _MOST_COPIES and d.registers >= _needed(d)


def _needed(d: GeneratedTiling) -> int:
    """Registers with which the assembler spills little or nothing."""
    wide = 2 if d.halves and d.problem.depth * d.problem.weights_info.density > 56 else 0
    return min(255, d.block * (1 + wide) + 12 + 4 * d.copies)


def _tiles(problem: Conv2dProblem, halves: bool) -> Iterator[tuple[int, int, int]]:
    """Images, rows and columns of a work-group's tile: of each size the ones that waste few
    work-items and read little beyond their own pixels."""
    pair = 2 if halves else 1
    many = [images * pair for images in _IMAGES if images * pair <= problem.batch]
    if problem.batch <= _IMAGES[0] * pair:
        many = list(dict.fromkeys([problem.batch, *many]))
    best: dict[tuple[int, int], list[tuple[float, tuple[int, int, int]]]] = {}
    for images in many:
        for rows in _parts(problem.out_height):
            for columns in _parts(problem.out_width):
                d = GeneratedTiling(problem, GeneratedConfig(1, images, rows, columns, 1), halves)
                if d.items > 1024 or not d.vector:
                    continue
                waste = math.prod(d.tiles) * d.k_group * pair / problem.pixels
                halo = (d.patch_rows * d.patch_columns
                        / (rows * columns * math.prod(problem.stride)))
                score = waste * (1 + 0.25 * halo) * _conflicts(d) ** 0.5
                best.setdefault((images, d.k_group // 128), []).append(
                    (score, (images, rows, columns)))
    for found in best.values():
        yield from (tile for _, tile in sorted(found)[:3])


def _parts(size: int) -> list[int]:
    return list(dict.fromkeys(-(-size // count) for count in range(1, size + 1)))
