"""Divides the shared memory of pointwise_pair_mma into slots, and estimates the kernel's time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from gossamer.device.limits import Limits
from gossamer.ops.conv2d.common import CYCLES_PER_MICROSECOND
from gossamer.ops.fused.pointwise_pair.layers import PointwisePair

PIXELS = 128
"""Pixels of a tile."""
SLICE = 64
"""Output channels of the first layer that are computed at a time: a slice."""
WORK_GROUP_SIZE = 384
_BARRIERS_BYTES = 1024
_MOST_KEPT = 32
"""The most slices whose weights are kept in shared memory; the weights of each slice have barriers
of their own."""
_WEIGHT_SLOTS = (0, 3, 2, 4)
_SLOTS = ((2, 6), (2, 4), (2, 3), (1, 4), (2, 2), (1, 3), (1, 2))
"""Numbers of slots for inputs and for slices; the first pair that fits is taken. Where the first
layer adds a tensor, its parts are copied from device memory to the slots for slices. With more
slots, more of these copies are under way at the same time."""
_OFFERED = 3

# The rates below are assumed for an H200, not measured. On any device they decide only the order in
# which tiles are tried.
_BYTES_PER_MICROSECOND, _COPIED_PER_MICROSECOND = 4.0e6, 5.5e6
"""Bytes that device memory moves in a microsecond, and bytes that all multiprocessors copy from the
L2 cache in a microsecond."""
_RATE = 0.7
"""Share of the tensor cores' peak rate that the products reach."""
_OF_SLICE = 1000
"""Cycles of the epilogue and the barriers of a slice, which no other work hides."""
_START_CYCLES = 4000
"""Cycles before the first product and after the last store."""


@dataclass(frozen=True)
class PairTile:
    """Numbers of slots in shared memory; these numbers are the config of a variant.

    inputs: slots for the first layer's input.
    slots: slots for slices.
    weight_slots: slots for the weights of slices; 0 where the weights of all slices are kept.
    """

    inputs: int
    slots: int
    weight_slots: int


@dataclass(frozen=True)
class PairTiling:
    """A pair of convolutions, and the slots with which it is computed."""

    pair: PointwisePair
    tile: PairTile

    @property
    def slices(self) -> int:
        """Number of slices of the first layer's output channels."""
        return self.pair.first.out_channels // SLICE

    @property
    def stage_bytes(self) -> int:
        """Bytes of the weights of a slice."""
        return 2 * SLICE * (self.pair.first.channels + self.pair.second.out_channels)

    @property
    def tiles(self) -> int:
        """Number of tiles that hold the pixels of all images."""
        return -(-self.pair.pixels // PIXELS)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group."""
        return (_BARRIERS_BYTES + 2 * PIXELS * (self.tile.inputs * self.pair.first.channels
                                                + self.tile.slots * SLICE)
                + (self.tile.weight_slots or self.slices) * self.stage_bytes)

    def groups(self, limits: Limits) -> int:
        """Returns the number of work-groups. All work-groups run at once, and their numbers of
        tiles differ by at most one."""
        waves = -(-self.tiles // limits.compute_units)
        return -(-self.tiles // waves)

    def microseconds(self, limits: Limits) -> float:
        """Returns the expected time of the kernel, without its launch: the longest of the times to
        move all tensors, to copy weights from the L2 cache, and to compute the tiles of a
        multiprocessor."""
        first, second = self.pair.first, self.pair.second
        if not self.pair.pixels:
            return 0.0
        wide = first.out_channels * (first.epilogue.tensor_count + len(self.pair.problem.exits) - 1)
        moved = 2 * self.pair.pixels * (first.channels + wide + second.out_channels)
        copies = self.groups(limits) if self.tile.weight_slots == 0 else self.tiles
        copied = copies * self.slices * self.stage_bytes
        products = self.slices * (first.channels + second.out_channels) * PIXELS / 64 * 2 / _RATE
        waves = -(-self.tiles // limits.compute_units)
        # with fewer slots, a smaller part of the time of copies is hidden
        cycles = waves * (products + self.slices * _OF_SLICE * (1 + 1 / self.tile.slots))
        return _START_CYCLES / CYCLES_PER_MICROSECOND + max(
            moved / _BYTES_PER_MICROSECOND, copied / _COPIED_PER_MICROSECOND,
            cycles / CYCLES_PER_MICROSECOND)


def tilings(pair: PointwisePair, limits: Limits) -> list[PairTiling]:
    """Returns tilings that a device can compute. Tilings that keep all weights come first."""
    return list(itertools.islice(_fitting(pair, limits), _OFFERED))


def _fitting(pair: PointwisePair, limits: Limits) -> Iterator[PairTiling]:
    for weight_slots in _WEIGHT_SLOTS:
        if weight_slots or pair.first.out_channels // SLICE <= _MOST_KEPT:
            tilings_of_it = (PairTiling(pair, PairTile(*slots, weight_slots)) for slots in _SLOTS)
            fitting = (tiling for tiling in tilings_of_it
                       if tiling.shared_bytes <= limits.shared_bytes_opt_in)
            yield from itertools.islice(fitting, 1)
