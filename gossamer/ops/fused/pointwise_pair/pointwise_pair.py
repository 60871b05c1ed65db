"""The algorithm pointwise_pair_mma computes two 1x1 convolutions as one kernel for NVIDIA GPUs. The
first convolution makes many channels in shared memory, where the second convolution reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.pointwise_pair.layers import (
    BOTH,
    PointwisePair,
    pointwise_pair_of,
    reason_apart,
)
from gossamer.ops.fused.pointwise_pair.tiling import (
    SLICE,
    WORK_GROUP_SIZE,
    PairTile,
    PairTiling,
    tilings,
)
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile, layout_variants
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("pointwise_pair.cu")


class PointwisePairMma(FusionAlgorithm):
    """Computes both layers in float16 with float32 sums. The first layer's results are rounded to
    float16 before the second layer reads them. The first layer's results are written to memory
    only where other layers read them."""

    name = "pointwise_pair_mma"
    patterns = (("conv2d", "conv2d"),)

    def recognises(self, problem: FusionProblem) -> bool:
        return pointwise_pair_of(problem) is not None

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if not device.limits.wgmma:
            return f"{device.name} has no tensor cores that read shared memory (sm_90a)"
        pair = pointwise_pair_of(problem)
        if pair is None:
            return "the layers are no two convolutions of single pixels with many between them"
        if (reason := cannot_compile(problem, device) or reason_apart(pair)) is not None:
            return reason
        if not tilings(pair, device.limits):
            return (f"{pair.first.channels} and {pair.second.out_channels} channels of 128 pixels "
                    "do not fit the shared memory")
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        for tiling in tilings(_pair(problem), device.limits):
            (plain,) = layout_variants(problem, ("NHWC",), tuple(asdict(tiling.tile).items()))
            yield plain.as_fp16

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        return _tiling(problem, variant).microseconds(device.limits)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        tiling = _tiling(problem, variant)
        pair = tiling.pair
        if not pair.pixels:
            return State(problem, variant, device)
        first, second = pair.first, pair.second
        kernel = device.compile(KernelSource.of(
            _SOURCE, "pointwise_pair", _macros(tiling), architectures=("sm_90a", "sm_90a"),
            dynamic_shared=True))
        writes_wide = problem.exits == BOTH
        arguments = (
            input_buffer(pair.input), weights.packed("stages for pointwise_pair_mma", _stages),
            output_buffer(0), output_buffer(int(writes_wide)), pair.pixels,
            *epilogue_arguments(first.epilogue, weights, pair.added_input, first.out_channels,
                                prefix="0."),
            *epilogue_arguments(second.epilogue, weights, 0, second.out_channels, prefix="1."))
        return State(problem, variant, device, [Launch(
            kernel, (tiling.groups(device.limits),), (WORK_GROUP_SIZE,), arguments,
            tiling.shared_bytes)])


def _pair(problem: FusionProblem) -> PointwisePair:
    pair = pointwise_pair_of(problem)
    assert pair is not None
    return pair


def _tiling(problem: FusionProblem, variant: Variant) -> PairTiling:
    return PairTiling(_pair(problem), PairTile(
        **{key: int(value) for key, value in variant.config}))


def _macros(tiling: PairTiling) -> dict[str, object]:
    """Returns the macros that pointwise_pair.cu describes."""
    pair, tile = tiling.pair, tiling.tile
    operands = pair.first.epilogue.operands
    copier, multiplier = 40, 232
    return {
        "HALVES": 1, "TILE_M": SLICE, "CHANNELS": pair.first.channels,
        "WIDE": pair.first.out_channels, "OUT_CHANNELS": pair.second.out_channels,
        "INPUTS": tile.inputs, "SLOTS": tile.slots, "KEEPS_WEIGHTS": int(not tile.weight_slots),
        "WEIGHT_SLOTS": tile.weight_slots or tiling.slices, "ADDS": int("tensor" in operands),
        "ADDED": f"first_operand{operands.index('tensor')}" if "tensor" in operands else "x",
        "WRITES_WIDE": int(pair.problem.exits == BOTH),
        "COPIER_REGISTERS": copier, "MULTIPLIER_REGISTERS": multiplier,
        **epilogue_macros(pair.first.epilogue, tensor_dtype="float16", prefix="FIRST_"),
        **epilogue_macros(pair.second.epilogue, prefix="SECOND_")}


def _stages(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the weights of each slice of 64 outputs of the first layer: the first layer's
    weights as (input channels / 8, 64 lines, 8 input channels), and behind them the second layer's
    weights as (output channels / 64, 8, 64 lines, 8 channels of the slice). Of each 32 lines of
    output channels, line 8 f + 2 q + j belongs to channel 8 q + 2 f + j, so that a lane has sums of
    8 neighbouring channels."""
    first, second = (arrays[f"{part}.weight"][:, :, 0, 0] for part in (0, 1))
    # axes: slice or part, block, lane % 4, fragment, value of a pair; then the input channels
    ordered = first.reshape(-1, 2, 4, 4, 2, first.shape[1] // 8, 8).transpose(0, 5, 1, 3, 2, 4, 6)
    slices = len(ordered)
    parts = second.reshape(-1, 2, 4, 4, 2, slices, 8, 8).transpose(5, 0, 6, 1, 3, 2, 4, 7)
    with np.errstate(over="ignore"):
        return np.concatenate([ordered.reshape(slices, -1), parts.reshape(slices, -1)],
                              axis=1).astype(np.float16)
