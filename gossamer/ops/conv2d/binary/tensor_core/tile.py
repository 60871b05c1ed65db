"""The base class of tiles for the two instructions that multiply bits, mma.sync and wgmma."""

from __future__ import annotations

import abc
from dataclasses import fields
from pathlib import Path
from typing import ClassVar

from gossamer.device.base import Buffer
from gossamer.device.limits import Limits
from gossamer.ops.conv2d.binary.layer import BinaryLayer
from gossamer.ops.conv2d.binary.packing import words_of_a_group
from gossamer.ops.conv2d.binary.tensor_core.tables import STEP_BITS, Tables, pixel_classes
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights

_MOST_CONSTANT_BYTES = 12 * 1024
"""The most bytes of shared memory for the constants of a work-group's channels."""
_STATIC_BYTES = 2048
"""Bytes of shared memory that are left to the system and to the kernels' small arrays."""


class Tile(abc.ABC):
    """The work of a work-group.

    instruction: name of the tensor cores' instruction.
    path: the kernel's file, whose name without the suffix is its function.
    architectures: the oldest and the newest architecture that the kernel is built for.
    """

    instruction: ClassVar[str]
    path: ClassVar[Path]
    architectures: ClassVar[tuple[str, str]]
    blocks_per_unit: int

    @property
    @abc.abstractmethod
    def channels(self) -> int:
        """Output channels of a work-group."""

    @property
    @abc.abstractmethod
    def work_group(self) -> int:
        """Work-items of a work-group."""

    @property
    @abc.abstractmethod
    def lane_channels(self) -> int:
        """Number of consecutive output channels of a pixel whose sums a lane holds."""

    @property
    @abc.abstractmethod
    def parts(self) -> int:
        """Number of warps among which the steps of an inner product are divided."""

    @abc.abstractmethod
    def tables(self, layer: BinaryLayer, word_bits: int) -> Tables:
        """Returns the tables of weights, offsets and constants that the kernel of a layer reads."""

    def at_once(self, layer: BinaryLayer, word_bits: int) -> int:
        """Returns the number of steps that a warp multiplies between two barriers. The number is
        chosen for few barriers, and for few steps of zeros that fill the last phase."""
        steps = -(-steps_of(layer.convolution, word_bits) // self.parts)
        return min((4, 3, 2, 1) if self.parts == 1 else (1,),
                   key=lambda count: -(-steps // count) * (count + 1))

    def phases(self, layer: BinaryLayer, word_bits: int) -> int:
        """Returns the number of phases of an inner product. A phase is the span between two
        barriers in which each warp multiplies at_once() steps."""
        return -(-steps_of(layer.convolution, word_bits)
                 // (self.parts * self.at_once(layer, word_bits)))

    @abc.abstractmethod
    def pixel_groups(self, layer: BinaryLayer, limits: Limits) -> int:
        """Returns the number of work-groups that share the output pixels."""

    @abc.abstractmethod
    def shared_bytes(self, layer: BinaryLayer, word_bits: int) -> int:
        """Returns the bytes of dynamic shared memory of a work-group."""

    @abc.abstractmethod
    def bit_cycles(self, layer: BinaryLayer, word_bits: int, limits: Limits) -> float:
        """Returns the estimated cycles of a launch that reads and writes packed bits and no floats,
        with constants fitted to an H200's times."""

    def expected_cycles(self, layer: BinaryLayer, word_bits: int, limits: Limits) -> float:
        """Returns the estimated cycles of a launch."""
        return (self.bit_cycles(layer, word_bits, limits)
                + self.float_cycles(layer, word_bits, limits))

    def macros(self, layer: BinaryLayer) -> dict[str, int]:
        """Returns the macros that only the kernel of this kind of tile has."""
        return {}

    def taps(self, layer: BinaryLayer, word_bits: int, weights: Weights) -> Buffer:
        """Returns the offsets of the words of a window in the input."""
        return self.tables(layer, word_bits).taps(weights)

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        """The config of the tile's variants."""
        return (("instruction", self.instruction),
                *((size.name, getattr(self, size.name))
                  for size in fields(self)))  # type: ignore[arg-type]

    def channel_tiles(self, layer: BinaryLayer) -> int:
        """Returns the number of tiles of the output channels of one group of the convolution. Where
        there is only one group, its channels are rounded up to a multiple of 64, so that whole
        words of packed outputs are written."""
        of_group = layer.convolution.out_channels // layer.convolution.groups
        if layer.convolution.groups == 1:
            of_group = -(-of_group // 64) * 64
        return -(-of_group // self.channels)

    def constant_classes(self, layer: BinaryLayer) -> int:
        """Returns pixel_classes() where shared memory has room for the constants of all classes of
        pixels; else 0."""
        classes = pixel_classes(layer)
        return classes if classes * self.channels * 4 <= _MOST_CONSTANT_BYTES else 0

    def most_shared_bytes(self, limits: Limits) -> int:
        """Returns the bytes of dynamic shared memory that a work-group may take, so that a
        multiprocessor holds blocks_per_unit work-groups."""
        return limits.shared_bytes_opt_in // self.blocks_per_unit - _STATIC_BYTES

    def fits(self, layer: BinaryLayer, word_bits: int, limits: Limits) -> bool:
        """Returns whether a device has the instruction, and its multiprocessors have shared memory
        for blocks_per_unit work-groups."""
        most = self.most_shared_bytes(limits)
        if self.instruction == "mma":
            most -= self.constant_classes(layer) * self.channels * 4
        return ((limits.wgmma if self.instruction == "wgmma" else limits.mma)
                and self.shared_bytes(layer, word_bits) <= most)

    def exchange_bytes(self, layer: BinaryLayer, word_bits: int, float_bytes: int,
                       limits: Limits) -> int:
        """Returns the bytes of shared memory through which warps exchange floats of `float_bytes`
        bytes in NHWC; 0 where warps exchange no floats or shared memory has no room for them."""
        return 0

    def float_cycles(self, layer: BinaryLayer, word_bits: int, limits: Limits) -> float:
        """Returns the estimated cycles in which floats are read and written, in NHWC and in the
        shortest dtype that the layer allows. Where warps do not exchange floats, lanes access their
        own floats: the more floats of a pixel a lane has, the fewer bytes a multiprocessor moves in
        a cycle. The constants were fitted to an H200's times."""
        problem = layer.convolution
        writes = layer.has_two_results or layer.form.output is None
        float_bytes = 4 if layer.rounds_integers(writes) else 2
        size = (len(problem.inputs) - 1 + writes) * problem.outputs[0].size * float_bytes
        bytes_a_cycle = 16.0
        if not self.exchange_bytes(layer, word_bits, float_bytes, limits):
            bytes_a_cycle /= 1 + self.lane_channels * float_bytes / 80
        return size / max(1, limits.compute_units) / bytes_a_cycle


def steps_of(problem: Conv2dProblem, word_bits: int) -> int:
    """Returns the number of steps of 256 bits of an inner product."""
    words = words_of_a_group(problem, word_bits) * problem.kernel[0] * problem.kernel[1]
    return -(-words * word_bits // STEP_BITS)


def input_bytes(layer: BinaryLayer, word_bits: int, pixels: int) -> int:
    """Returns the bytes of shared memory for the inputs of a step. For each word of the step there
    is an array that holds this word of every pixel, with 32 bytes (8 banks) of padding after it."""
    planes = layer.form.planes
    return STEP_BITS // word_bits * (pixels * word_bits // 8 * planes + 32)
