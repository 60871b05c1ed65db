"""Base of convolutions as shifted products: one matrix product for each tap.

A place is a pixel or a position of padding. All places of all images are numbered in one sequence.
A run is the places that a tile reads for taps with the same remainders, in one slice of the input
channels. The comment at the top of runs.h explains places, remainders and runs in detail.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.common import channels_in_memory, config_of, sizes_of, specs_in
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.gpu import COPIED, LaunchWork, without_tensor_cores
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import KernelAlgorithm, divisor
from gossamer.ops.weights import Weights
from gossamer.tensor import rounded_up

_MOST_PLACES = 2**30
"""Maximum number of places of all images: kernels index places with 32-bit integers."""
_BARRIERS_BYTES = 1024
"""Bytes of shared memory for barriers, before the runs."""
_MULTIPLE = 8
"""Number of channels that one copy, or one store, moves."""
_ALIGNMENT = 1024
"""Alignment of runs in shared memory, in bytes."""

_SLOTS = ((4, 0), (4, 8), (4, 6), (3, 0), (3, 8), (3, 6), (4, 4), (3, 4),
          (2, 0), (2, 8), (2, 6), (2, 4), (2, 3))
"""Pairs (number of slots for runs, number of slots for weights), the best first. If taps have
several remainders, as with stride 2, each run is multiplied by the weights of few taps. More runs
then have to be in flight, as measured on an H100. If all taps have the same remainder, two slots
for runs suffice."""


class Lines:
    """The rows, or the columns, of the places of an image; "lines" stands for either.

    The remainder of a tap is its row (or column) modulo `remainders`. Taps with the same remainder
    read the same pixels: every stride-th pixel, from a first pixel that depends on the remainder.

    remainders: number of different remainders.
    step: distance in lines between successive taps with the same remainder.
    reach: distance in lines from an output to the inputs of its last tap.
    count: number of lines. The padding after an image is also the padding before the next image.
    """

    def __init__(self, problem: Conv2dProblem, axis: int) -> None:
        size, outputs = ((problem.height, problem.out_height),
                         (problem.width, problem.out_width))[axis]
        kernel, stride = problem.kernel[axis], problem.stride[axis]
        dilation, pad = problem.dilation[axis], problem.pads[axis]
        common = math.gcd(stride, dilation)
        self.remainders = min(kernel, stride // common)
        self.step = dilation // common
        self.reach = (kernel - 1) // self.remainders * self.step
        # for every remainder, lines from `ends` on are padding after the image, and the first
        # `shared` lines are padding before the image
        ends = -(-(size + pad) // stride)
        shared = max(0, -(-(pad - (self.remainders - 1) * dilation) // stride))
        # taps read `needed` lines; the last lines may belong to the next image if they are padding
        needed = outputs + self.reach
        self.count = max(outputs, min(needed, max(needed - shared, ends)))


class Places:
    """The places of a problem, as one sequence over all images.

    rows, columns: rows and columns of the places of an image.
    pitch: number of places of a row.
    image: number of places of an image.
    last: the place of the last output.
    halo: number of places after a tile that the tile's taps read.
    remainders: number of different pairs (remainder of a row, remainder of a column).
    """

    def __init__(self, problem: Conv2dProblem) -> None:
        self.rows, self.columns = Lines(problem, 0), Lines(problem, 1)
        self.pitch = self.columns.count
        self.image = self.rows.count * self.pitch
        self.last = ((problem.batch - 1) * self.image + (problem.out_height - 1) * self.pitch
                     + problem.out_width - 1)
        self.halo = self.rows.reach * self.pitch + self.columns.reach
        self.remainders = self.rows.remainders * self.columns.remainders


def stage_order(problem: Conv2dProblem, slices: int) -> np.ndarray:
    """Return the stages in the order in which kernels multiply them.

    A stage is a tap and a slice of the input channels. The result has the shape (4, stages). Its
    rows are the run, the slice, the row of the tap and the column of the tap. A run is the pixels
    that taps with the same remainders read, in one slice.

    slices: number of slices.
    """
    rows, columns = Lines(problem, 0).remainders, Lines(problem, 1).remainders
    runs = np.ndindex(slices, rows, columns)
    return np.array([(run, part_slice, row, column)
                     for run, (part_slice, first_row, first_column) in enumerate(runs)
                     for row in range(first_row, problem.kernel[0], rows)
                     for column in range(first_column, problem.kernel[1], columns)]).T


def cannot_shift(problem: Conv2dProblem) -> str | None:
    """Return why shifted products cannot compute a problem; None if they can."""
    if problem.kernel == (1, 1):
        return "needs windows of more than one tap"
    if problem.groups > 1:
        return f"needs one group, has {problem.groups}"
    if problem.channels % _MULTIPLE or problem.out_channels % _MULTIPLE:
        return (f"needs multiples of {_MULTIPLE} channels, has {problem.channels} input and "
                f"{problem.out_channels} output channels")
    if problem.outputs[0].size and problem.batch * Places(problem).image > _MOST_PLACES:
        return f"needs at most {_MOST_PLACES} pixels, including padding"
    return None


def slots_of(problem: Conv2dProblem) -> list[tuple[int, int]]:
    """Return pairs (number of slots for runs, number of slots for weights), the best first.

    With 0 slots for weights, shared memory holds all weights at once.
    """
    several = Places(problem).remainders > 1
    return [slots for slots in _SLOTS if several or slots[0] == 2]


class RunTile(abc.ABC):
    """Base of the tiles of dense products and of the tiles of 2:4 sparse products.

    slice: number of input channels that are copied at once.
    run_slots: number of slots for runs.
    weight_slots: number of slots for stages; 0 if shared memory holds all stages.
    place_step: ranges of places begin at multiples of this number.
    tile_cycles: cycles of a tile that overlap neither with products nor with copies.
    copy_share: fraction of the time to copy runs that does not overlap with products.
    """

    slice: int
    run_slots: int
    weight_slots: int
    place_step: ClassVar[int]
    tile_cycles: ClassVar[float]
    copy_share: ClassVar[float]

    @property
    @abc.abstractmethod
    def part(self) -> int:
        """Output channels of a work-group."""

    @property
    @abc.abstractmethod
    def tile_places(self) -> int:
        """Places of a tile."""

    @property
    @abc.abstractmethod
    def stage_bytes(self) -> int:
        """Bytes of the weights of a tap and a slice."""

    @abc.abstractmethod
    def multiply_cycles(self, problem: Conv2dProblem, places: int) -> float:
        """Return the cycles that a work-group takes to multiply a range of places."""

    def parts(self, problem: Conv2dProblem) -> int:
        """Return the number of parts of the output channels."""
        return -(-problem.out_channels // self.part)

    def slices(self, problem: Conv2dProblem) -> int:
        """Return the number of slices of the input channels."""
        return -(-problem.channels // self.slice)

    def stages(self, problem: Conv2dProblem) -> int:
        """Return the number of stages of a tile: one for each tap of each slice."""
        return self.slices(problem) * problem.taps

    def steps(self, problem: Conv2dProblem) -> int:
        """Return the number of steps of `place_step` places that together contain all outputs."""
        return Places(problem).last // self.place_step + 1

    def grid(self, problem: Conv2dProblem, limits: Limits) -> tuple[int, int]:
        """Return the number of ranges of places and the number of parts of the output channels.

        A work-group computes one part for one range. All work-groups run at once, unless there are
        more parts than multiprocessors.
        """
        parts = self.parts(problem)
        return max(1, min(self.steps(problem), limits.compute_units // parts)), parts

    def run_pieces(self, problem: Conv2dProblem) -> int:
        """Return the number of places of a run, rounded up to an odd number."""
        return (self.tile_places + Places(problem).halo) | 1

    def run_bytes(self, problem: Conv2dProblem) -> int:
        """Return the bytes of a slot for a run."""
        return rounded_up(2 * self.slice * self.run_pieces(problem), _ALIGNMENT)

    def shared_bytes(self, problem: Conv2dProblem) -> int:
        """Return the bytes of shared memory of a work-group."""
        return (_BARRIERS_BYTES + self.run_slots * self.run_bytes(problem)
                + (self.weight_slots or self.stages(problem)) * self.stage_bytes)

    def expected_us(self, problem: Conv2dProblem, limits: Limits) -> float:
        """Return the expected time of a launch in microseconds.

        The estimate covers the time to copy and to multiply the runs of a work-group's tiles.
        """
        ranges, parts = self.grid(problem, limits)
        places = -(-self.steps(problem) // ranges) * self.place_step
        tiles, of = -(-places // self.tile_places), Places(problem)
        runs = of.remainders * self.slices(problem)
        copied = 2 * self.slice * runs * (places + tiles * of.halo) / COPIED
        busy = (tiles * self.tile_cycles + self.copy_share * copied
                + self.multiply_cycles(problem, places))
        return LaunchWork(ranges * parts, 1, busy, waited=0.0, moved=2 * sum(
            spec.size for spec in (*problem.inputs, *problem.outputs))).expected_us(limits)


def geometry_arguments(problem: Conv2dProblem, variant: Variant, tile: RunTile) -> list[int]:
    """Return the arguments for the parameters GEOMETRY_PARAMETERS of runs.h."""
    places, (x, y) = Places(problem), (variant.inputs[0], variant.outputs[0])
    x_image, _, x_row, x_column = x.strides
    return [problem.batch * places.image, *divisor(places.image), *divisor(places.pitch),
            places.halo, tile.run_pieces(problem), tile.run_bytes(problem), problem.channels,
            problem.height, problem.width, problem.out_height, problem.out_width,
            *problem.pads[:2], *problem.stride, *problem.dilation, places.rows.remainders,
            places.columns.remainders, x_image, x_row, x_column, x.offset, y.offset,
            channels_in_memory(y)]


def registers(warpgroups: int) -> tuple[int, int]:
    """Return the numbers of registers of a copying and of a multiplying work-item.

    warpgroups: number of warpgroups that multiply.
    """
    return (56, 240 if warpgroups == 1 else 224)


class ShiftedProduct(KernelAlgorithm):
    """Convolution with filters larger than 1 x 1 on tensor cores, in float16 with float32 sums.

    A work-group copies the pixels of its tile to shared memory once, with padding between the rows.
    Every tap then reads the same pixels at a different offset. In contrast, `implicit_gemm_mma`
    copies pixels once for each tap.

    kernel: the kernel's file; the kernel's function has the same name.
    tile: the class of the algorithm's tiles.
    """

    op = "conv2d"
    reads_parts = True
    writes_parts = True
    kernel: ClassVar[Path]
    tile: ClassVar[type[Any]]

    @abc.abstractmethod
    def tiles(self, problem: Conv2dProblem, limits: Limits) -> Sequence[Any]:
        """Return the tiles that fit shared memory, the fastest expected first."""

    @abc.abstractmethod
    def macros(self, tile: Any) -> Mapping[str, int]:
        """Return the macros for a tile's sizes."""

    @abc.abstractmethod
    def packed(self, weights: Weights, problem: Conv2dProblem, tile: Any) -> Sequence[Buffer]:
        """Return the weights as the kernel reads them."""

    @abc.abstractmethod
    def sizes(self, problem: Conv2dProblem, tile: Any) -> Sequence[int]:
        """Return the kernel's arguments after the output and before the number of output channels.
        """

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device, wgmma=True)) is not None:
            return reason
        if (reason := cannot_shift(problem)) is not None or problem.outputs[0].size == 0:
            return reason
        if not self.tiles(problem, device.limits):
            return (f"a window spans up to {Places(problem).halo} pixels, including padding, which "
                    "do not fit the shared memory")
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        specs = specs_in(problem, "NHWC", "NHWC")
        for tile in self.tiles(problem, device.limits):
            yield Variant(config_of(tile), *specs, "fp16").as_fp16

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        us: float = sizes_of(self.tile, variant).expected_us(problem, device.limits)
        return us

    def kernel_sources(self, problem: Conv2dProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        return (self._source(problem, variant),) if variant.outputs[0].size else ()

    def kernel_launches(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        tile = sizes_of(self.tile, variant)
        return [Launch(
            device.compile(self._source(problem, variant)), tile.grid(problem, device.limits),
            # one warpgroup of four warps copies; the other warpgroups multiply
            (128 * (tile.warpgroups + 1), 1),
            (input_buffer(0), *self.packed(weights, problem, tile), output_buffer(0),
             *self.sizes(problem, tile), problem.out_channels,
             *geometry_arguments(problem, variant, tile),
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)),
            tile.shared_bytes(problem))]

    def _source(self, problem: Conv2dProblem, variant: Variant) -> KernelSource:
        tile = sizes_of(self.tile, variant)
        copy, multiply = registers(tile.warpgroups)
        return KernelSource.of(self.kernel, self.kernel.stem, {
            "HALVES": 1, **self.macros(tile),
            "COPIER_REGISTERS": copy, "MULTIPLIER_REGISTERS": multiply,
            **epilogue_macros(problem.epilogue, tensor_dtype="float16"),
        }, architectures=("sm_90a", "sm_90a"), dynamic_shared=True)
