"""Lists the tiles of shifted_sparse_mma, and estimates their times. The texts at the top of runs.h
and of shifted_sparse.cu explain places, parts, stages and runs."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.device.limits import Limits
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.places import (
    BARRIERS_BYTES,
    CYCLES_PER_MICROSECOND,
    Places,
    copy_cycles,
    moving_us,
    run_bytes,
    run_pieces,
    slots_of,
)

SLICE = 64
"""Input channels that are copied at once, and that a stage multiplies."""
ROWS = 64
"""Output channels of a product. A product is one wgmma instruction of a warpgroup, over 32 input
channels."""
EIGHT = 8
"""Ranges of places begin at multiples of this number."""
STAGE_HEADER = 16
"""Bytes of a stage that say by how many places its tap is shifted."""


@dataclass(frozen=True)
class SparseTile:
    """The sizes of a work-group's tile.

    places: places of a product, a multiple of 32.
    channel_warpgroups: warpgroups that compute different channels of the same places.
    place_warpgroups: warpgroups that compute different places of the same channels.
    run_slots: slots for runs.
    weight_slots: slots for stages.
    """

    places: int
    channel_warpgroups: int
    place_warpgroups: int
    run_slots: int
    weight_slots: int

    @property
    def warpgroups(self) -> int:
        """Warpgroups that multiply."""
        return self.channel_warpgroups * self.place_warpgroups

    @property
    def part(self) -> int:
        """Output channels of a work-group."""
        return ROWS * self.channel_warpgroups

    @property
    def tile_places(self) -> int:
        """Places of a tile."""
        return self.places * self.place_warpgroups

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: values, their places among four, and the header."""
        return (ROWS * SLICE + ROWS * SLICE // 8) * self.channel_warpgroups + STAGE_HEADER

    def parts(self, problem: Conv2dProblem) -> int:
        """Returns the number of parts of the output channels."""
        return -(-problem.out_channels // self.part)

    def shared_bytes(self, problem: Conv2dProblem) -> int:
        """Returns the bytes of shared memory of a work-group."""
        return (BARRIERS_BYTES + self.run_slots * self.run_bytes(problem)
                + self.weight_slots * self.stage_bytes
                + self.warpgroups * self.places * (2 * ROWS + _INDEX_BYTES))

    def run_pieces(self, problem: Conv2dProblem) -> int:
        """Returns the number of places of a run, rounded up to an odd number."""
        return run_pieces(problem, self.tile_places)

    def run_bytes(self, problem: Conv2dProblem) -> int:
        """Returns the bytes of a slot for a run."""
        return run_bytes(problem, self.tile_places, SLICE)

    def grid(self, problem: Conv2dProblem, limits: Limits) -> tuple[int, int]:
        """Returns the number of ranges of places and the number of parts. Each pair of a range and
        a part is a work-group. All work-groups run at once, unless there are more parts than
        multiprocessors."""
        parts = self.parts(problem)
        return max(1, min(eights_of(problem), limits.compute_units // parts)), parts


_INDEX_BYTES = 4
"""Bytes of the index at which the results of a place are stored."""
_WARPGROUPS = ((2, 1), (1, 2))
"""Warpgroups along channels and along places of the tiles that are offered."""
_PLACES = (256, 224, 192, 160, 128, 96, 64)
"""Places of a product of the tiles that are offered."""
_MOST_TILES = 4
"""The most tiles that are offered for a layer."""
# The rates below were fitted to 176 measured times of ResNet-50's 3x3 layers, with three patterns
# of weights in batches of 64, 8 and 1 on an H200, within 5.3% rms. On another device they only
# decide the order in which tiles are tried.
_START_US = 1.8
"""Microseconds before the first product and after the last store."""
_TILE = 3100
"""Cycles of a tile that neither its products nor its copies hide."""
_COPY_SHARE = 0.36
"""Share of the copies of runs that products do not hide."""
_STAGE, _STAGE_PLACE = 31, 2.86
"""Cycles of a stage, and more cycles for each of a product's places."""
_SHORT_STAGE, _SHORT_STAGE_PLACE = 245, 1.46
"""The same where products have few places, so that a warpgroup waits for the start of its next
product."""


def tile_of(variant: Variant) -> SparseTile:
    """Returns the tile of a variant."""
    return SparseTile(**{key: int(value) for key, value in variant.config})


def eights_of(problem: Conv2dProblem) -> int:
    """Returns the number of eights of places, up to the eight of the last output."""
    return Places(problem).last // EIGHT + 1


def fitting(problem: Conv2dProblem, limits: Limits) -> list[SparseTile]:
    """Returns the tiles whose runs and weights fit the shared memory, the fastest first."""
    tiles = [tile for places in _PLACES for across, along in _WARPGROUPS
             if across == 1 or problem.out_channels > ROWS
             if (tile := _largest(problem, limits, places, across, along)) is not None]
    tiles.sort(key=lambda tile: expected_us(problem, tile, limits))
    return tiles[:_MOST_TILES]


def _largest(problem: Conv2dProblem, limits: Limits, places: int, across: int, along: int
             ) -> SparseTile | None:
    """Returns the tile with the first numbers of slots that fit the shared memory; None where none
    fit."""
    tiles = (SparseTile(places, across, along, *slots) for slots in slots_of(problem) if slots[1])
    return next((tile for tile in tiles
                 if tile.shared_bytes(problem) <= limits.shared_bytes_opt_in), None)


def slices_of(problem: Conv2dProblem) -> int:
    """Returns the number of slices of the input channels."""
    return -(-problem.channels // SLICE)


def runs_of(problem: Conv2dProblem) -> int:
    """Returns the number of runs of a tile."""
    return Places(problem).remainders * slices_of(problem)


def fewest_stages(problem: Conv2dProblem) -> int:
    """Returns the number of stages of a part of 2:4 sparse weights."""
    return slices_of(problem) * problem.kernel[0] * problem.kernel[1]


def expected_stages(problem: Conv2dProblem, tile: SparseTile) -> float:
    """Returns the number of stages of a part that are expected by the share of fours of neighbours
    with more than two nonzeros, as if these fours were at random places."""
    fours = tile.part * SLICE // 4
    second = 1.0 - (1.0 - min(1.0, problem.weights_info.crowded)) ** fours
    return fewest_stages(problem) * (1.0 + second)


def expected_us(problem: Conv2dProblem, tile: SparseTile, limits: Limits) -> float:
    """Returns the estimated time of a launch in microseconds: the start of the launch, and then the
    time of the busiest multiprocessor's tiles, or the time of moving tensors that do not stay in
    the L2 cache, whichever is longer."""
    ranges, parts = tile.grid(problem, limits)
    tiles = -(-(-(-eights_of(problem) // ranges) * EIGHT) // tile.tile_places)
    stage = max(_STAGE + _STAGE_PLACE * tile.places,
                _SHORT_STAGE + _SHORT_STAGE_PLACE * tile.places)
    copies = runs_of(problem) * copy_cycles(problem, tile.tile_places, SLICE)
    cycles = (_TILE + copies * _COPY_SHARE
              + expected_stages(problem, tile) * stage)
    # waves, where there are more work-groups than multiprocessors
    cycles *= tiles * -(-ranges * parts // limits.compute_units)
    return _START_US + max(cycles / CYCLES_PER_MICROSECOND, moving_us(problem))
