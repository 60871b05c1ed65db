"""The algorithm shifted_sparse_mma computes a convolution with 2:4 sparse weights as one product on
tensor cores for each tap. All products of a tile read the same pixels in shared memory.

Source of 2:4 sparsity: A. Mishra et al., "Accelerating sparse deep neural networks", arXiv
2104.08378, 2021. Weights with other patterns are computed as well: where four neighbours have more
than two nonzeros, a second product adds the others.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.places import Places, cannot_shift, geometry_arguments, run_bytes
from gossamer.ops.conv2d.shifted.shifted_sparse_tiling import (
    SLICE,
    config_of,
    eights_of,
    expected_stages,
    expected_us,
    fitting,
    tile_of,
)
from gossamer.ops.conv2d.shifted.two_of_four import packed_stages, stage_counts
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("shifted_sparse.cu")
_MOST_PRODUCTS = 1.6
"""The most products for each product of 2:4 sparse weights with which the algorithm is offered. A
dense product takes twice as long as a product of 2:4 sparse weights."""


class ShiftedSparseMma(Algorithm):
    """Computes a convolution with windows of stride 1 on the tensor cores for 2:4 sparse weights,
    in float16 with float32 sums.

    Where one of four neighbouring weights is multiplied, another one may be multiplied as a zero: a
    NaN or infinity of the input may reach an output whose weight there is zero.
    """

    op = "conv2d"
    name = "shifted_sparse_mma"
    dense = False
    reads_parts = True
    writes_parts = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.limits.wgmma:
            return f"{device.name} has no tensor cores that read shared memory (sm_90a)"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if (reason := cannot_shift(problem)) is not None or problem.outputs[0].size == 0:
            return reason
        tiles = fitting(problem, device.limits)
        if not tiles:
            return (f"{problem.kernel[0]} rows of {Places(problem).pitch} pixels and pads do not "
                    "fit the shared memory")
        fewest = -(-problem.channels // SLICE) * problem.kernel[0] * problem.kernel[1]
        if expected_stages(problem, tiles[0]) > _MOST_PRODUCTS * fewest:
            return (f"{problem.weights_info.crowded:.2%} of all fours of neighbouring input "
                    "channels have more than two nonzeros, so that it would multiply most of the "
                    "weights twice")
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        x = problem.inputs[0].with_format(layout="NHWC")
        y = problem.outputs[0].with_format(layout="NHWC")
        for tile in fitting(problem, device.limits):
            yield Variant(config_of(tile), (x, *[y] * problem.epilogue.tensor_count), (y,),
                          "fp16").as_fp16

    def variants_in(self, problem: Conv2dProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        return self.variants(problem, device) if "fp16" in precisions else iter(())

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        return expected_us(problem, tile_of(variant), device.limits)

    def kernel_sources(self, problem: Conv2dProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        return (_source(problem, variant),) if variant.outputs[0].size else ()

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        if variant.outputs[0].size == 0:
            return State(problem, variant, device)
        tile = tile_of(variant)
        packed, counts = (
            weights.packed(f"{name} of shifted_sparse_mma {tile.channel_warpgroups}",
                           functools.partial(pack, problem=problem, tile=tile))
            for name, pack in (("stages", packed_stages), ("numbers of stages", stage_counts)))
        launch = Launch(
            device.compile(_source(problem, variant)), tile.grid(problem, device.limits),
            (tile.work_group, 1),
            (input_buffer(0), packed, counts, output_buffer(0), eights_of(problem),
             -(-problem.channels // SLICE), problem.out_channels,
             *geometry_arguments(problem, variant, tile.run_pieces(problem),
                                 run_bytes(problem, tile.tile_places, SLICE)),
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)),
            tile.shared_bytes(problem))
        return State(problem, variant, device, [launch])


def _source(problem: Conv2dProblem, variant: Variant) -> KernelSource:
    tile = tile_of(variant)
    copy, multiply = tile.registers
    return KernelSource.of(_SOURCE, "shifted_sparse", {
        "HALVES": 1, "TILE_N": tile.places, "CHANNEL_WARPGROUPS": tile.channel_warpgroups,
        "PLACE_WARPGROUPS": tile.place_warpgroups, "WEIGHT_SLOTS": tile.weight_slots,
        "COPIER_REGISTERS": copy, "MULTIPLIER_REGISTERS": multiply,
        **epilogue_macros(problem.epilogue, tensor_dtype="float16"),
    }, architectures=("sm_90a", "sm_90a"), dynamic_shared=True)
