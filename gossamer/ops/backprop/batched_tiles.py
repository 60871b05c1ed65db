"""Tile sizes of batched.cl, chosen to minimise the expected cycles of each product."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

SCHEDULERS = 4
_LATENCY = 40
"""Cycles that a warp waits for shared memory in an iteration of a product's loop."""
_LOOP = 6
"""Instructions in an iteration of a product's loop that neither multiply nor read."""
_READ_CYCLES = 2
"""Cycles of shared memory for one read by a warp, in which each work-item reads four words; see
place_of in batched_places.h."""
BARRIER_CYCLES = 60
_CHANGE_CYCLES = 40
"""Cycles of a warp scheduler in which each work-item of one warp updates four weights."""
DIRECT_ROWS = 4
"""Maximum number of samples for which the gradient is computed without tiles."""


@dataclass(frozen=True)
class Tile:
    """The tile of results that a work-item computes.

    rows, columns: number of rows and columns of the tile.
    parts: number of parts into which each sum is split; a different work-item computes each part.
    cycles: expected cycles of the product.
    """

    rows: int
    columns: int
    parts: int
    cycles: float

    @property
    def text(self) -> str:
        """The rows, columns and parts as the value of a macro."""
        return f"{self.rows}, {self.columns}, {self.parts}"


@lru_cache(maxsize=4096)
def forward_tile(rows: int, units: int, inputs: int, most_parts: int, threads: int) -> Tile:
    """Return the tile of the forward pass: `rows` x `units` sums over `inputs` inputs."""
    steps = -(-inputs // 4)
    return best((_cycles(rows, units, steps, 4, tile, parts, threads, tile[0] + tile[1]),
                 *tile, parts)
                for tile in _tiles(threads) if rows % tile[0] == 0 and tile[1] >= 4
                for parts in range(1, max(1, min(most_parts, steps)) + 1))


@lru_cache(maxsize=4096)
def gradient_tile(inputs: int, units: int, rows: int, most_parts: int, threads: int) -> Tile:
    """Return the tile of the gradient: `inputs` x `units` sums over `rows` samples.

    `parts` is 0 if no tiles are used. It is -1 if the sums are not split and each work-item updates
    the weights of one or more tiles.
    """
    changes = change_cycles(inputs, units, threads)
    if rows <= DIRECT_ROWS:
        return Tile(4, 4, 0, changes * (1 + 0.2 * rows))
    found = []
    for tile in (tile for tile in _tiles(threads) if min(tile) >= 4):
        items = -(-inputs // tile[0]) * -(-units // tile[1])
        fitting = range(1, min(most_parts, threads // items) + 1)
        for parts in fitting or [-1]:
            cycles = _cycles(inputs, units, rows, 1, tile, abs(parts), threads,
                             (tile[0] + tile[1]) / 4)
            found.append((cycles + (changes if fitting else 1.5 * changes), *tile, parts))
    return best(found)


@lru_cache(maxsize=4096)
def backward_tile(rows: int, inputs: int, units: int, threads: int) -> Tile:
    """Return the tile of the backward pass: `rows` x `inputs` sums over `units` units."""
    return best((_cycles(rows, inputs, -(-units // 4), 4, tile, 1, threads, tile[0] + tile[1]),
                 *tile, 1) for tile in _tiles(threads) if rows % tile[0] == 0)


def change_cycles(inputs: int, units: int, threads: int) -> int:
    """Return the expected cycles of the update of a layer's weights."""
    return -(-inputs * -(-units // 4) // threads) * -(-threads // 128) * _CHANGE_CYCLES


def _tiles(threads: int) -> list[tuple[int, int]]:
    """Return the tile sizes for which a work-item has enough registers."""
    most = 64 if threads <= 384 else 32
    return [(m, n) for m, n in itertools.product((1, 2, 4, 8), repeat=2) if m * n <= most]


def best(tiles: Iterable[tuple[float, int, int, int]]) -> Tile:
    """Return the tile with the fewest cycles; tuples are cycles, rows, columns and parts."""
    cycles, rows, columns, parts = min(tiles, key=itemgetter(0))
    return Tile(rows, columns, parts, float(cycles))


def _cycles(rows: int, columns: int, depth: int, of_step: int, tile: tuple[int, int], parts: int,
            threads: int, reads: float) -> float:
    """Return the expected cycles of a product with a tile.

    depth: number of iterations of the product's loop if sums are not split.
    of_step: number of multiply-adds per result in an iteration.
    reads: number of reads of four words in an iteration.
    """
    items = -(-rows // tile[0]) * -(-columns // tile[1]) * parts
    steps = -(-depth // parts)
    passes = -(-items // threads)
    warps = -(-items // 32)
    # the last pass may have fewer warps; they are divided among the schedulers, too
    of_scheduler = (-(-threads // (32 * SCHEDULERS)) * (items // threads)
                    + -(-(items % threads) // (32 * SCHEDULERS)))
    issued = of_step * tile[0] * tile[1] + reads + _LOOP
    cycles = steps * max(of_scheduler * issued, warps * reads * _READ_CYCLES,
                         passes * (issued + _LATENCY))
    if parts > 1:
        cycles += 2 * BARRIER_CYCLES + 3 * parts * rows * columns / 32 / 4
    return cycles
