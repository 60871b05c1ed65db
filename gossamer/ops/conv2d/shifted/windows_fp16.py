"""shifted_gemm_mma: convolution with windows in float16, as a product for each tap.

All products of a tile read the same pixels in shared memory. The texts at the top of runs.h and of
shifted_gemm.cu explain places, units, slices and runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.limits import Limits
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.common import CYCLES_PER_MICROSECOND, rounded, sizes_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.product import (
    BARRIERS_BYTES,
    Places,
    ShiftedProduct,
    copy_cycles,
    moving_us,
    run_bytes,
    run_pieces,
    slots_of,
    stage_order,
)
from gossamer.ops.weights import Weights

ROWS = 64
"""Rows of a product. A product is one wgmma instruction of a warpgroup, over 16 input channels."""
_MOST_KEPT = 100
"""The most stages whose weights are kept in shared memory; each stage has a barrier."""


@dataclass(frozen=True)
class ShiftedTile:
    """The sizes of a work-group's tile.

    columns: columns of a product, the output channels of a work-group.
    warpgroups: groups of four warps that multiply.
    units: products of ROWS places that each warpgroup computes at once.
    slice: input channels that are copied at once, a multiple of 16.
    run_slots: slots for runs.
    weight_slots: slots for the weights of a tap and a slice; 0 where all weights are kept.
    """

    columns: int
    warpgroups: int
    units: int
    slice: int
    run_slots: int
    weight_slots: int

    @property
    def tile_units(self) -> int:
        """Units of a tile."""
        return self.units * self.warpgroups

    @property
    def stage_bytes(self) -> int:
        """Bytes of the weights of a tap and a slice."""
        return 2 * self.slice * self.columns

    def stages(self, problem: Conv2dProblem) -> int:
        """Return the number of stages of a tile: one for each tap of each slice."""
        return self.slices(problem) * problem.taps

    def slices(self, problem: Conv2dProblem) -> int:
        """Return the number of slices of the input channels."""
        return -(-problem.channels // self.slice)

    def run_pieces(self, problem: Conv2dProblem) -> int:
        """Return the number of places of a run, rounded up to an odd number."""
        return run_pieces(problem, ROWS * self.tile_units)

    def run_bytes(self, problem: Conv2dProblem) -> int:
        """Return the bytes of a slot for a run."""
        return run_bytes(problem, ROWS * self.tile_units, self.slice)

    def shared_bytes(self, problem: Conv2dProblem) -> int:
        """Return the bytes of shared memory of a work-group."""
        return (BARRIERS_BYTES + self.run_slots * self.run_bytes(problem)
                + (self.weight_slots or self.stages(problem)) * self.stage_bytes)

    def grid(self, problem: Conv2dProblem, limits: Limits) -> tuple[int, int]:
        """Return the number of ranges of units and the number of parts of the output channels.

        Each pair of a range and a part is a work-group. All work-groups run at once, unless there
        are more parts than multiprocessors.
        """
        parts = -(-problem.out_channels // self.columns)
        return max(1, min(units_of(problem), limits.compute_units // parts)), parts


_SHAPES = ((64, 2, 2), (64, 2, 1), (128, 2, 2), (128, 2, 1), (256, 2, 1), (256, 1, 1))
"""Columns, warpgroups and units of the tiles that are offered."""
_SLICES = (64, 32)
"""The most channels of a slice; the first number that fits is taken. With 64 channels a place is a
line of 128 bytes."""

# The rates below were fitted to 54 measured times of ResNet-50's 3x3 layers in batches of 64 and 8
# on an H200. On another device they only decide the order in which tiles are tried: the tuner
# corrects the scale of an algorithm's estimates by its measurements.
_START_US = 2.6
"""Microseconds before the first product and after the last store."""
_ISSUE_CYCLES, _ISSUE_SHARE = 25, 0.59
"""A single warpgroup starts a product every _ISSUE_CYCLES + _ISSUE_SHARE * c cycles, where c is the
number of cycles that the tensor cores take for the product."""
_TILE = 1300
"""Cycles of a tile that neither its products nor its copies hide."""


class ShiftedGemmMma(ShiftedProduct):
    """Shifted products of dense weights."""

    name = "shifted_gemm_mma"
    kernel = Path(__file__).with_name("shifted_gemm.cu")
    tile = ShiftedTile

    def tiles(self, problem: Conv2dProblem, limits: Limits) -> list[ShiftedTile]:
        tiles = (_largest(problem, limits, *shape) for shape in _SHAPES
                 if shape[0] < problem.out_channels + ROWS)
        return sorted((tile for tile in tiles if tile is not None),
                      key=lambda tile: _expected_us(problem, tile, limits))

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        return _expected_us(problem, sizes_of(ShiftedTile, variant), device.limits)

    def macros(self, tile: ShiftedTile) -> Mapping[str, int]:
        return {"TILE_M": tile.columns, "WARPGROUPS": tile.warpgroups, "UNITS": tile.units,
                "SLICE": tile.slice, "RUN_SLOTS": tile.run_slots, "WEIGHT_SLOTS": tile.weight_slots,
                "KEEPS_WEIGHTS": int(not tile.weight_slots)}

    def packed(self, weights: Weights, problem: Conv2dProblem, tile: ShiftedTile) -> list[Buffer]:
        return [weights.packed(f"stages for shifted_gemm_mma {tile.slice} {tile.columns}",
                               lambda arrays: packed_stages(arrays, problem, tile))]

    def sizes(self, problem: Conv2dProblem, tile: ShiftedTile) -> Sequence[int]:
        places = Places(problem)
        return (units_of(problem), *problem.kernel, places.rows.step, places.columns.step,
                tile.slices(problem))


def units_of(problem: Conv2dProblem) -> int:
    """Return the number of units of ROWS places, up to the unit of the last output."""
    return Places(problem).last // ROWS + 1


def _largest(problem: Conv2dProblem, limits: Limits, columns: int, warpgroups: int, units: int
             ) -> ShiftedTile | None:
    """Return the first tile of a shape that fits the shared memory; None without one.

    Tiles are in the order of _SLICES and then of slots.
    """
    for most, (run_slots, weight_slots) in itertools.product(_SLICES, slots_of(problem)):
        slices = -(-problem.channels // most)
        tile = ShiftedTile(columns, warpgroups, units, -(-problem.channels // (16 * slices)) * 16,
                           run_slots, weight_slots)
        if (weight_slots or tile.stages(problem) <= _MOST_KEPT) and (
                tile.shared_bytes(problem) <= limits.shared_bytes_opt_in):
            return tile
    return None


def _expected_us(problem: Conv2dProblem, tile: ShiftedTile, limits: Limits) -> float:
    """Return the estimated time of a launch in microseconds.

    It is the start of the launch, and then the time of the busiest multiprocessor's tiles, or the
    time of moving tensors that do not stay in the L2 cache, whichever is longer.
    """
    ranges, parts = tile.grid(problem, limits)
    full, rest = divmod(-(-units_of(problem) // ranges), tile.tile_units)
    cycles = full * _cycles(problem, tile, tile.tile_units)
    if rest:
        cycles += _cycles(problem, tile, rest)
    # waves, where there are more work-groups than multiprocessors
    cycles *= -(-ranges * parts // limits.compute_units)
    return _START_US + max(cycles / CYCLES_PER_MICROSECOND, moving_us(problem))


def _cycles(problem: Conv2dProblem, tile: ShiftedTile, units: int) -> float:
    """Return the cycles of a tile with `units` units.

    They are a constant, the copies of its runs, and the products. Products take as long as the
    tensor cores need for all warpgroups, or as one warpgroup needs to start its own products,
    whichever is longer.
    """
    stages = tile.stages(problem)
    # the rows and the columns of a product are both read from shared memory
    product = max(tile.columns / 2, 16 + tile.columns / 4)
    of_a_group = -(-units // tile.warpgroups)
    runs = Places(problem).remainders * tile.slices(problem)
    return (_TILE + runs * copy_cycles(problem, units * ROWS, tile.slice)
            + stages * tile.slice // 16
            * max(units * product, of_a_group * (_ISSUE_CYCLES + _ISSUE_SHARE * product)))


def packed_stages(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem,
                  tile: ShiftedTile) -> np.ndarray:
    """Return the weights in stages, in the order of `stage_order`.

    Their shape is (parts of the output channels, stages, chunks, lines, 8 input channels), with
    zeros for channels of padding. A line is an output channel. The lines of 32 output channels are
    in the order of `implicit_gemm.packed_lines`: line 8 f + 2 q + j of the 32 belongs to channel 8
    q + 2 f + j.
    """
    parts = -(-problem.out_channels // tile.columns)
    slices = tile.slices(problem)
    padded = np.zeros((parts * tile.columns, slices * tile.slice, *problem.kernel), np.float32)
    padded[:problem.out_channels, :problem.channels] = arrays["weight"]
    # axes: part, block, lane % 4, fragment, value of a pair, slice, chunk, value, tap
    split = padded.reshape(parts, -1, 4, 4, 2, slices, tile.slice // 8, 8,
                           problem.taps)
    _, part_slice, row, column = stage_order(problem, slices)
    ordered = split.transpose(0, 5, 8, 6, 1, 3, 2, 4, 7)[
        :, part_slice, row * problem.kernel[1] + column]
    return np.ascontiguousarray(rounded(ordered))
