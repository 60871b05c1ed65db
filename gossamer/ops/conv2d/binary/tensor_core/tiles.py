"""Tiles of binary convolutions on tensor cores, by mma.sync and by wgmma, and time estimates."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from gossamer.device.base import Buffer
from gossamer.device.limits import Limits
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.binary.layer import BinaryLayer, words_of_a_group
from gossamer.ops.conv2d.binary.tensor_core.tables import (
    MOST_HALO_TAPS,
    STEP_BITS,
    Tables,
    halo_pixels,
    pixel_classes,
)
from gossamer.ops.conv2d.common import config_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gpu import BEGIN, COPIED, LaunchWork
from gossamer.ops.weights import Weights

_MOST_CONSTANT_BYTES = 12 * 1024
"""Maximum bytes of shared memory for the constants of a work-group's channels."""
_STATIC_BYTES = 2048
"""Bytes of shared memory that are reserved for the system and for the kernels' small arrays."""
# cycles, fitted to times on an H200
_PHASE, _STEP, _END = 500, 700 / 128**2, 1500
"""With mma: cycles for which a phase waits, cycles of a step for each pair of a pixel and a
channel, and cycles at the end of a work-group."""
_COPY, _HALO_COPY, _MULTIPLY = 75, 35, 0.38
"""With wgmma, cycles of a step: to copy its inputs without a halo, to copy its inputs with a halo
(see WgmmaTile), and to multiply one channel."""


class Tile(abc.ABC):
    """The outputs that a work-group computes, and how it computes them.

    instruction: name of the tensor cores' instruction.
    path: the kernel's file; the kernel's function has the same name.
    architectures: the oldest and the newest architecture that the kernel is built for.
    """

    instruction: ClassVar[str]
    path: ClassVar[Path]
    architectures: ClassVar[tuple[str, str]]
    blocks_per_unit: int

    @property
    @abc.abstractmethod
    def channels(self) -> int:
        """Number of output channels that a work-group computes."""

    @property
    @abc.abstractmethod
    def work_group(self) -> int:
        """Work-items of a work-group."""

    @property
    @abc.abstractmethod
    def lane_channels(self) -> int:
        """Number of consecutive output channels of one pixel whose sums a lane holds."""

    @property
    @abc.abstractmethod
    def parts(self) -> int:
        """Number of warps that share the steps of an inner product (slice-K)."""

    @abc.abstractmethod
    def tables(self, layer: BinaryLayer, word_bits: int) -> Tables:
        """Return the tables of weights, offsets and constants that the kernel of a layer reads."""

    def at_once(self, layer: BinaryLayer, word_bits: int) -> int:
        """Return the number of steps that a warp multiplies between two barriers.

        The number is a compromise between few barriers and few steps of zeros in the last phase.
        """
        steps = -(-steps_of(layer.convolution, word_bits) // self.parts)
        return min((4, 3, 2, 1) if self.parts == 1 else (1,),
                   key=lambda count: -(-steps // count) * (count + 1))

    def phases(self, layer: BinaryLayer, word_bits: int) -> int:
        """Return the number of phases of an inner product.

        A phase is the span between two barriers in which each warp multiplies at_once() steps.
        """
        return -(-steps_of(layer.convolution, word_bits)
                 // (self.parts * self.at_once(layer, word_bits)))

    @abc.abstractmethod
    def pixel_groups(self, layer: BinaryLayer, limits: Limits) -> int:
        """Return the number of work-groups among which the output pixels are divided."""

    @abc.abstractmethod
    def shared_bytes(self, layer: BinaryLayer, word_bits: int) -> int:
        """Return the bytes of dynamic shared memory of a work-group."""

    @abc.abstractmethod
    def expected_work(self, layer: BinaryLayer, word_bits: int, limits: Limits) -> LaunchWork:
        """Return the work of a launch, not counting the floats that it reads and writes."""

    def expected_us(self, layer: BinaryLayer, word_bits: int, limits: Limits) -> float:
        """Return the expected time of a launch in microseconds."""
        work = self.expected_work(layer, word_bits, limits)
        floats = self.float_cycles(layer, word_bits, limits) / work.groups
        return replace(work, busy=work.busy + floats).expected_us(limits)

    def macros(self, layer: BinaryLayer) -> dict[str, int]:
        """Return the macros that are specific to this kind of tile."""
        return {}

    def taps(self, layer: BinaryLayer, word_bits: int, weights: Weights) -> Buffer:
        """Return the offsets of the words of a window in the input."""
        return self.tables(layer, word_bits).taps(weights)

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        """The config of the tile's variants."""
        return (("instruction", self.instruction), *config_of(self))

    def channel_tiles(self, layer: BinaryLayer) -> int:
        """Return the number of tiles of the output channels of one group of the convolution.

        If there is only one group, its channels are rounded up to a multiple of 64, so that whole
        words of packed outputs are written.
        """
        of_group = layer.convolution.group_out_channels
        if layer.convolution.groups == 1:
            of_group = -(-of_group // 64) * 64
        return -(-of_group // self.channels)

    def constant_classes(self, layer: BinaryLayer) -> int:
        """Return pixel_classes() if the constants of all classes fit shared memory, else 0."""
        classes = pixel_classes(layer)
        return classes if classes * self.channels * 4 <= _MOST_CONSTANT_BYTES else 0

    def most_shared_bytes(self, limits: Limits) -> int:
        """Return the maximum bytes of dynamic shared memory of a work-group.

        A multiprocessor can hold blocks_per_unit work-groups that keep to this limit.
        """
        return limits.shared_bytes_opt_in // self.blocks_per_unit - _STATIC_BYTES

    def fits(self, layer: BinaryLayer, word_bits: int, limits: Limits) -> bool:
        """Return whether a device has the instruction and enough shared memory for the tile.

        A multiprocessor must be able to hold blocks_per_unit work-groups.
        """
        most = self.most_shared_bytes(limits)
        if self.instruction == "mma":
            most -= self.constant_classes(layer) * self.channels * 4
        return ((limits.wgmma if self.instruction == "wgmma" else limits.mma)
                and self.shared_bytes(layer, word_bits) <= most)

    def exchange_bytes(self, layer: BinaryLayer, word_bits: int, float_bytes: int,
                       limits: Limits) -> int:
        """Return the bytes of shared memory through which warps exchange floats in NHWC.

        The result is 0 if warps exchange no floats, or if the floats do not fit shared memory.

        float_bytes: bytes of a float.
        """
        return 0

    def float_cycles(self, layer: BinaryLayer, word_bits: int, limits: Limits) -> float:
        """Return the cycles that one multiprocessor would need to read and write all floats.

        The floats are in NHWC, in the smallest dtype that the layer allows. If warps do not
        exchange floats through shared memory, each lane accesses its own floats; the more floats of
        one pixel a lane has, the lower is the throughput.
        """
        problem = layer.convolution
        writes = layer.has_two_results or layer.form.output is None
        float_bytes = 4 if layer.rounds_integers(writes) else 2
        size = (len(problem.inputs) - 1 + writes) * problem.outputs[0].size * float_bytes
        bytes_a_cycle = 16.0
        if not self.exchange_bytes(layer, word_bits, float_bytes, limits):
            bytes_a_cycle /= 1 + self.lane_channels * float_bytes / 80
        return size / bytes_a_cycle


def steps_of(problem: Conv2dProblem, word_bits: int) -> int:
    """Return the number of steps of 256 bits of an inner product."""
    words = words_of_a_group(problem, word_bits) * problem.taps
    return -(-words * word_bits // STEP_BITS)


def input_bytes(layer: BinaryLayer, word_bits: int, pixels: int) -> int:
    """Return the bytes of shared memory for the inputs of a step.

    For each word of the step, shared memory has an array with this word of every pixel, followed by
    32 bytes (8 banks) of padding.
    """
    planes = layer.form.planes
    return STEP_BITS // word_bits * (pixels * word_bits // 8 * planes + 32)


_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class MmaTile(Tile):
    """A tile whose warps multiply by mma.sync.

    warps_p: number of warps along the output pixels.
    warps_c: number of warps along the output channels.
    warps_k: number of warps that split the inner product (slice-K).
    tiles_p: tiles of 16 pixels of a warp.
    tiles_c: tiles of 8 channels of a warp, an even number.
    stages: number of buffers in shared memory; each holds the operands of a phase.
    blocks_per_unit: work-groups that a multiprocessor should hold at once.
    """

    instruction = "mma"
    path = _FOLDER / "bits_mma.cu"
    architectures = ("sm_80", "sm_100")

    warps_p: int
    warps_c: int
    warps_k: int
    tiles_p: int
    tiles_c: int
    stages: int
    blocks_per_unit: int

    @property
    def pixels(self) -> int:
        """Output pixels of a work-group."""
        return self.warps_p * self.tiles_p * 16

    @property
    def channels(self) -> int:
        return self.warps_c * self.tiles_c * 8

    @property
    def lane_channels(self) -> int:
        return 2 * self.tiles_c

    @property
    def work_group(self) -> int:
        return 32 * self.warps_p * self.warps_c * self.warps_k

    @property
    def parts(self) -> int:
        return self.warps_k

    def tables(self, layer: BinaryLayer, word_bits: int) -> Tables:
        steps = self.phases(layer, word_bits) * self.at_once(layer, word_bits) * self.warps_k
        return Tables(layer, word_bits, self.tiles_c * 8,
                      self.channel_tiles(layer) * self.warps_c, self.warps_c, steps, True)

    def pixel_groups(self, layer: BinaryLayer, limits: Limits) -> int:
        return -(-layer.convolution.pixels // self.pixels)

    def shared_bytes(self, layer: BinaryLayer, word_bits: int) -> int:
        weights = layer.form.planes * self.channels * STEP_BITS // 8
        steps = self.warps_k * self.at_once(layer, word_bits)
        stage = steps * (input_bytes(layer, word_bits, self.pixels) + weights)
        sums = (self.warps_k - 1) * self.pixels * self.channels * 4
        return max(self.stages * stage, sums)

    def expected_work(self, layer: BinaryLayer, word_bits: int, limits: Limits) -> LaunchWork:
        phases = self.phases(layer, word_bits)
        steps = phases * self.at_once(layer, word_bits) * self.warps_k * layer.form.planes
        # the warps that split the inner product add their sums one after the other
        end = _END + 90 * (self.warps_k - 1)
        return LaunchWork(
            self.pixel_groups(layer, limits) * self.channel_tiles(layer) * layer.convolution.groups,
            self.blocks_per_unit, busy=steps * _STEP * self.pixels * self.channels, waited=0.0,
            begin=end + phases * _PHASE)


@dataclass(frozen=True)
class WgmmaTile(Tile):
    """A tile whose warpgroups multiply by wgmma.

    All weights of the tile's channels stay in shared memory.

    tile_c: output channels of a work-group.
    warpgroups: warpgroups that multiply; they process tiles of 64 output pixels in turn.
    copiers: 1 if each warpgroup has two producer warps that copy its inputs, 0 if the warpgroup
    copies its inputs itself.
    stages: number of buffers of a warpgroup in shared memory; each holds the inputs of a phase.
    blocks_per_unit: work-groups that a multiprocessor should hold at once.
    halo: 1 if each stage holds all inputs of a tile, copied once for all taps; else 0.
    """

    instruction = "wgmma"
    path = _FOLDER / "bits_wgmma.cu"
    architectures = ("sm_90a", "sm_90a")
    pixels: ClassVar[int] = 64
    """Output pixels of a warpgroup's tile."""

    tile_c: int
    warpgroups: int
    copiers: int
    stages: int
    blocks_per_unit: int
    halo: int = 0

    @property
    def channels(self) -> int:
        return self.tile_c

    @property
    def lane_channels(self) -> int:
        return self.tile_c // 4

    @property
    def work_group(self) -> int:
        return (128 + 64 * self.copiers) * self.warpgroups

    @property
    def parts(self) -> int:
        return 1

    def tables(self, layer: BinaryLayer, word_bits: int) -> Tables:
        steps = self.phases(layer, word_bits) * self.at_once(layer, word_bits)
        return Tables(layer, word_bits, self.tile_c, self.channel_tiles(layer), 1, steps, False)

    def pixel_groups(self, layer: BinaryLayer, limits: Limits) -> int:
        at_once = limits.compute_units * self.blocks_per_unit
        tiles_p = -(-layer.convolution.pixels // self.pixels)
        return min(-(-tiles_p // self.warpgroups),
                   max(1, at_once // (self.channel_tiles(layer) * layer.convolution.groups)))

    def shared_bytes(self, layer: BinaryLayer, word_bits: int) -> int:
        at_once, phases = self.at_once(layer, word_bits), self.phases(layer, word_bits)
        weights = layer.form.planes * self.tile_c * STEP_BITS // 8
        taps = STEP_BITS // word_bits * 8
        inputs = at_once * input_bytes(layer, word_bits, self.pixels)
        if self.halo:
            inputs = words_of_a_group(layer.convolution, word_bits) * self.halo_line(
                layer, word_bits)
        # the constants of a lane are padded by 16 bytes, and each phase has a barrier of 8 bytes
        constants = self.constant_classes(layer) * 4 * (self.tile_c + 16)
        barriers = 16 * self.warpgroups * self.stages
        return (phases * (at_once * (weights + taps) + 8) + constants + barriers
                + self.warpgroups * self.stages * inputs)

    def exchange_bytes(self, layer: BinaryLayer, word_bits: int, float_bytes: int,
                       limits: Limits) -> int:
        # the channels of a pixel are four parts, and each part is padded by 16 bytes
        needed = self.warpgroups * self.pixels * (self.tile_c * float_bytes + 4 * 16)
        has_room = self.shared_bytes(layer, word_bits) + needed <= self.most_shared_bytes(limits)
        return needed if has_room else 0

    def halo_line(self, layer: BinaryLayer, word_bits: int) -> int:
        """Return the bytes of an array with one word of each pixel of a halo, with its padding."""
        pixels = halo_pixels(layer.convolution, self.pixels)
        return -(-pixels * layer.form.planes * word_bits // 8 // 128) * 128 + 32

    def fits(self, layer: BinaryLayer, word_bits: int, limits: Limits) -> bool:
        problem = layer.convolution
        if self.halo and (word_bits != 64 or problem.kernel == (1, 1)
                          or problem.taps > MOST_HALO_TAPS
                          or not problem.outputs[0].size
                          or not halo_pixels(problem, self.pixels)):
            return False
        return super().fits(layer, word_bits, limits)

    def macros(self, layer: BinaryLayer) -> dict[str, int]:
        if not self.halo:
            return {}
        problem = layer.convolution
        return {"HALO_PIXELS": halo_pixels(problem, self.pixels),
                "KERNEL_H": problem.kernel[0], "KERNEL_W": problem.kernel[1],
                "DILATION_Y": problem.dilation[0], "DILATION_X": problem.dilation[1]}

    def taps(self, layer: BinaryLayer, word_bits: int, weights: Weights) -> Buffer:
        if not self.halo:
            return super().taps(layer, word_bits, weights)
        return self.tables(layer, word_bits).halo_taps(
            weights, self.halo_line(layer, word_bits), layer.form.planes * word_bits // 8)

    def expected_work(self, layer: BinaryLayer, word_bits: int, limits: Limits) -> LaunchWork:
        groups = self.pixel_groups(layer, limits)
        tiles = -(-layer.convolution.pixels // (self.pixels * groups * self.warpgroups))
        planes = layer.form.planes
        steps = self.phases(layer, word_bits) * self.at_once(layer, word_bits)
        weights = steps * planes * self.tile_c * STEP_BITS // 8
        # the times of copies and multiplications add up, because they share the bandwidth of shared
        # memory
        step = (_HALO_COPY if self.halo else _COPY) - 10 * self.copiers + (
            planes * _MULTIPLY * self.tile_c)
        return LaunchWork(
            groups * self.channel_tiles(layer) * layer.convolution.groups, self.blocks_per_unit,
            busy=self.warpgroups * tiles * steps * step, waited=0.0,
            begin=BEGIN + weights / COPIED + tiles * (600 + 7 * self.tile_c))


WGMMA_TILES = (
    WgmmaTile(256, 2, 1, 2, 1, 1),
    WgmmaTile(128, 2, 1, 2, 1, 1),
    WgmmaTile(64, 2, 1, 2, 1, 1),
    WgmmaTile(256, 2, 1, 4, 1),
    WgmmaTile(256, 2, 0, 3, 1),
    WgmmaTile(128, 2, 1, 4, 1),
    WgmmaTile(128, 3, 0, 4, 1),
    WgmmaTile(64, 2, 1, 4, 1),
    WgmmaTile(64, 2, 0, 4, 2),
)
MMA_TILES = (
    MmaTile(2, 2, 1, 4, 8, 3, 2),
    MmaTile(2, 2, 1, 2, 8, 3, 3),
    MmaTile(1, 2, 2, 2, 8, 4, 2),
    MmaTile(1, 1, 4, 1, 8, 4, 2),
    MmaTile(1, 4, 2, 1, 4, 4, 2),
    MmaTile(2, 2, 1, 1, 4, 2, 4),
    MmaTile(1, 2, 1, 1, 4, 3, 8),
    MmaTile(1, 1, 2, 1, 4, 8, 4),
    MmaTile(1, 1, 4, 1, 4, 4, 4),
    MmaTile(1, 1, 8, 1, 4, 3, 2),
    MmaTile(1, 1, 16, 1, 4, 2, 1),
)
"""Large tiles suit large layers. Small tiles suit layers whose work-groups all run at once. In most
small tiles, the steps of an inner product are divided among warps. WGMMA_TILES and MMA_TILES were
chosen by times on an H200. On every device, each tile that fits may be measured."""


def fitting_tiles(layer: BinaryLayer, word_bits: int, limits: Limits) -> list[Tile]:
    """Return the tiles that fit a device, sorted by their expected times."""
    tiles: list[Tile] = [tile for tile in (*WGMMA_TILES, *MMA_TILES)
                         if tile.fits(layer, word_bits, limits)]
    if layer.convolution.outputs[0].size == 0:
        return tiles
    return sorted(tiles, key=lambda tile: tile.expected_us(layer, word_bits, limits))


def tile_of(variant: Variant) -> Tile:
    """Return the tile of a variant's config."""
    (_, instruction), *sizes = variant.config
    kind = WgmmaTile if instruction == "wgmma" else MmaTile
    return kind(**{key: int(value) for key, value in sizes})
