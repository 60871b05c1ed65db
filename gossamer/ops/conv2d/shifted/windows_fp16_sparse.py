"""shifted_sparse_mma: convolution with windows in float16 and 2:4 sparse weights.

It is one product on sparse tensor cores for each tap. All products of a tile read the same pixels
in shared memory. The texts at the top of runs.h and of shifted_sparse.cu explain places, parts,
stages and runs.

Source of 2:4 sparsity: A. Mishra et al., "Accelerating sparse deep neural networks", arXiv
2104.08378, 2021. Weights with other patterns are computed as well: where four neighbours have more
than two nonzeros, a second product adds the others.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.limits import Limits
from gossamer.ops.conv2d.common import rounded
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.product import (
    Places,
    RunTile,
    ShiftedProduct,
    slots_of,
    stage_order,
)
from gossamer.ops.weights import Weights

_MOST_PRODUCTS = 1.6
"""The most products for each product of 2:4 sparse weights with which the algorithm is offered. A
dense product takes twice as long as a product of 2:4 sparse weights."""


SLICE = 64
"""Input channels that are copied at once, and that a stage multiplies."""
ROWS = 64
"""Output channels of a product. A product is one wgmma instruction of a warpgroup, over 32 input
channels."""
STAGE_HEADER = 16
"""Bytes of a stage that say by how many places its tap is shifted."""


@dataclass(frozen=True)
class SparseTile(RunTile):
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

    slice = SLICE
    place_step = 8
    tile_cycles = 3100.0
    copy_share = 0.36

    @property
    def warpgroups(self) -> int:
        """Warpgroups that multiply."""
        return self.channel_warpgroups * self.place_warpgroups

    @property
    def part(self) -> int:
        return ROWS * self.channel_warpgroups

    @property
    def tile_places(self) -> int:
        return self.places * self.place_warpgroups

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: values, their places among four, and the header."""
        return (ROWS * SLICE + ROWS * SLICE // 8) * self.channel_warpgroups + STAGE_HEADER

    def shared_bytes(self, problem: Conv2dProblem) -> int:
        # behind the stages results are transposed, of which each place has an index
        return (super().shared_bytes(problem)
                + self.warpgroups * self.places * (2 * ROWS + _INDEX_BYTES))

    def multiply_cycles(self, problem: Conv2dProblem, places: int) -> float:
        tiles = -(-places // self.tile_places)
        return tiles * self.expected_stages(problem) * (_STAGE + _STAGE_PLACE * self.places)

    def expected_stages(self, problem: Conv2dProblem) -> float:
        """Return the number of stages of a part that are expected.

        It follows from the share of fours of neighbours with more than two nonzeros, as if these
        fours were at random positions.
        """
        fours = self.part * SLICE // 4
        second = 1.0 - (1.0 - min(1.0, problem.weights_info.crowded)) ** fours
        return self.stages(problem) * (1.0 + second)


_INDEX_BYTES = 4
"""Bytes of the index at which the results of a place are stored."""
_WARPGROUPS = ((2, 1), (1, 2))
"""Warpgroups along channels and along places of the tiles that are offered."""
_PLACES = (256, 224, 192, 160, 128, 96, 64)
"""Places of a product of the tiles that are offered."""
_MOST_TILES = 4
"""The most tiles that are offered for a layer."""
_STAGE, _STAGE_PLACE = 200, 2.1
"""Cycles of a stage, and more cycles for each of a product's places, on an H200."""


class ShiftedSparseMma(ShiftedProduct):
    """Shifted products on the tensor cores for 2:4 sparse weights.

    Where one of four neighbouring weights is multiplied, another one may be multiplied as a zero: a
    NaN or infinity of the input may reach an output whose weight there is zero.
    """

    name = "shifted_sparse_mma"
    dense = False
    kernel = Path(__file__).with_name("shifted_sparse.cu")
    tile = SparseTile

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        reason = super().supports(problem, device)
        if reason is not None or problem.outputs[0].size == 0:
            return reason
        fastest = self.tiles(problem, device.limits)[0]
        if fastest.expected_stages(problem) > _MOST_PRODUCTS * fastest.stages(problem):
            return (f"{problem.weights_info.crowded:.2%} of all fours of neighbouring input "
                    "channels have more than two nonzeros, so that it would multiply most of the "
                    "weights twice")
        return None

    def tiles(self, problem: Conv2dProblem, limits: Limits) -> list[SparseTile]:
        tiles = [tile for places in _PLACES for across, along in _WARPGROUPS
                 if across == 1 or problem.out_channels > ROWS
                 if (tile := _largest(problem, limits, places, across, along)) is not None]
        tiles.sort(key=lambda tile: tile.expected_us(problem, limits))
        return tiles[:_MOST_TILES]

    def macros(self, tile: SparseTile) -> Mapping[str, int]:
        return {"TILE_N": tile.places, "CHANNEL_WARPGROUPS": tile.channel_warpgroups,
                "PLACE_WARPGROUPS": tile.place_warpgroups, "RUN_SLOTS": tile.run_slots,
                "WEIGHT_SLOTS": tile.weight_slots}

    def packed(self, weights: Weights, problem: Conv2dProblem, tile: SparseTile) -> list[Buffer]:
        return [weights.packed(f"{name} of shifted_sparse_mma {tile.channel_warpgroups}",
                               functools.partial(pack, problem=problem, tile=tile))
                for name, pack in (("stages", packed_stages), ("numbers of stages", stage_counts))]

    def sizes(self, problem: Conv2dProblem, tile: SparseTile) -> Sequence[int]:
        return tile.steps(problem), tile.slices(problem)


def _largest(problem: Conv2dProblem, limits: Limits, places: int, across: int, along: int
             ) -> SparseTile | None:
    """Return the tile with the first numbers of slots that fit; None where none fit."""
    tiles = (SparseTile(places, across, along, *slots) for slots in slots_of(problem) if slots[1])
    return next((tile for tile in tiles
                 if tile.shared_bytes(problem) <= limits.shared_bytes_opt_in), None)


_FOURS = SLICE // 4
"""Fours of neighbouring input channels in a slice."""
_RUN_ENDS = np.uint32(1 << 31)
"""The bit of a stage's first word that says that its run ends with this stage."""


def _pairs() -> np.ndarray:
    """Return the two positions that are stored of each of 16 sets of nonzeros of a four.

    They are in ascending order. Sets of more than two places have no entry that is read.
    """
    pairs = np.zeros((16, 2), np.int64)
    for code in range(16):
        places = [place for place in range(4) if code >> place & 1][:2]
        # tensor cores take two different places, so that a zero is stored at another place
        others = [place for place in range(4) if place not in places]
        pairs[code] = sorted((places + others)[:2])
    return pairs


_PAIRS = _pairs()


def packed_stages(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem, tile: SparseTile
                  ) -> np.ndarray:
    """Return the stages as bytes (stages of a part, parts, bytes of a stage).

    Parts with fewer stages than others end with zeros, which are not read.
    """
    weight = _fours_of(arrays, problem, tile)
    run, _, row, column = stage_order(problem, tile.slices(problem))
    passes = _passes(weight)
    present = _present(passes, run)
    part, number, second = np.argwhere(present).T
    values, indices = _values_and_indices(weight[part, number], passes[second, part, number])
    stages = np.zeros((len(part), tile.stage_bytes), np.uint8)
    value_bytes = ROWS * SLICE * tile.channel_warpgroups
    stages[:, :value_bytes] = values.reshape(len(part), -1).view(np.uint8)
    stages[:, value_bytes:-STAGE_HEADER] = indices.reshape(len(part), -1).view(np.uint8)
    rows, columns = (lines.step * (tap // lines.remainders) for lines, tap in (
        (Places(problem).rows, row), (Places(problem).columns, column)))
    header = (rows << 16 | columns).astype(np.uint32)[number]
    ends = np.ones(len(part), bool)
    ends[:-1] = (part[1:] != part[:-1]) | (run[number[1:]] != run[number[:-1]])
    header[ends] |= _RUN_ENDS
    stages[:, -STAGE_HEADER:-STAGE_HEADER + 4] = header[:, None].view(np.uint8)
    counts = _counts(present)
    packed = np.zeros((counts.max(), len(counts), tile.stage_bytes), np.uint8)
    packed[np.arange(len(part)) - (np.cumsum(counts) - counts)[part], part] = stages
    return packed


def stage_counts(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem, tile: SparseTile
                 ) -> np.ndarray:
    """Return the number of stages of each part."""
    run = stage_order(problem, tile.slices(problem))[0]
    return _counts(_present(_passes(_fours_of(arrays, problem, tile)), run))


def _counts(present: np.ndarray) -> np.ndarray:
    return present.sum(axis=(1, 2)).astype(np.int32)


def _fours_of(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem, tile: SparseTile
              ) -> np.ndarray:
    """Return the weights as (parts, stages, output channels, fours, 4 input channels).

    Channels of padding have zeros, and stages are in the order of `stage_order`.
    """
    parts, slices = tile.parts(problem), tile.slices(problem)
    padded = np.zeros((parts * tile.part, slices * SLICE, *problem.kernel), np.float32)
    padded[:problem.out_channels, :problem.channels] = arrays["weight"]
    _, part_slice, row, column = stage_order(problem, slices)
    split = padded.reshape(parts, tile.part, slices, _FOURS, 4, *problem.kernel)
    return split.transpose(0, 2, 5, 6, 1, 3, 4)[:, part_slice, row, column]


def _passes(weight: np.ndarray) -> np.ndarray:
    """Return which weights both stages of a tap and a slice store, (2, parts, stages, ...).

    The first stage stores the first two nonzeros of each four, and the second the others.
    """
    nonzero = weight != 0
    number = np.cumsum(nonzero, axis=-1)
    return np.stack([nonzero & (number <= 2), nonzero & (number > 2)])


def _present(passes: np.ndarray, run: np.ndarray) -> np.ndarray:
    """Return which stages there are, as (parts, stages, 2): those that store a weight.

    A run has at least one stage, as it has to be read.

    run: the run of each stage, in ascending order.
    """
    present: np.ndarray = np.any(passes, axis=(-1, -2, -3)).transpose(1, 2, 0).copy()
    first = np.unique(run, return_index=True)[1]
    present[:, first, 0] |= ~np.logical_or.reduceat(np.any(present, axis=2), first, axis=1)
    return present


def _values_and_indices(weight: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the stored values and the words of indices of stages.

    weight: (stages, output channels, fours, 4).
    kept: which of these are stored.
    """
    stages, channels = weight.shape[:2]
    pairs = _PAIRS[(kept << np.arange(4)).sum(axis=-1)]
    values = rounded(np.take_along_axis(np.where(kept, weight, 0), pairs, axis=-1))
    # axes: stage, 64 channels, channel, step of 32 input channels, half, value
    split = values.reshape(stages, -1, ROWS, 2, 2, 8)
    ordered = np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2, 5))
    # a word has four fours of two rows that are 8 rows apart
    bits = (pairs[..., 0] | pairs[..., 1] << 2).reshape(stages, channels // ROWS, 4, 2, 8, 4, 4)
    halves = (bits << 4 * np.arange(4)).sum(axis=-1).astype(np.uint32)
    # axes: stage, 64 channels, warp, row % 8, lane % 4, which is 2 * step + half
    words = halves[:, :, :, 0] | halves[:, :, :, 1] << np.uint32(16)
    return ordered, np.ascontiguousarray(words)
