"""shifted_sparse_mma: convolution in float16 with 2:4 sparse weights.

Each tap is one product on sparse tensor cores. All products of a tile read the same pixels in
shared memory. The comments at the top of runs.h and of shifted_sparse.cu explain places, parts,
stages and runs.

Source of 2:4 sparsity: A. Mishra et al., "Accelerating sparse deep neural networks", arXiv
2104.08378, 2021. Weights with other patterns are supported, too: if more than two of four
neighbouring weights are nonzero, a second product adds the remaining ones.
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
"""Maximum ratio of the number of products to the number that purely 2:4 sparse weights would need.
With a larger ratio, the algorithm is not a candidate, because a dense product takes only as long as
two 2:4 sparse products."""

SLICE = 64
"""Number of input channels of a slice. A slice is copied at once, and each stage multiplies one
slice."""
ROWS = 64
"""Output channels of a product. A product is one wgmma instruction of a warpgroup and sums over 32
input channels."""
STAGE_HEADER = 16
"""Bytes of a stage's header, which holds the rows and columns of places by which its tap is
shifted."""


@dataclass(frozen=True)
class SparseTile(RunTile):
    """The sizes of a work-group's tile.

    places: number of places of a product, a multiple of 32.
    channel_warpgroups: number of warpgroups that compute different channels of the same places.
    place_warpgroups: number of warpgroups that compute different places of the same channels.
    run_slots: number of slots for runs.
    weight_slots: number of slots for stages.
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
        """Number of warpgroups that multiply."""
        return self.channel_warpgroups * self.place_warpgroups

    @property
    def part(self) -> int:
        return ROWS * self.channel_warpgroups

    @property
    def tile_places(self) -> int:
        return self.places * self.place_warpgroups

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: values, their positions in groups of four, and the header."""
        return (ROWS * SLICE + ROWS * SLICE // 8) * self.channel_warpgroups + STAGE_HEADER

    def shared_bytes(self, problem: Conv2dProblem) -> int:
        # after the stages, shared memory holds the results to transpose, and an index per place
        return (super().shared_bytes(problem)
                + self.warpgroups * self.places * (2 * ROWS + _INDEX_BYTES))

    def multiply_cycles(self, problem: Conv2dProblem, places: int) -> float:
        tiles = -(-places // self.tile_places)
        return tiles * self.expected_stages(problem) * (_STAGE + _STAGE_PLACE * self.places)

    def expected_stages(self, problem: Conv2dProblem) -> float:
        """Return the expected number of stages of a part of the output channels.

        The estimate assumes that the groups of four weights with more than two nonzeros are at
        random positions.
        """
        fours = self.part * SLICE // 4
        second = 1.0 - (1.0 - min(1.0, problem.weights_info.dense_groups)) ** fours
        return self.stages(problem) * (1.0 + second)


_INDEX_BYTES = 4
"""Bytes of a place's index in the output. The results of the place are stored at this index."""
_WARPGROUPS = ((2, 1), (1, 2))
"""Numbers of warpgroups along channels and along places in the candidate tiles."""
_PLACES = (256, 224, 192, 160, 128, 96, 64)
"""Numbers of places of a product in the candidate tiles."""
_MOST_TILES = 4
"""Maximum number of candidate tiles of a layer."""
_STAGE, _STAGE_PLACE = 200, 2.1
"""Cycles of a stage on an H200: a constant number, and a number for each place of a product."""


class ShiftedSparseMma(ShiftedProduct):
    """Shifted products on tensor cores with 2:4 sparse weights.

    Some zero weights next to nonzero weights are multiplied: a NaN or infinity in the input may
    reach an output that has a zero weight for this input.
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
            return (f"{problem.weights_info.dense_groups:.2%} of the groups of four neighbouring "
                    "input channels have more than two nonzeros, so most weights would be "
                    "multiplied twice")
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
    """Return the tile with the first pair of slot numbers (runs, stages) that fits, or None."""
    tiles = (SparseTile(places, across, along, *slots) for slots in slots_of(problem) if slots[1])
    return next((tile for tile in tiles
                 if tile.shared_bytes(problem) <= limits.shared_bytes_opt_in), None)


_FOURS = SLICE // 4
"""Number of groups of four neighbouring input channels in a slice."""
_RUN_ENDS = np.uint32(1 << 31)
"""The bit of a stage's first word that marks the last stage of a run."""


def _pairs() -> np.ndarray:
    """Return the two stored positions for each mask of four weights, (16, 2).

    Positions are in ascending order. The entries of masks with more than two bits are never read.
    """
    pairs = np.zeros((16, 2), np.int64)
    for mask in range(16):
        positions = [position for position in range(4) if mask >> position & 1][:2]
        # tensor cores require two different positions, even if there are fewer nonzeros
        others = [position for position in range(4) if position not in positions]
        pairs[mask] = sorted((positions + others)[:2])
    return pairs


_PAIRS = _pairs()


def packed_stages(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem, tile: SparseTile
                  ) -> np.ndarray:
    """Return the stages as bytes in the shape (stages of a part, parts, bytes of a stage).

    Parts with fewer stages than others are padded with zero bytes. The kernel does not read these
    bytes.
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
    """Return the weights in the shape (parts, stages, output channels, fours, 4 input channels).

    Weights of padding channels are zero. Stages are in the order of `stage_order`.
    """
    parts, slices = tile.parts(problem), tile.slices(problem)
    padded = np.zeros((parts * tile.part, slices * SLICE, *problem.kernel), np.float32)
    padded[:problem.out_channels, :problem.channels] = arrays["weight"]
    _, part_slice, row, column = stage_order(problem, slices)
    split = padded.reshape(parts, tile.part, slices, _FOURS, 4, *problem.kernel)
    return split.transpose(0, 2, 5, 6, 1, 3, 4)[:, part_slice, row, column]


def _passes(weight: np.ndarray) -> np.ndarray:
    """Return which weights each of the two passes stores: (2, parts, stages, ...).

    In each group of four, the first pass stores the first two nonzeros. The second pass stores the
    others.
    """
    nonzero = weight != 0
    number = np.cumsum(nonzero, axis=-1)
    return np.stack([nonzero & (number <= 2), nonzero & (number > 2)])


def _present(passes: np.ndarray, run: np.ndarray) -> np.ndarray:
    """Return which stages of each pass exist: (parts, stages, 2).

    A stage exists if it stores a weight. In addition, the first stage of a run exists if no other
    stage of the run does, because every run that is copied has to be read.

    run: the run of each stage, in ascending order.
    """
    present: np.ndarray = np.any(passes, axis=(-1, -2, -3)).transpose(1, 2, 0).copy()
    first = np.unique(run, return_index=True)[1]
    present[:, first, 0] |= ~np.logical_or.reduceat(np.any(present, axis=2), first, axis=1)
    return present


def _values_and_indices(weight: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the stored values of stages, and the words with the positions of these values.

    weight: (stages, output channels, fours, 4).
    kept: which of these weights are stored.
    """
    stages, channels = weight.shape[:2]
    pairs = _PAIRS[(kept << np.arange(4)).sum(axis=-1)]
    values = rounded(np.take_along_axis(np.where(kept, weight, 0), pairs, axis=-1))
    # axes: stage, 64 channels, channel, step of 32 input channels, half, value
    split = values.reshape(stages, -1, ROWS, 2, 2, 8)
    ordered = np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2, 5))
    # a word holds the positions of four groups of weights for each of two rows that are 8 apart
    bits = (pairs[..., 0] | pairs[..., 1] << 2).reshape(stages, channels // ROWS, 4, 2, 8, 4, 4)
    halves = (bits << 4 * np.arange(4)).sum(axis=-1).astype(np.uint32)
    # axes: stage, 64 channels, warp, row % 8, lane % 4 (equal to 2 * step + half)
    words = halves[:, :, :, 0] | halves[:, :, :, 1] << np.uint32(16)
    return ordered, np.ascontiguousarray(words)
