"""The order of direct_sparse_mma's work: which output channels go together, which warps take them,
and which columns are multiplied when."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product

import numpy as np

from gossamer.ops.conv2d.sparse.common.row_blocks import cluster
from gossamer.ops.conv2d.sparse.common.tensor_cores import ROWS

_LAG = 1.5
"""Chunks whose columns stay for later where they may: with more to choose from, those of a step
lie in different banks."""
_MOST_ROUNDS, _MOST_PRODUCTS, _SWAPS = 16, 2e9, 400
"""Of swapping rows between tiles: rounds, multiply-adds in all, and pairs looked at in each."""


@dataclass(frozen=True)
class Kind:
    """What differs by precision: images of 16 bytes, columns of a step, and how many of these are
    read at once, which lie in different banks where their classes differ modulo that
    number."""

    precision: str
    vector: int
    depth: int
    apart: int

    @property
    def images(self) -> int:
        """Of a row of shared memory."""
        return 8 * self.vector


KINDS = {kind.precision: kind for kind in (Kind("tf32", 4, 8, 4), Kind("fp16", 8, 16, 8))}


@dataclass(frozen=True)
class TileBlock:
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


@lru_cache(maxsize=8)
def alike(bits: bytes, shape: tuple[int, int]) -> list[list[int]]:
    """The rows of a mask, given as its packed bits, in tiles of 16 alike ones: as they are
    clustered, and then swapped between tiles while that leaves fewer columns that a tile needs.
    All shapes of a layer ask for the same."""
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=shape[0] * shape[1]).reshape(
        shape).astype(np.float32)
    tiles = cluster(mask > 0, ROWS)
    own = np.empty(len(mask), np.int64)
    for tile, members in enumerate(tiles):
        own[members] = tile
    lengths = mask.sum(axis=1)
    for _ in range(min(_MOST_ROUNDS, int(_MOST_PRODUCTS // max(1, len(mask) * mask.size)))):
        counts = np.zeros((len(tiles), mask.shape[1]), np.float32)
        np.add.at(counts, own, mask)
        needed = (counts > 0).sum(axis=1)
        without = (counts[own] > mask).astype(np.float32)
        # columns that a row's tile needs with another row in its place
        swapped = without.sum(axis=1)[:, None] + lengths - without @ mask.T
        gains = needed[own][:, None] + needed[own] - swapped - swapped.T
        gains[own[:, None] == own] = 0
        changed: set[int] = set()
        for place in np.argsort(-gains, axis=None, kind="stable")[:_SWAPS]:
            first, second = divmod(int(place), len(mask))
            both = {int(own[first]), int(own[second])}
            if gains[first, second] > 0 and not both & changed:
                changed |= both
                own[first], own[second] = own[second], own[first]
        if not changed:
            break
    return [np.flatnonzero(own == tile).tolist() for tile in range(len(tiles))]


def blocks_of(rows: np.ndarray, mask: np.ndarray, tiles: int) -> list[TileBlock]:
    """Of rows of a mask, alike ones in tiles, and alike tiles in blocks."""
    members = alike(np.packbits(mask).tobytes(), mask.shape)
    needed = np.stack([mask[each].any(axis=0) for each in members])
    nothing = np.zeros(0, np.int64)
    blocks = []
    for each in cluster(needed, tiles):
        missing = tiles - len(each)
        blocks.append(TileBlock([*(rows[members[tile]] for tile in each), *[nothing] * missing],
                            np.pad(needed[each], ((0, missing), (0, 0)))))
    return blocks


def dealt(blocks: list[TileBlock], together: int, turns: int) -> list[TileBlock]:
    """In the order of work-groups: these, and the four schedulers of each, get alike sums of work.
    What is missing in the last one is a block of nothing."""
    count = -(-len(blocks) // together)
    nothing = [TileBlock([tile[:0] for tile in block.tiles], np.zeros_like(block.needed))
               for block in blocks[:1]]
    blocks = blocks + nothing * (count * together - len(blocks))
    dealt: list[TileBlock] = []
    for own in _shares(blocks, [together] * count):
        dealt += _arranged(own, turns)
    return dealt


def _arranged(blocks: list[TileBlock], turns: int) -> list[TileBlock]:
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


def _shares(blocks: list[TileBlock], sizes: Sequence[int]) -> list[list[TileBlock]]:
    """So many blocks each, with alike sums of work: the longest go first to who has least, then
    the largest sum and each other one swap what brings them closest."""
    shares: list[list[TileBlock]] = [[] for _ in sizes]

    def total(share: list[TileBlock]) -> int:
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


def scheduled(chunks: np.ndarray, classes: np.ndarray, phases: int, stages: int, apart: int,
              depth: int, rounding: float = 0.5) -> tuple[list[list[int]], list[int]]:
    """The steps of a block, each the numbers of its columns (-1: none), and how many of them are
    done by the end of each phase.

    chunks: of each column, ascending. A chunk is there from the phase of its number on, and is
    replaced `stages` - 2 phases later. classes: of each column, what differs where columns can be
    read at once, from 0 to apart - 1. depth: columns of a step. rounding: what is added to a
    phase's share of the steps before it is cut to a whole number.
    """
    arrivals = np.searchsorted(chunks, np.arange(phases + 1)).tolist()
    class_of = classes.tolist()
    queues: list[deque[int]] = [deque() for _ in range(apart)]
    total = -(-len(chunks) // depth)
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
               or (len(steps) < pace and arrivals[phase + 1] - taken >= depth)):
            step: list[int] = []
            for _ in range(depth // apart):
                step += _apart(queues, apart)
            taken += len(step)
            steps.append(step + [-1] * (depth - len(step)))
        ends.append(len(steps))
    return steps, ends


def _apart(queues: Sequence[deque[int]], count: int) -> list[int]:
    """So many columns, of different classes where there are such: else of those with most."""
    found = [queue.popleft() for queue in queues if queue]
    while len(found) < count and (queue := max(queues, key=len)):
        found.append(queue.popleft())
    return found
