"""The algorithm shifted_sparse_mma computes a convolution with 2:4 sparse weights as one product on
tensor cores for each tap. All products of a tile read the same pixels in shared memory.

Source of 2:4 sparsity: A. Mishra et al., "Accelerating sparse deep neural networks", arXiv
2104.08378, 2021. Weights with other patterns are computed as well: where four neighbours have more
than two nonzeros, a second product adds the others.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from gossamer.device.base import Buffer, Device
from gossamer.device.limits import Limits
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.product import ShiftedProduct
from gossamer.ops.conv2d.shifted.shifted_sparse_tiling import (
    SparseTile,
    eights_of,
    expected_stages,
    expected_us,
    fewest_stages,
    fitting,
    slices_of,
    tile_of,
)
from gossamer.ops.conv2d.shifted.two_of_four import packed_stages, stage_counts
from gossamer.ops.weights import Weights

_MOST_PRODUCTS = 1.6
"""The most products for each product of 2:4 sparse weights with which the algorithm is offered. A
dense product takes twice as long as a product of 2:4 sparse weights."""


class ShiftedSparseMma(ShiftedProduct):
    """Computes a convolution as shifted products on the tensor cores for 2:4 sparse weights.

    Where one of four neighbouring weights is multiplied, another one may be multiplied as a zero: a
    NaN or infinity of the input may reach an output whose weight there is zero.
    """

    name = "shifted_sparse_mma"
    dense = False
    kernel = Path(__file__).with_name("shifted_sparse.cu")

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        reason = super().supports(problem, device)
        if reason is not None or problem.outputs[0].size == 0:
            return reason
        fastest = self.tiles(problem, device.limits)[0]
        if expected_stages(problem, fastest) > _MOST_PRODUCTS * fewest_stages(problem):
            return (f"{problem.weights_info.crowded:.2%} of all fours of neighbouring input "
                    "channels have more than two nonzeros, so that it would multiply most of the "
                    "weights twice")
        return None

    def tiles(self, problem: Conv2dProblem, limits: Limits) -> list[SparseTile]:
        return fitting(problem, limits)

    def tile_of(self, variant: Variant) -> SparseTile:
        return tile_of(variant)

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        return expected_us(problem, tile_of(variant), device.limits)

    def macros(self, tile: SparseTile) -> Mapping[str, int]:
        return {"TILE_N": tile.places, "CHANNEL_WARPGROUPS": tile.channel_warpgroups,
                "PLACE_WARPGROUPS": tile.place_warpgroups, "RUN_SLOTS": tile.run_slots,
                "WEIGHT_SLOTS": tile.weight_slots}

    def packed(self, weights: Weights, problem: Conv2dProblem, tile: SparseTile) -> list[Buffer]:
        return [weights.packed(f"{name} of shifted_sparse_mma {tile.channel_warpgroups}",
                               functools.partial(pack, problem=problem, tile=tile))
                for name, pack in (("stages", packed_stages), ("numbers of stages", stage_counts))]

    def sizes(self, problem: Conv2dProblem, tile: SparseTile) -> Sequence[int]:
        return eights_of(problem), slices_of(problem)
