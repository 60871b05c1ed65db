"""The algorithm shifted_gemm_mma computes a convolution as one product on tensor cores for each
tap. All products of a tile read the same pixels in shared memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.limits import Limits
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.places import Places, stage_order
from gossamer.ops.conv2d.shifted.product import ShiftedProduct
from gossamer.ops.conv2d.shifted.shifted_gemm_tiling import (
    ShiftedTile,
    expected_us,
    fitting,
    tile_of,
    units_of,
)
from gossamer.ops.weights import Weights


class ShiftedGemmMma(ShiftedProduct):
    """Computes a convolution as shifted products of dense weights."""

    name = "shifted_gemm_mma"
    kernel = Path(__file__).with_name("shifted_gemm.cu")

    def tiles(self, problem: Conv2dProblem, limits: Limits) -> list[ShiftedTile]:
        return fitting(problem, limits)

    def tile_of(self, variant: Variant) -> ShiftedTile:
        return tile_of(variant)

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        return expected_us(problem, tile_of(variant), device.limits)

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


def packed_stages(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem,
                  tile: ShiftedTile) -> np.ndarray:
    """Returns the weights as (parts of the output channels, stages, chunks, lines, 8 input
    channels), with zeros for channels of padding, and stages in the order of `stage_order`. A line
    is an output channel. The lines of 32 output channels are in the order of
    `packing.packed_lines`: line 8 f + 2 q + j of the 32 belongs to channel 8 q + 2 f + j."""
    parts = -(-problem.out_channels // tile.columns)
    slices = tile.slices(problem)
    padded = np.zeros((parts * tile.columns, slices * tile.slice, *problem.kernel), np.float32)
    padded[:problem.out_channels, :problem.channels] = arrays["weight"]
    # axes: part, block, lane % 4, fragment, value of a pair, slice, chunk, value, tap
    split = padded.reshape(parts, -1, 4, 4, 2, slices, tile.slice // 8, 8,
                           problem.kernel[0] * problem.kernel[1])
    _, part_slice, row, column = stage_order(problem, slices)
    ordered = split.transpose(0, 5, 8, 6, 1, 3, 2, 4, 7)[
        :, part_slice, row * problem.kernel[1] + column]
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(ordered, np.float16)
