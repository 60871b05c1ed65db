"""Configs of direct_sparse_compiled, sorted by their expected times."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from gossamer.device.limits import Limits
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.generated.tiling import (
    BUFFERS,
    SUB_PARTITIONS,
    WARP,
    GeneratedConfig,
    GeneratedTiling,
)
from gossamer.ops.gpu import CYCLES_PER_MICROSECOND
from gossamer.ops.weights import WeightsInfo

# The rates below, up to _STAGE_CYCLES, were fitted to 1,100 measured times of 38 pruned layers on
# an H200. On other devices, these rates only decide the order in which configs are tried, because
# the tuner's measurements correct the scale of an algorithm's estimates.
_START = 2000
"""Total cycles before the first product and after the last product."""
_CYCLES_PER_INSTRUCTION = 1.07
"""Cycles for which an instruction of a warp occupies a sub-partition of a multiprocessor."""
_FETCHED, _FETCHED_BY_K_GROUPS, _FETCHED_AHEAD, _ONE_ENTRY = 4.1, 4.7, 6.1, 0.83
"""Bytes of code that a multiprocessor fetches per cycle: with several staggered entries, with
k_groups, and with prefetch warps. With a single entry, _FETCHED is multiplied by _ONE_ENTRY."""
_SHARED_FETCH_EXPONENT = 0.35
"""Work-groups of a multiprocessor share some of the code that they fetch: n work-groups fetch
n ** _SHARED_FETCH_EXPONENT times as many bytes as one work-group."""
_COPIED = {32: 45.0, 64: 97.0, 128: 118.0}
"""Bytes that a multiprocessor copies per cycle. A key is the largest number of contiguous bytes for
which the rate is used. The multiprocessor does not compute in the cycles in which it copies."""
_SMALL_BATCH = 16
"""With a batch below this size, there are so few warps that each warp fetches its own code."""
_FETCHED_BY_WARP, _FETCHED_IN_ALL, _CACHED, _STAGE_CYCLES = 0.8, 4.5, 27, 200
"""Rates of a small batch: bytes of code that a warp fetches per cycle, bytes of code that a
multiprocessor fetches per cycle, bytes of inputs that a multiprocessor copies from the cache per
cycle, and cycles between two stages."""
_INSTRUCTION_BYTES = 16
_CHANNELS = (96, 80, 64, 48, 40, 32, 24, 16, 12, 8, 4, 3, 2, 1)
_IMAGES = (32, 16, 8)
_K_GROUPS = (1, 2, 4, 8, 16)
_STAGGERED_ENTRIES = (8, SUB_PARTITIONS, 1)
_STAGE_INSTRUCTIONS = 500
"""Number of instructions that a work-item should run between two barriers; the length of a stage is
chosen accordingly."""
_MOST_BLOCKS_PER_UNIT = 8
_MOST_COPIES = 4
"""Maximum number of vectors of an input channel that one work-item may copy."""
_WORK_ITEMS_PER_UNIT = 2048
"""Maximum number of work-items that a multiprocessor holds."""
_MOST_KINDS = 16
"""Maximum number of kinds whose best config becomes a candidate in item 2 of `configs`. A kind is
all configs with the same channels, k_groups and prefetch warps."""


def lines(division: GeneratedTiling) -> float:
    """Return the approximate number of instructions of the generated code.

    In float16, one instruction multiplies two values.
    """
    d, config = division, division.config
    density, block = d.problem.weights_info.density, division.block
    channels = _channels(d)
    parts = max(config.k_groups, config.staggered_entries)
    stages = math.ceil(channels / config.stage)
    copies = d.copies * (25 + channels + d.buffers * config.stage + 4 * stages)
    results = block * d.pair * (2 * config.k_groups + 1)
    per_group = (d.problem.depth * (block * density + 1 - (1 - density) ** block) + copies
                 + results + stages * (4 + 6 * parts * (parts > 1)) + 6 * config.k_groups + 60)
    return per_group * d.groups[1]


def _channels(division: GeneratedTiling) -> float:
    """Return the expected number of input channels in which a block has nonzeros."""
    problem = division.problem
    weights = division.block * problem.taps
    return problem.channels / problem.groups * (
        1 - (1 - problem.weights_info.density) ** weights)


def estimated_us(division: GeneratedTiling, limits: Limits) -> float:
    """Return the estimated time of a launch in microseconds.

    With a large batch, some instructions are issued while others are fetched. Issue and fetch
    overlap only in part: sqrt(issue**2 + fetch**2) fits the measured times best. The time of copies
    is added, because all warps wait for copies at the same time.
    """
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
    code = instructions * _INSTRUCTION_BYTES
    if problem.batch < _SMALL_BATCH:
        issue = busy * warps * instructions / config.k_groups / SUB_PARTITIONS
        staggered_entries = config.k_groups if config.k_groups > 1 else config.staggered_entries
        copies = copied / _CACHED
        # work-groups for the same block of channels run the same code at about the same time
        fetch = code * max(rounds / (_FETCHED_BY_WARP * staggered_entries),
                           min(busy, blocks) / _FETCHED_IN_ALL)
        bounds = [issue, loads + copied / 128, copies, fetch]
        overlapped = max(bounds) + 0.2 * (sum(bounds) - max(bounds))
        cycles = _START + rounds * stages * _STAGE_CYCLES + overlapped
    else:
        fullest = math.ceil(warps * blocks_per_unit / SUB_PARTITIONS) / blocks_per_unit
        issue = max(
            _CYCLES_PER_INSTRUCTION * busy * fullest * instructions / config.k_groups, loads)
        contiguous = d.patch_pixel * (d.patch_columns if config.images == problem.batch else 1)
        copies = copied / next((rate for most, rate in _COPIED.items() if contiguous <= most),
                               max(_COPIED.values()))
        fetch_rate = _FETCHED
        if config.prefetch_warps:
            fetch_rate = _FETCHED_AHEAD
        elif config.k_groups > 1:
            fetch_rate = _FETCHED_BY_K_GROUPS
        elif config.staggered_entries == 1:
            fetch_rate *= _ONE_ENTRY
        fetch = code * rounds * blocks_per_unit**_SHARED_FETCH_EXPONENT / fetch_rate
        cycles = _START + math.hypot(issue, fetch) + copies
    return cycles / CYCLES_PER_MICROSECOND


def _conflicts(d: GeneratedTiling) -> int:
    """Return the maximum number of words that a warp reads from one bank at once."""
    return _most_words_of_a_bank(min(WARP, d.items), d.lanes, d.config.columns, d.patch_columns,
                                 d.problem.stride, d.patch_pixel // 4)


@functools.lru_cache(maxsize=4096)
def _most_words_of_a_bank(items: int, lanes: int, columns: int, width: int,
                          stride: tuple[int, int], pixel: int) -> int:
    down, right = stride
    words = [(item // lanes // columns * down * width + item // lanes % columns * right) * pixel
             + item % lanes for item in range(items)]
    banks: dict[int, set[int]] = {}
    for word in words:
        banks.setdefault(word % 32, set()).add(word)
    return max(map(len, banks.values()))


def configs(problem: Conv2dProblem, limits: Limits, halves: bool = False,
            most_lines: float = math.inf) -> tuple[GeneratedConfig, ...]:
    """Return the configs that fit the device, the fastest expected first.

    The result is empty if no config fits. The order is:

    1. In a large batch, the best config with prefetch warps, the best with k_groups and the best
       with neither, because the model is least accurate in comparing these three. In a small batch,
       the best config.
    2. The best config of each other kind (channels, k_groups, prefetch warps). These configs
       alternate with variations of the first configs. The variations have other tiles, other
       staggered entries or longer stages.
    3. The config with the shortest code, unless it is already listed. Efforts that leave little
       time for building need this config.

    halves: True for float16.
    most_lines: maximum number of instructions of the code.
    """
    # layers of the same shape and about the same density share configs, wherever their zeros are
    density = float(f"{problem.weights_info.density:.1e}")
    anywhere = replace(problem, weights_info=WeightsInfo(density))
    return _configs(anywhere, limits, halves, most_lines)


@functools.lru_cache(maxsize=256)
def _configs(problem: Conv2dProblem, limits: Limits, halves: bool,
             most_lines: float) -> tuple[GeneratedConfig, ...]:
    def expected(config: GeneratedConfig) -> float:
        return estimated_us(GeneratedTiling(problem, config, halves), limits)

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
        kind = (config.channels, config.k_groups, config.prefetch_warps)
        kinds.setdefault(kind, []).append(config)
        first.setdefault((config.k_groups > 1, config.prefetch_warps)
                         if problem.batch >= _SMALL_BATCH else (), config)
    inputs = problem.group_channels
    best = [of_kind[0] for of_kind in kinds.values() if of_kind[0] not in first.values()]
    best = best[:_MOST_KINDS]
    others = [config for of_kind in list(kinds.values())[:3] for config in of_kind[1:2]]
    for config in [*first.values(), *best][:3]:
        others.append(replace(config, stage=min(2 * config.stage, inputs)))
        if config.k_groups == 1 and not config.prefetch_warps:
            others += [replace(config, staggered_entries=entries)
                       for entries in _STAGGERED_ENTRIES
                       if entries != config.staggered_entries and entries <= config.stage]
    others = sorted((config for config in others
                     if config not in best and config not in first.values()
                     and _fits(problem, config, limits, halves)
                     and length(config) <= most_lines), key=expected)
    # min() returns the first of equally short configs, so configs already listed are preferred
    shortest = min([*first.values(), *best, *others, *rated], key=length)
    alternating = (config for pair in zip_longest(best, others) for config in pair if config)
    return tuple(dict.fromkeys([*first.values(), *alternating, shortest]))


def _all(problem: Conv2dProblem, limits: Limits, halves: bool) -> Iterator[GeneratedConfig]:
    """Yield the configs that fit the device, in no particular order."""
    per_group = problem.group_out_channels
    channels = dict.fromkeys(-(-per_group // -(-per_group // most)) for most in _CHANNELS)
    for images, rows, columns in _tiles(problem, halves):
        for block in channels:
            for k_groups in _K_GROUPS:
                config = GeneratedConfig(block, images, rows, columns, 1, k_groups)
                d = GeneratedTiling(problem, config, halves)
                if d.work_group > limits.work_group_size:
                    break
                yield from _configs_per_unit(d, limits)


def _configs_per_unit(d: GeneratedTiling, limits: Limits) -> Iterator[GeneratedConfig]:
    """Yield the config of `d` with the largest blocks_per_unit that fits.

    If prefetch warps may help, also yield a config with prefetch warps.
    """
    per_unit = -(-math.prod(d.groups) // limits.compute_units)
    most = min(per_unit, _MOST_BLOCKS_PER_UNIT, _WORK_ITEMS_PER_UNIT // d.work_group)
    if not d.vector or d.copies > _MOST_COPIES:
        return
    needed = _needed_registers(d)
    candidates = (_staged(d.problem, replace(d.config, blocks_per_unit=count), limits, d.halves)
                for count in range(most, 0, -1) if d.registers_of(count) >= needed)
    staged = next(filter(None, candidates), None)
    if staged is None:
        return
    yield staged
    if _may_prefetch(d.problem, d.config):
        alone = (staged if staged.blocks_per_unit == 1
                 else _staged(d.problem, d.config, limits, d.halves))
        if alone is not None and alone.staggered_entries == SUB_PARTITIONS:
            with_prefetch = replace(alone, prefetch_warps=1)
            if _fits(d.problem, with_prefetch, limits, d.halves):
                yield with_prefetch


def _staged(problem: Conv2dProblem, config: GeneratedConfig, limits: Limits,
            halves: bool) -> GeneratedConfig | None:
    """Return `config` with the best stage and staggered entries.

    Return None if the config does not fit shared memory. Callers check the registers.
    """
    first = GeneratedTiling(problem, config, halves)
    inputs = problem.group_channels
    density = problem.weights_info.density
    per_channel = problem.taps * (first.block * density
                                               + 1 - (1 - density) ** first.block)
    room = _room(config, limits) // (first.plane * BUFFERS)
    # if all weights of a layer are zero, the code has no products, and any stage is suitable
    suited = (max(1, round(_STAGE_INSTRUCTIONS * config.k_groups / per_channel)) if per_channel
              else inputs)
    stage = inputs if inputs * first.plane <= _room(config, limits) and (
        inputs <= 2 * suited) else min(max(suited, SUB_PARTITIONS), room, inputs)
    if stage < config.k_groups:
        return None
    entries = SUB_PARTITIONS if config.k_groups == 1 and stage >= SUB_PARTITIONS else 1
    config = replace(config, stage=stage, staggered_entries=entries)
    staged = GeneratedTiling(problem, config, halves)
    return config if staged.shared_bytes <= _room(config, limits) else None


def _fits(problem: Conv2dProblem, config: GeneratedConfig, limits: Limits, halves: bool) -> bool:
    d = GeneratedTiling(problem, config, halves)
    inputs = problem.group_channels
    if config.prefetch_warps and not _may_prefetch(problem, config):
        return False
    return (config.k_groups <= config.stage <= inputs
            and d.work_group <= limits.work_group_size and _holds(d)
            and d.shared_bytes <= _room(config, limits))


def _may_prefetch(problem: Conv2dProblem, config: GeneratedConfig) -> bool:
    """Return whether prefetch warps can help.

    Prefetch warps need a next stage to fetch. They do not help if the batch is small, or if a
    multiprocessor runs several work-groups.
    """
    return (config.k_groups == config.blocks_per_unit == 1 and problem.batch >= _SMALL_BATCH
            and config.stage < problem.group_channels)


def _room(config: GeneratedConfig, limits: Limits) -> int:
    """Return the bytes of shared memory that a work-group may use.

    If several work-groups share a multiprocessor, the system reserves a kilobyte for each of them.
    """
    count = config.blocks_per_unit
    return limits.shared_bytes_opt_in // count - 1024 * (count > 1)


def _holds(d: GeneratedTiling) -> bool:
    """Return whether a work-item has registers for its sums and for the vectors that it copies."""
    return d.copies <= _MOST_COPIES and d.registers >= _needed_registers(d)


def _needed_registers(d: GeneratedTiling) -> int:
    """Return the number of registers with which ptxas spills little or nothing."""
    wide = 2 if d.halves and d.problem.depth * d.problem.weights_info.density > 56 else 0
    return min(255, d.block * (1 + wide) + 12 + 4 * d.copies)


def _tiles(problem: Conv2dProblem, halves: bool) -> Iterator[tuple[int, int, int]]:
    """Yield tiles of a work-group as (images, rows, columns).

    The three best tiles are yielded for each number of images and each range of work-item counts. A
    good tile has few idle work-items, a small halo and few bank conflicts.
    """
    pair = 2 if halves else 1
    image_counts = [images * pair for images in _IMAGES if images * pair <= problem.batch]
    if problem.batch <= _IMAGES[0] * pair:
        image_counts = list(dict.fromkeys([problem.batch, *image_counts]))
    best: dict[tuple[int, int], list[tuple[float, tuple[int, int, int]]]] = {}
    for images in image_counts:
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
    for scored_tiles in best.values():
        yield from (tile for _, tile in sorted(scored_tiles)[:3])


def _parts(size: int) -> list[int]:
    """Return the different values of ceil(size / count) for count = 1, 2, ..., size."""
    return list(dict.fromkeys(-(-size // count) for count in range(1, size + 1)))
