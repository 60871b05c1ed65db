"""Orders the work of direct_sparse_mma: which output channels form a block, which warps multiply
the block, and when each column is multiplied."""

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
"""Number of phases by which the product of a column is delayed, where possible, after the chunk of
the column has arrived. A step then has more columns to choose from, and more often gets columns
that lie in different banks."""
_MOST_ROUNDS, _MOST_PRODUCTS, _SWAPS = 16, 2e9, 400
"""Limits of the search that swaps rows between tiles: rounds, multiply-adds in total, and pairs of
rows in a round. All three are rules of thumb."""


@dataclass(frozen=True)
class Kind:
    """A precision, with the sizes that depend on it.

    precision: "tf32" or "fp16".
    vector: images in 16 bytes.
    depth: columns of a step for all tiles; a step for one of two tiles has twice as many.
    apart: number of columns that are read at once; they lie in different banks where their places
    in shared memory differ modulo this number.
    """

    precision: str
    vector: int
    depth: int
    apart: int

    @property
    def images(self) -> int:
        """Images in a row of shared memory, which has 128 bytes."""
        return 8 * self.vector


KINDS = {kind.precision: kind for kind in (Kind("tf32", 4, 8, 4), Kind("fp16", 8, 16, 8))}


@dataclass(frozen=True)
class TileBlock:
    """A block of output channels in tiles of 16.

    tiles: the output channels of each tile.
    needed: (tiles, columns) true where a tile has a nonzero in a column.
    """

    tiles: list[np.ndarray]
    needed: np.ndarray

    @property
    def kinds(self) -> list[tuple[int, ...]]:
        """The possible sets of tiles of a step. All columns of a step are needed by all tiles of
        one set, and by no other tile."""
        return [(0,)] if len(self.tiles) == 1 else [(0, 1), (0,), (1,)]

    def columns(self, tiles: tuple[int, ...]) -> np.ndarray:
        """Returns the columns that exactly these tiles need."""
        selected = np.isin(np.arange(len(self.tiles)), tiles)
        return np.flatnonzero((self.needed == selected[:, None]).all(axis=0))

    @cached_property
    def work(self) -> int:
        """Columns that the tiles need, summed over the tiles."""
        return int(self.needed.sum())


@lru_cache(maxsize=8)
def alike(bits: bytes, shape: tuple[int, int]) -> list[list[int]]:
    """Groups the rows of a mask, given as packed bits, into tiles of 16 similar rows. Rows are
    clustered, and then swapped between tiles as long as swaps reduce the columns that tiles need.
    The result is cached, because every config of a layer needs it."""
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=shape[0] * shape[1]).reshape(
        shape).astype(np.float32)
    tiles = cluster(mask > 0, ROWS)
    tile_of = np.empty(len(mask), np.int64)
    for tile, members in enumerate(tiles):
        tile_of[members] = tile
    lengths = mask.sum(axis=1)
    for _ in range(min(_MOST_ROUNDS, int(_MOST_PRODUCTS // max(1, len(mask) * mask.size)))):
        counts = np.zeros((len(tiles), mask.shape[1]), np.float32)
        np.add.at(counts, tile_of, mask)
        needed = (counts > 0).sum(axis=1)
        without = (counts[tile_of] > mask).astype(np.float32)
        # swapped[i, j]: number of columns that the tile of row i would need with row j in its place
        swapped = without.sum(axis=1)[:, None] + lengths - without @ mask.T
        gains = needed[tile_of][:, None] + needed[tile_of] - swapped - swapped.T
        gains[tile_of[:, None] == tile_of] = 0
        changed: set[int] = set()
        for place in np.argsort(-gains, axis=None, kind="stable")[:_SWAPS]:
            first, second = divmod(int(place), len(mask))
            pair = {int(tile_of[first]), int(tile_of[second])}
            if gains[first, second] > 0 and not pair & changed:
                changed |= pair
                tile_of[first], tile_of[second] = tile_of[second], tile_of[first]
        if not changed:
            break
    return [np.flatnonzero(tile_of == tile).tolist() for tile in range(len(tiles))]


def blocks_of(rows: np.ndarray, mask: np.ndarray, tiles: int) -> list[TileBlock]:
    """Groups the rows of a mask into tiles of similar rows, and the tiles into blocks."""
    members = alike(np.packbits(mask).tobytes(), mask.shape)
    needed = np.stack([mask[tile].any(axis=0) for tile in members])
    nothing = np.zeros(0, np.int64)
    blocks = []
    for block in cluster(needed, tiles):
        missing = tiles - len(block)
        blocks.append(TileBlock([*(rows[members[tile]] for tile in block), *[nothing] * missing],
                                np.pad(needed[block], ((0, missing), (0, 0)))))
    return blocks


def dealt(blocks: list[TileBlock], together: int, warps_a_block: int) -> list[TileBlock]:
    """Returns the blocks in the order of work-groups, `together` blocks for each. All work-groups
    get similar sums of work, and so do the four schedulers of a work-group. Empty blocks fill the
    last work-group."""
    count = -(-len(blocks) // together)
    nothing = [TileBlock([tile[:0] for tile in block.tiles], np.zeros_like(block.needed))
               for block in blocks[:1]]
    blocks = blocks + nothing * (count * together - len(blocks))
    dealt: list[TileBlock] = []
    for share in _shares(blocks, [together] * count):
        dealt += _arranged(share, warps_a_block)
    return dealt


def _arranged(blocks: list[TileBlock], warps_a_block: int) -> list[TileBlock]:
    """Returns the blocks of a work-group in an order in which its schedulers have similar sums of
    work. With n blocks, warp w multiplies block (w + w // n) % n and belongs to scheduler w % 4."""
    warps = np.arange(warps_a_block * len(blocks))
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
        best = min(swapped, key=lambda candidate: candidate[0], default=(least, order))
        if best[0] >= least:
            break
        least, order = best
    return [blocks[number] for number in order]


def _shares(blocks: list[TileBlock], sizes: Sequence[int]) -> list[list[TileBlock]]:
    """Divides the blocks into shares of given sizes with similar sums of work. First the
    blocks are assigned, the longest first, each to the share with the least work so far. Then the
    largest share repeatedly swaps a block with another share; the swap is the one that reduces the
    difference of the two sums most."""
    shares: list[list[TileBlock]] = [[] for _ in sizes]

    def total(share: list[TileBlock]) -> int:
        return sum(block.work for block in share)

    for block in sorted(blocks, key=lambda block: -block.work):
        with_room = [share for share, size in zip(shares, sizes, strict=True) if len(share) < size]
        min(with_room, key=total).append(block)
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
        share.sort(key=lambda block: -block.work)
    return shares


def scheduled(chunks: np.ndarray, classes: np.ndarray, phases: int, stages: int, apart: int,
              depth: int, rounding: float = 0.5) -> tuple[list[list[int]], list[int]]:
    """Returns the steps of a block, each as a list of the numbers of the step's columns (-1: no
    column), and the number of steps that are multiplied by the end of each phase.

    chunks: chunk of each column, ascending. Chunk c is in shared memory from phase c on, and is
    replaced `stages` - 2 phases later.
    classes: for each column the swizzle class of its place modulo `apart`; columns of different
    classes lie in different banks and can be read at once.
    apart: number of columns that are read at once.
    depth: columns of a step.
    rounding: fraction that decides how the number of steps due by the end of a phase is rounded to
    a whole number: the fraction is added, and the sum is rounded down.
    """
    arrivals = np.searchsorted(chunks, np.arange(phases + 1)).tolist()
    class_of = classes.tolist()
    queues: list[deque[int]] = [deque() for _ in range(apart)]
    total = -(-len(chunks) // depth)
    steps: list[list[int]] = []
    ends = []
    scheduled_count = 0
    for phase in range(phases):
        for column in range(arrivals[phase], arrivals[phase + 1]):
            queues[class_of[column]].append(column)
        last = phase == phases - 1
        # the next phase replaces the chunks of columns before `due`: multiply these columns now
        due = len(chunks) if last else arrivals[max(0, phase + 4 - stages)]
        # a smaller lag at the start, so that the first phases have work too
        lag = min(_LAG, (phase + 2) / 4)
        pace = total if last else int(total * (phase + 1 - lag) / phases + rounding)
        while (any(queue and queue[0] < due for queue in queues)
               or (len(steps) < pace and arrivals[phase + 1] - scheduled_count >= depth)):
            step: list[int] = []
            for _ in range(depth // apart):
                step += _apart(queues, apart)
            scheduled_count += len(step)
            steps.append(step + [-1] * (depth - len(step)))
        ends.append(len(steps))
    return steps, ends


def _apart(queues: Sequence[deque[int]], count: int) -> list[int]:
    """Takes `count` columns off the queues: first one column of each class, then columns from
    the longest queues."""
    columns = [queue.popleft() for queue in queues if queue]
    while len(columns) < count and (queue := max(queues, key=len)):
        columns.append(queue.popleft())
    return columns
