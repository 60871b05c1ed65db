"""shifted_gemm_mma: convolution in float16 as a matrix product for each tap.

All products of a tile read the same pixels in shared memory. The comments at the top of runs.h and
of shifted_gemm.cu explain places, units, slices and runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.device.base import Buffer
from gossamer.device.limits import Limits
from gossamer.ops.conv2d.common import in_lane_order, rounded
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.product import (
    Places,
    RunTile,
    ShiftedProduct,
    slots_of,
    stage_order,
)
from gossamer.ops.gpu import product_cycles
from gossamer.ops.weights import Weights

ROWS = 64
"""Rows of a product. A product is one wgmma instruction of a warpgroup and sums over 16 input
channels."""
_MOST_KEPT = 100
"""Maximum number of stages if shared memory holds all weights. Each stage then has a barrier, and
the memory for barriers is limited."""


@dataclass(frozen=True)
class ShiftedTile(RunTile):
    """The sizes of a work-group's tile.

    columns: number of columns of a product, which are the output channels of a work-group.
    warpgroups: number of groups of four warps that multiply.
    units: number of products, of ROWS places each, that each warpgroup computes at once.
    slice: number of input channels that are copied at once, a multiple of 16.
    run_slots: number of slots for runs.
    weight_slots: number of slots, each for the weights of one tap and one slice; 0 if shared memory
    holds all weights.
    """

    columns: int
    warpgroups: int
    units: int
    slice: int
    run_slots: int
    weight_slots: int

    place_step = ROWS
    tile_cycles = 1300.0
    copy_share = 1.0

    @property
    def part(self) -> int:
        return self.columns

    @property
    def tile_places(self) -> int:
        return ROWS * self.units * self.warpgroups

    @property
    def stage_bytes(self) -> int:
        return 2 * self.slice * self.columns

    def multiply_cycles(self, problem: Conv2dProblem, places: int) -> float:
        return product_cycles(places * self.columns, 2 * self.slice * self.stages(problem),
                              wgmma=True)


_SHAPES = ((64, 2, 2), (64, 2, 1), (128, 2, 2), (128, 2, 1), (256, 2, 1), (256, 1, 1))
"""Columns, warpgroups and units of the candidate tiles."""
_SLICES = (64, 32)
"""Maximum numbers of channels of a slice; the first number for which a tile fits is used. With 64
channels, the channels of a place fill a line of 128 bytes."""


class ShiftedGemmMma(ShiftedProduct):
    """Shifted products of dense weights."""

    name = "shifted_gemm_mma"
    kernel = Path(__file__).with_name("shifted_gemm.cu")
    tile = ShiftedTile

    def tiles(self, problem: Conv2dProblem, limits: Limits) -> list[ShiftedTile]:
        tiles = (_largest(problem, limits, *shape) for shape in _SHAPES
                 if shape[0] < problem.out_channels + ROWS)
        return sorted((tile for tile in tiles if tile is not None),
                      key=lambda tile: tile.expected_us(problem, limits))

    def macros(self, tile: ShiftedTile) -> Mapping[str, int]:
        return {"TILE_M": tile.columns, "WARPGROUPS": tile.warpgroups, "UNITS": tile.units,
                "SLICE": tile.slice, "RUN_SLOTS": tile.run_slots, "WEIGHT_SLOTS": tile.weight_slots}

    def packed(self, weights: Weights, problem: Conv2dProblem, tile: ShiftedTile) -> list[Buffer]:
        return [weights.packed(f"stages for shifted_gemm_mma {tile.slice} {tile.columns}",
                               lambda arrays: packed_stages(arrays, problem, tile))]

    def sizes(self, problem: Conv2dProblem, tile: ShiftedTile) -> Sequence[int]:
        places = Places(problem)
        return (tile.steps(problem), *problem.kernel, places.rows.step, places.columns.step,
                tile.slices(problem))


def _largest(problem: Conv2dProblem, limits: Limits, columns: int, warpgroups: int, units: int
             ) -> ShiftedTile | None:
    """Return the first tile of a shape that fits shared memory, or None.

    For each slice size of _SLICES, tiles are tried in the order of `slots_of`.
    """
    for most, (run_slots, weight_slots) in itertools.product(_SLICES, slots_of(problem)):
        slices = -(-problem.channels // most)
        tile = ShiftedTile(columns, warpgroups, units, -(-problem.channels // (16 * slices)) * 16,
                           run_slots, weight_slots)
        if (weight_slots or tile.stages(problem) <= _MOST_KEPT) and (
                tile.shared_bytes(problem) <= limits.shared_bytes_opt_in):
            return tile
    return None


def packed_stages(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem,
                  tile: ShiftedTile) -> np.ndarray:
    """Return the weights in stages, in the order of `stage_order`.

    The result has the axes (parts of the output channels, stages, chunks, lines, 8 input channels).
    Weights of padding channels are zero. A line is an output channel; lines are ordered by
    `in_lane_order`.
    """
    parts, slices = tile.parts(problem), tile.slices(problem)
    padded = np.zeros((parts * tile.columns, slices * tile.slice, *problem.kernel), np.float32)
    padded[:problem.out_channels, :problem.channels] = arrays["weight"]
    # axes: part, line, slice, chunk, value, tap
    split = in_lane_order(padded, 4).reshape(
        parts, tile.columns, slices, tile.slice // 8, 8, problem.taps)
    _, part_slice, row, column = stage_order(problem, slices)
    ordered = split.transpose(0, 2, 5, 3, 1, 4)[:, part_slice, row * problem.kernel[1] + column]
    return np.ascontiguousarray(rounded(ordered))
