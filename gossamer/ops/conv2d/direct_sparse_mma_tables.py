"""The tables of direct_sparse_mma: which columns of which block are multiplied when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

import numpy as np

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse_table import cluster

ROWS = 16
"""Output channels of an instruction's tile."""
ROW_CLASSES = 3
"""What the class of a pixel's row of local memory grows by along y: so a window of 3 x 3 has all
eight."""
_LAG = 1.5
"""Chunks whose columns stay for later where they may: with more to choose from, those of a step
lie in different banks."""


@dataclass(frozen=True)
class Kind:
    """What differs by precision: images of 16 bytes, columns of a step, and how many of these are
    read at once, which lie in different banks where their classes differ modulo that
    number."""

    vector: int
    depth: int
    apart: int

    @property
    def images(self) -> int:
        """Of a row of local memory."""
        return 8 * self.vector


KINDS = {"tf32": Kind(4, 8, 4), "fp16": Kind(8, 16, 8)}


@dataclass(frozen=True)
class Geometry:
    """How a layer's input comes into local memory: `chunk` channels at a time, for each of which
    `pitch` rows, into one of `stages` parts of `stage_rows` rows. height, width: of the input
    pixels that a tile's windows cover."""

    height: int
    width: int
    chunk: int
    stages: int

    @property
    def pitch(self) -> int:
        return self.height * self.width

    @property
    def stage_rows(self) -> int:
        return self.chunk * self.pitch

    @property
    def nbytes(self) -> int:
        """Of local memory: the rows, where one stage's are in the input, and where the tile is."""
        return self.stage_rows * (self.stages * 128 + 8) + 16


@dataclass(frozen=True)
class Tables:
    """The tables of a layer: blocks of alike output channels, `tiles` times 16, `together` of which
    share a work-group, with `turns` warps each.

    starts: of each block, its first fragment of weights, its first step, and the end of each
    phase's steps of each kind: with two tiles those of both, of the first and of the second, else
    one kind. places: of each
    column of a step, its row of local memory for the tile's first pixel, times 128, and its class.
    weights: fragments, of each step one for each tile that it is for: four registers for each of
    32 lanes. channels: of each row of a block, its output channel, or -1. Behind the last step
    stands one more, to be read ahead.
    """

    problem: Conv2dProblem
    weight: np.ndarray
    kind: Kind
    tiles: int
    together: int
    turns: int
    geometry: Geometry

    def key(self, part: str) -> str:
        return (f"{part} of {self.tiles} tiles, {self.together} x {self.turns}, {self.kind}, "
                f"{self.geometry}")

    def packing(self, part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        return lambda arrays: self.parts[part]

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        problem, depth = self.problem, self.kind.depth
        matrix = np.asarray(self.weight, np.float32).reshape(problem.out_channels, -1)
        per_group = problem.out_channels // problem.groups
        starts, channels, places, values = [], [], [], []
        step = fragment = 0
        for first in range(0, problem.out_channels, per_group):
            rows = np.arange(first, first + per_group)
            found = _blocks(rows, matrix[rows] != 0, self.tiles)
            for number, block in enumerate(_dealt(found, self.together, self.turns)):
                # of the blocks of one scheduler, not all round their share of a phase alike
                turn = number % self.together // 4
                rounding = (turn + 0.5) / -(-self.together // 4)
                kinds = [self._steps(block, tiles, matrix, rounding) for tiles in block.kinds]
                own = [fragment, step]
                for phase in range(phases_of(problem, self.geometry)):
                    for ends, chosen, weights in kinds:
                        span = slice(ends[phase], ends[phase + 1])
                        places.append(chosen[span])
                        values.append(weights[span].reshape(-1, ROWS, depth))
                        step += len(places[-1])
                        fragment += len(values[-1])
                        own.append(step)
                starts.append(own)
                channels.append([np.pad(tile, (0, ROWS - len(tile)), constant_values=-1)
                                 for tile in block.tiles])
        places.append(np.zeros((1, depth), np.int64))
        values.append(np.zeros((self.tiles, ROWS, depth), np.float32))
        return {"starts": np.array(starts, np.int32),
                "places": np.concatenate(places).astype(np.int32),
                "weights": _fragments(np.concatenate(values), self.kind),
                "channels": np.array(channels, np.int32).reshape(-1, self.tiles * ROWS)}

    def _steps(self, block: Block, tiles: tuple[int, ...], matrix: np.ndarray, rounding: float
               ) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Of the columns that exactly these tiles need: the first step of each phase and the end,
        the places of each step, and its weights (steps, tiles, 16, depth)."""
        depth, columns = self.kind.depth, block.columns(tiles)
        channel, place = self._located(columns)
        steps, ends = scheduled(channel // self.geometry.chunk, place % self.kind.apart,
                                phases_of(self.problem, self.geometry), self.geometry.stages,
                                self.kind, rounding)
        chosen = np.array(steps, np.int64).reshape(-1, depth)
        of = chosen.reshape(-1)
        weights = np.zeros((len(tiles), ROWS, of.size), np.float32)
        for number, tile in enumerate(tiles):
            members = block.tiles[tile]
            weights[number, :len(members), of >= 0] = matrix[
                np.ix_(members, columns[of[of >= 0]])].T
        # what fills a step up repeats one of its columns
        filled = np.where(chosen < 0, chosen[:, :1], chosen)
        return [0, *ends], place[filled], weights.reshape(
            len(tiles), ROWS, -1, depth).transpose(2, 0, 1, 3)

    def _located(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each column its channel within the group, and its place in local memory."""
        problem, geometry = self.problem, self.geometry
        channel, tap = np.divmod(columns, problem.kernel[0] * problem.kernel[1])
        row, column = np.divmod(tap, problem.kernel[1])
        chunk, in_chunk = np.divmod(channel, geometry.chunk)
        down, right = row * problem.dilation[0], column * problem.dilation[1]
        pool_row = (chunk % geometry.stages * geometry.stage_rows + in_chunk * geometry.pitch
                    + down * geometry.width + right)
        return channel, pool_row << 7 | (in_chunk + ROW_CLASSES * down + right) % 8


def phases_of(problem: Conv2dProblem, geometry: Geometry) -> int:
    """How many chunks the channels of a group are."""
    return -(-(problem.channels // problem.groups) // geometry.chunk)


def blocks_of(problem: Conv2dProblem, tiles: int, together: int) -> int:
    """Of each group, with those without channels that fill the last work-group."""
    blocks = -(-(problem.out_channels // problem.groups) // (ROWS * tiles))
    return -(-blocks // together) * together


@dataclass(frozen=True)
class Block:
    """tiles: the output channels of each. needed: (tiles, columns) whether a tile has a nonzero."""

    tiles: list[np.ndarray]
    needed: np.ndarray

    @property
    def kinds(self) -> list[tuple[int, ...]]:
        """The tiles that a step can be for."""
        return [(0,)] if len(self.tiles) == 1 else [(0, 1), (0,), (1,)]

    def columns(self, tiles: tuple[int, ...]) -> np.ndarray:
        """Those that exactly these tiles need."""
        wanted = np.isin(np.arange(len(self.tiles)), tiles)
        return np.flatnonzero((self.needed == wanted[:, None]).all(axis=0))

    @cached_property
    def work(self) -> int:
        return int(self.needed.sum())


def _blocks(rows: np.ndarray, mask: np.ndarray, tiles: int) -> list[Block]:
    """Of rows of a mask, alike ones in tiles, and alike tiles in blocks."""
    members = cluster(mask, ROWS)
    needed = np.stack([mask[each].any(axis=0) for each in members])
    nothing = np.zeros(0, np.int64)
    blocks = []
    for each in cluster(needed, tiles):
        missing = tiles - len(each)
        blocks.append(Block([*(rows[members[tile]] for tile in each), *[nothing] * missing],
                            np.pad(needed[each], ((0, missing), (0, 0)))))
    return blocks


def _dealt(blocks: list[Block], together: int, turns: int) -> list[Block]:
    """In the order of work-groups: these, and the four schedulers of each, get alike sums of work.
    What is missing in the last one is a block of nothing."""
    count = -(-len(blocks) // together)
    nothing = [Block([tile[:0] for tile in block.tiles], np.zeros_like(block.needed))
               for block in blocks[:1]]
    blocks = blocks + nothing * (count * together - len(blocks))
    dealt: list[Block] = []
    for own in _shares(blocks, [together] * count):
        dealt += _arranged(own, turns)
    return dealt


def _arranged(blocks: list[Block], turns: int) -> list[Block]:
    """Swapped until the schedulers' sums of work are alike: warp w has the one with number
    (w + turn) modulo theirs, and scheduler w modulo 4."""
    warps = np.arange(turns * len(blocks))
    warps_of = np.zeros((4, len(blocks)))
    np.add.at(warps_of, (warps % 4, (warps + warps // len(blocks)) % len(blocks)), 1)
    work = np.array([block.work for block in blocks], float)
    order = np.arange(len(blocks))
    pairs = list(combinations(order, 2))

    def unevenness(order: np.ndarray) -> float:
        return float(np.square(warps_of @ work[order]).sum())

    least = unevenness(order)
    for _ in range(4 * len(blocks)):
        swapped = []
        for pair in pairs:
            other = order.copy()
            other[list(pair)] = order[list(reversed(pair))]
            swapped.append((unevenness(other), other))
        best = min(swapped, key=lambda each: each[0], default=(least, order))
        if best[0] >= least:
            break
        least, order = best
    return [blocks[number] for number in order]


def _shares(blocks: list[Block], sizes: Sequence[int]) -> list[list[Block]]:
    """So many blocks each, with alike sums of work: the longest go first to who has least, then
    the largest sum and each other one swap what brings them closest."""
    shares: list[list[Block]] = [[] for _ in sizes]

    def total(share: list[Block]) -> int:
        return sum(block.work for block in share)

    for block in sorted(blocks, key=lambda each: -each.work):
        open_ones = [share for share, size in zip(shares, sizes, strict=True) if len(share) < size]
        min(open_ones, key=total).append(block)
    for _ in range(4 * len(blocks)):
        largest = max(shares, key=total)
        best = None
        for other in shares:
            gap = total(largest) - total(other)
            for i, j in product(range(len(largest)), range(len(other))):
                left = abs(gap - 2 * (largest[i].work - other[j].work))
                if left < gap and (best is None or gap - left > best[0]):
                    best = gap - left, other, i, j
        if best is None:
            break
        _, other, i, j = best
        largest[i], other[j] = other[j], largest[i]
    for share in shares:
        share.sort(key=lambda each: -each.work)
    return shares


def scheduled(chunks: np.ndarray, classes: np.ndarray, phases: int, stages: int, kind: Kind,
              rounding: float = 0.5) -> tuple[list[list[int]], list[int]]:
    """The steps of a block, each the numbers of its columns (-1: none), and how many of them are
    done by the end of each phase.

    chunks: of each column, ascending. A chunk is there from the phase of its number on, and is
    replaced `stages` - 2 phases later. classes: of each column, what differs where columns can be
    read at once, from 0 to kind.apart - 1. rounding: what is added to a phase's share of the steps
    before it is cut to a whole number.
    """
    arrivals = np.searchsorted(chunks, np.arange(phases + 1)).tolist()
    class_of = classes.tolist()
    queues: list[deque[int]] = [deque() for _ in range(kind.apart)]
    total = -(-len(chunks) // kind.depth)
    steps: list[list[int]] = []
    ends = []
    taken = 0
    for phase in range(phases):
        for column in range(arrivals[phase], arrivals[phase + 1]):
            queues[class_of[column]].append(column)
        last = phase == phases - 1
        # whose chunk is replaced in the next phase
        due = len(chunks) if last else arrivals[max(0, phase + 4 - stages)]
        # the first phases, too, have something to do
        lag = min(_LAG, (phase + 2) / 4)
        pace = total if last else int(total * (phase + 1 - lag) / phases + rounding)
        while (any(queue and queue[0] < due for queue in queues)
               or (len(steps) < pace and arrivals[phase + 1] - taken >= kind.depth)):
            step: list[int] = []
            for _ in range(kind.depth // kind.apart):
                step += _apart(queues, kind.apart)
            taken += len(step)
            steps.append(step + [-1] * (kind.depth - len(step)))
        ends.append(len(steps))
    return steps, ends


def _apart(queues: Sequence[deque[int]], count: int) -> list[int]:
    """So many columns, of different classes where there are such: else of those with most."""
    found = [queue.popleft() for queue in queues if queue]
    while len(found) < count and (queue := max(queues, key=len)):
        found.append(queue.popleft())
    return found


def _fragments(values: np.ndarray, kind: Kind) -> np.ndarray:
    """(fragments, 16, depth) weights as (fragments, 32 lanes, 4 registers).

    Register r of lane l holds row l / 4 + 8 (r % 2) and of the first half of the columns (r < 2)
    or the second that, or those two, with number l % 4.
    """
    fragments, _, depth = values.shape
    # fragment, upper or lower rows, row, upper or lower columns, quarter, column of these
    apart = values.reshape(fragments, 2, 8, 2, 4, depth // 8)
    lanes = apart.transpose(0, 2, 4, 3, 1, 5)
    if kind.vector == 8:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(lanes.astype(np.float16)).view("<u4")
    return _tf32(np.ascontiguousarray(lanes))


def _tf32(values: np.ndarray) -> np.ndarray:
    """Rounded to the 10 bits of mantissa that TF32 has, to nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint32(0x1FFF)
    return np.where(np.isfinite(values), rounded, bits).view(np.float32)
