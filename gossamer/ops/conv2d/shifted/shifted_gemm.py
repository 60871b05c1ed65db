"""The algorithm shifted_gemm_mma computes a convolution as one product on tensor cores for each
tap. All products of a tile read the same pixels in shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.places import Places, cannot_shift, geometry_arguments
from gossamer.ops.conv2d.shifted.shifted_gemm_tiling import (
    ShiftedTile,
    config_of,
    expected_us,
    fitting,
    tile_of,
    units_of,
)
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("shifted_gemm.cu")


class ShiftedGemmMma(Algorithm):
    """Computes a convolution with windows of stride 1 on tensor cores in float16 with float32 sums.

    A work-group copies its pixels to shared memory once, with pads between the rows, so that every
    tap reads the same pixels at another offset. `implicit_gemm_mma` copies pixels once for each
    tap.
    """

    op = "conv2d"
    name = "shifted_gemm_mma"
    reads_parts = True
    writes_parts = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.limits.wgmma:
            return f"{device.name} has no tensor cores that read shared memory (sm_90a)"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if (reason := cannot_shift(problem)) is not None or problem.outputs[0].size == 0:
            return reason
        if not fitting(problem, device.limits):
            return (f"{problem.kernel[0]} rows of {Places(problem).pitch} pixels and pads do not "
                    "fit the shared memory")
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
        packed = weights.packed(
            f"stages for shifted_gemm_mma {tile.slice} {tile.columns}",
            lambda arrays: packed_stages(arrays, problem, tile))
        taps = problem.kernel[0] * problem.kernel[1]
        launch = Launch(
            device.compile(_source(problem, variant)), tile.grid(problem, device.limits),
            (tile.work_group, 1),
            (input_buffer(0), packed, output_buffer(0), units_of(problem), problem.kernel[1], taps,
             tile.stages(problem) // taps, problem.out_channels,
             *geometry_arguments(problem, variant, tile.run_pieces(problem),
                                 tile.run_bytes(problem)),
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)),
            tile.shared_bytes(problem))
        return State(problem, variant, device, [launch])


def packed_stages(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem,
                  tile: ShiftedTile) -> np.ndarray:
    """Returns the weights as (parts of the output channels, slices, taps, chunks, lines, 8 input
    channels), with zeros for channels of padding. A line is an output channel. The lines of 32
    output channels are in the order of `packing.packed_lines`: line 8 f + 2 q + j of the 32 belongs
    to channel 8 q + 2 f + j."""
    parts = -(-problem.out_channels // tile.columns)
    slices = -(-problem.channels // tile.slice)
    padded = np.zeros((parts * tile.columns, slices * tile.slice, *problem.kernel), np.float32)
    padded[:problem.out_channels, :problem.channels] = arrays["weight"]
    # axes: part, block, lane % 4, fragment, value of a pair, slice, chunk, value, tap
    split = padded.reshape(parts, -1, 4, 4, 2, slices, tile.slice // 8, 8,
                           problem.kernel[0] * problem.kernel[1])
    ordered = split.transpose(0, 5, 8, 6, 1, 3, 2, 4, 7)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(ordered, np.float16)


def _source(problem: Conv2dProblem, variant: Variant) -> KernelSource:
    tile = tile_of(variant)
    copy, multiply = tile.registers
    return KernelSource.of(_SOURCE, "shifted_gemm", {
        "HALVES": 1, "TILE_M": tile.columns, "WARPGROUPS": tile.warpgroups, "UNITS": tile.units,
        "SLICE": tile.slice, "WEIGHT_SLOTS": tile.weight_slots,
        "KEEPS_WEIGHTS": int(not tile.weight_slots),
        "COPIER_REGISTERS": copy, "MULTIPLIER_REGISTERS": multiply,
        **epilogue_macros(problem.epilogue, tensor_dtype="float16"),
    }, architectures=("sm_90a", "sm_90a"), dynamic_shared=True)
