"""Two 1x1 convolutions with many channels between them, in one kernel.

The algorithm pointwise_pair_mma, for NVIDIA GPUs, keeps the channels between the convolutions in
shared memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.common import config_of, in_lane_order, rounded, sizes_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import FusionProblem, Source, is_product
from gossamer.ops.gpu import COPIED, LaunchWork, product_cycles, without_tensor_cores
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import layout_variants
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("pointwise_pair.cu")


class PointwisePairMma(FusionAlgorithm):
    """Both convolutions in float16 with float32 accumulation.

    The first layer's results are rounded to float16 before the second layer reads them. The first
    layer's results are written to device memory only if other layers read them.
    """

    name = "pointwise_pair_mma"
    patterns = (("conv2d", "conv2d"),)

    def recognises(self, problem: FusionProblem) -> bool:
        return pointwise_pair_of(problem) is not None

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device, wgmma=True)) is not None:
            return reason
        pair = pointwise_pair_of(problem)
        if pair is None:
            return "needs two 1x1 convolutions with many channels between them"
        if (reason := reason_unfused(pair)) is not None:
            return reason
        if not tilings(pair, device.limits):
            return (f"{pair.first.channels} and {pair.second.out_channels} channels of 128 pixels "
                    "do not fit shared memory")
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        for tiling in tilings(_pair(problem), device.limits):
            (plain,) = layout_variants(problem, ("NHWC",), config_of(tiling.tile))
            yield plain.as_fp16

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        return _tiling(problem, variant).expected_us(device.limits)

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
    return PairTiling(_pair(problem), sizes_of(PairTile, variant))


def _macros(tiling: PairTiling) -> dict[str, object]:
    """Return the macros described in pointwise_pair.cu."""
    pair, tile = tiling.pair, tiling.tile
    operands = pair.first.epilogue.operands
    return {
        "HALVES": 1, "TILE_M": SLICE, "CHANNELS": pair.first.channels,
        "WIDE": pair.first.out_channels, "OUT_CHANNELS": pair.second.out_channels,
        "INPUTS": tile.inputs, "SLOTS": tile.slots, "WEIGHT_SLOTS": tile.weight_slots,
        "ADDS": int("tensor" in operands),
        "ADDED": f"first_operand{operands.index('tensor')}" if "tensor" in operands else "x",
        "WRITES_WIDE": int(pair.problem.exits == BOTH),
        "COPIER_REGISTERS": 40, "MULTIPLIER_REGISTERS": 232,
        **epilogue_macros(pair.first.epilogue, tensor_dtype="float16", prefix="FIRST_"),
        **epilogue_macros(pair.second.epilogue, prefix="SECOND_")}


def _stages(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the weights of each slice, 64 output channels of the first layer.

    In each slice, the first layer's weights come first, as (input channels / 8, 64 lines, 8 input
    channels). The second layer's weights follow, as (output channels / 64, 8, 64 lines, 8 channels
    of the slice). Each line belongs to one output channel of its layer, in the order of
    `in_lane_order`.
    """
    first, second = (in_lane_order(arrays[f"{part}.weight"][:, :, 0, 0], 4)
                     for part in (0, 1))
    slices, inputs = len(first) // SLICE, first.shape[1] // 8
    of_first = first.reshape(slices, SLICE, inputs, 8).transpose(0, 2, 1, 3)
    of_second = second.reshape(-1, 64, slices, 8, 8).transpose(2, 0, 3, 1, 4)
    return rounded(np.concatenate([of_first.reshape(slices, -1), of_second.reshape(slices, -1)],
                                  axis=1))


MULTIPLE = 64
"""All numbers of channels must be multiples of this number."""
_MOST_OUT_CHANNELS = 256
"""Maximum number of output channels for which the accumulators of 64 pixels fit the registers of a
warpgroup."""
LAST: tuple[Source, ...] = ((1, 0),)
"""The exits of a pair if no other layer reads the first result."""
BOTH: tuple[Source, ...] = ((0, 0), (1, 0))
"""The exits of a pair if other layers read the first result, too."""


@dataclass(frozen=True)
class PointwisePair:
    """A 1x1 convolution with many output channels, and a 1x1 convolution that reads its result.

    problem: the fusion.
    first: the convolution with many output channels.
    second: the convolution that reads the result of `first`.
    """

    problem: FusionProblem
    first: Conv2dProblem
    second: Conv2dProblem

    @property
    def pixels(self) -> int:
        """Total number of pixels of all images."""
        return self.first.batch * self.first.height * self.first.width

    @property
    def input(self) -> int:
        """Index of the fusion's input that the first layer convolves."""
        return self.problem.entries.index(self.problem.sources[0][0])

    @property
    def added_input(self) -> int:
        """Index of the fusion's input that the first layer's epilogue adds; 0 if there is none."""
        added = self.problem.sources[0][1:]
        return self.problem.entries.index(added[0]) if added else 0


def pointwise_pair_of(problem: FusionProblem) -> PointwisePair | None:
    """Return a fusion as a pair of 1x1 convolutions; None if it is not one.

    The first convolution must have at least twice as many output channels as it has input channels,
    and at least twice as many as the second convolution has output channels.
    """
    if len(problem.parts) != 2 or not all(map(is_product, problem.parts)):
        return None
    first, second = problem.parts
    assert isinstance(first, Conv2dProblem) and isinstance(second, Conv2dProblem)
    if problem.sources[1][0] != (0, 0):
        return None
    wide = first.out_channels >= 2 * max(first.channels, second.out_channels)
    return PointwisePair(problem, first, second) if wide else None


def reason_unfused(pair: PointwisePair) -> str | None:
    """Return why no kernel can compute both layers; None if one can."""
    first, second = pair.first, pair.second
    if pair.problem.exits not in (LAST, BOTH):
        return "the second layer's result is not read"
    for name, layer in (("first", first), ("second", second)):
        if not layer.is_pointwise:
            return (f"the {name} convolution has stride {layer.stride} and pads {layer.pads}; "
                    "needs stride 1 and no pads")
    if first.epilogue.tensor_count > 1 or second.epilogue.tensor_count:
        return "supports at most one added tensor in the first layer and none in the second"
    channels = (first.channels, first.out_channels, second.out_channels)
    if any(count % MULTIPLE for count in channels):
        return f"needs multiples of {MULTIPLE} channels, not {channels}"
    if second.out_channels > _MOST_OUT_CHANNELS:
        return f"needs at most {_MOST_OUT_CHANNELS} output channels, not {second.out_channels}"
    return None


PIXELS = 128
"""Number of pixels per tile."""
SLICE = 64
"""Number of output channels of the first layer per slice; the layer is computed slice by slice."""
WORK_GROUP_SIZE = 384
_BARRIERS_BYTES = 1024
_MOST_KEPT = 32
"""Maximum number of slices whose weights may all be kept in shared memory, limited by the number of
barriers."""
_WEIGHT_SLOTS = (0, 3, 2, 4)
_SLOTS = ((2, 6), (2, 4), (2, 3), (1, 4), (2, 2), (1, 3), (1, 2))
"""Candidate numbers of slots (buffers in shared memory), as (slots for inputs, slots for slices).
The first candidate that fits is used. If the first layer adds a tensor, the tensor is copied from
device memory to the slots for slices. With more slots, more copies are in flight."""
_OFFERED = 3

_OF_SLICE = 1000
"""Assumed cycles of the epilogue and the barriers of a slice. They do not overlap with other
work."""


@dataclass(frozen=True)
class PairTile:
    """Numbers of slots (buffers in shared memory): the config of a variant.

    inputs: number of slots for the first layer's input.
    slots: number of slots for slices.
    weight_slots: number of slots for the weights of slices; 0 if the weights of all slices are kept
    in shared memory.
    """

    inputs: int
    slots: int
    weight_slots: int


@dataclass(frozen=True)
class PairTiling:
    """A pair of convolutions and the numbers of slots with which it is computed."""

    pair: PointwisePair
    tile: PairTile

    @property
    def slices(self) -> int:
        """Number of slices of the first layer's output channels."""
        return self.pair.first.out_channels // SLICE

    @property
    def stage_bytes(self) -> int:
        """Bytes of the weights per slice."""
        return 2 * SLICE * (self.pair.first.channels + self.pair.second.out_channels)

    @property
    def tiles(self) -> int:
        """Number of tiles of pixels over all images."""
        return -(-self.pair.pixels // PIXELS)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per work-group."""
        return (_BARRIERS_BYTES + 2 * PIXELS * (self.tile.inputs * self.pair.first.channels
                                                + self.tile.slots * SLICE)
                + (self.tile.weight_slots or self.slices) * self.stage_bytes)

    def groups(self, limits: Limits) -> int:
        """Return the number of work-groups.

        All work-groups run at once, and the numbers of tiles per work-group differ by at most one.
        """
        waves = -(-self.tiles // limits.compute_units)
        return -(-self.tiles // waves)

    def expected_us(self, limits: Limits) -> float:
        """Return the expected time of the kernel in microseconds."""
        first, second = self.pair.first, self.pair.second
        channels = first.channels + second.out_channels
        wide = first.out_channels * (first.epilogue.tensor_count + len(self.pair.problem.exits) - 1)
        # a work-group copies the weights once per tile; if all weights are kept, only once in total
        share = 1 if self.tile.weight_slots else self.groups(limits) / max(1, self.tiles)
        copied = (share * self.slices * self.stage_bytes + 2 * PIXELS * first.channels) / COPIED
        multiplied = product_cycles(PIXELS * SLICE, 2 * channels, wgmma=True)
        # with fewer slots, copies overlap less with computation
        waited = self.slices * (multiplied + _OF_SLICE * (1 + 1 / self.tile.slots))
        return LaunchWork(self.tiles, 1, busy=max(copied, self.slices * multiplied), waited=waited,
                          moved=2 * self.pair.pixels * (channels + wide)).expected_us(limits)


def tilings(pair: PointwisePair, limits: Limits) -> list[PairTiling]:
    """Return the tilings that fit a device.

    Tilings that keep all weights in shared memory come first.
    """
    return list(itertools.islice(_fitting(pair, limits), _OFFERED))


def _fitting(pair: PointwisePair, limits: Limits) -> Iterator[PairTiling]:
    for weight_slots in _WEIGHT_SLOTS:
        if weight_slots or pair.first.out_channels // SLICE <= _MOST_KEPT:
            tilings_of_it = (PairTiling(pair, PairTile(*slots, weight_slots)) for slots in _SLOTS)
            fitting = (tiling for tiling in tilings_of_it
                       if tiling.shared_bytes <= limits.shared_bytes_opt_in)
            yield from itertools.islice(fitting, 1)
