"""Tile sizes of batched_tensor_cores.h, chosen to minimise the expected cycles of each product."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from gossamer.ops.backprop.batched_tiles import (
    BARRIER_CYCLES,
    SCHEDULERS,
    Tile,
    best,
    change_cycles,
)

_LATENCY = 100
"""Cycles that a warp waits for shared memory and tensor cores in a step of eight terms."""
_LOOP = 8
"""Instructions of a step that neither load, round nor multiply."""
_PRODUCT_CYCLES = 8
"""Cycles of a warp scheduler's tensor core for 16 x 8 sums of eight terms."""


@lru_cache(maxsize=4096)
def forward_tile(rows: int, units: int, inputs: int, most_parts: int, threads: int) -> Tile:
    """Return the tile of the forward pass: `rows` x `units` sums over `inputs` inputs."""
    steps = -(-inputs // 8)
    return best((_cycles((tile_b, 32), rows, units, steps, parts, threads), tile_b, 32, parts)
                for tile_b in (16, 32) for parts in _parts(most_parts, steps))


@lru_cache(maxsize=4096)
def gradient_tile(inputs: int, units: int, rows: int, most_parts: int, threads: int) -> Tile:
    """Return the tile of a work-item in the gradient: `inputs` x `units` sums over `rows` samples.

    `parts` is -1 if the sums are not split and each work-item updates the weights of its own tiles,
    of which there may be several.
    """
    changes = change_cycles(inputs, units, threads)
    warps = -(-inputs // 32) * -(-units // 32)
    found = []
    for parts in _parts(most_parts, rows // 8):
        cycles = _cycles((32, 32), inputs, units, rows // 8, parts, threads)
        if most_parts and 32 * warps * parts <= threads:
            found.append((cycles + changes, 4, 8, parts))
        elif parts == 1:
            found.append((cycles + 1.5 * changes, 4, 8, -1))
    return best(found)


@lru_cache(maxsize=4096)
def backward_tile(rows: int, inputs: int, units: int, threads: int) -> Tile:
    """Return the tile of the backward pass: `rows` x `inputs` sums over `units` units."""
    return best((_cycles((16, tile_i), rows, inputs, -(-units // 8), 1, threads), 16, tile_i, 1)
                for tile_i in (8, 16, 32))


def _parts(most: int, steps: int) -> Iterator[int]:
    return iter(range(1, max(1, min(most, steps)) + 1))


def _cycles(tile: tuple[int, int], rows: int, columns: int, depth: int, parts: int,
            threads: int) -> float:
    """Return the expected cycles of a product with a warp's tile.

    depth: number of steps of eight terms if sums are not split.
    """
    tiles = -(-rows // tile[0]) * -(-columns // tile[1]) * parts
    steps, warps = -(-depth // parts), threads // 32
    of_scheduler = warps // SCHEDULERS * (tiles // warps) + -(-(tiles % warps) // SCHEDULERS)
    loads = sum(tile) / 4  # words that a lane loads; two instructions round each word
    products = tile[0] * tile[1] / 128
    issued = max(2.5 * loads + products + _LOOP, products * _PRODUCT_CYCLES)
    cycles = steps * max(of_scheduler * issued, tiles * loads,
                         -(-tiles // warps) * (issued + _LATENCY))
    if parts > 1:
        cycles += 2 * BARRIER_CYCLES + 3 * parts * rows * columns / 32 / 4
    return cycles
