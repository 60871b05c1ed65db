"""Packs weights for tensor cores that read two of each four neighbours along the input channels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.places import Places, stage_order
from gossamer.ops.conv2d.shifted.shifted_sparse_tiling import (
    ROWS,
    SLICE,
    STAGE_HEADER,
    SparseTile,
    slices_of,
)

_FOURS = SLICE // 4
"""Fours of neighbouring input channels in a slice."""
_RUN_ENDS = np.uint32(1 << 31)
"""The bit of a stage's first word that says that its run ends with this stage."""


def _pairs() -> np.ndarray:
    """Returns, for each of the 16 sets of places that a four may have nonzeros at, the two places
    that are stored, in ascending order. Sets of more than two places have no entry that is read."""
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
    """Returns the stages as bytes (stages of a part, parts, bytes of a stage). Parts with fewer
    stages than others end with zeros, which are not read."""
    weight = _fours_of(arrays, problem, tile)
    run, _, row, column = stage_order(problem, slices_of(problem))
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
    """Returns the number of stages of each part."""
    run = stage_order(problem, slices_of(problem))[0]
    return _counts(_present(_passes(_fours_of(arrays, problem, tile)), run))


def _counts(present: np.ndarray) -> np.ndarray:
    return present.sum(axis=(1, 2)).astype(np.int32)


def _fours_of(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem, tile: SparseTile
              ) -> np.ndarray:
    """Returns the weights as (parts, stages, output channels, fours, 4 input channels), with zeros
    for channels of padding, and stages in the order of `stage_order`."""
    parts, slices = tile.parts(problem), slices_of(problem)
    padded = np.zeros((parts * tile.part, slices * SLICE, *problem.kernel), np.float32)
    padded[:problem.out_channels, :problem.channels] = arrays["weight"]
    _, part_slice, row, column = stage_order(problem, slices)
    split = padded.reshape(parts, tile.part, slices, _FOURS, 4, *problem.kernel)
    return split.transpose(0, 2, 5, 6, 1, 3, 4)[:, part_slice, row, column]


def _passes(weight: np.ndarray) -> np.ndarray:
    """Returns which weights the first and the second stage of a tap and a slice store: the first
    two nonzeros of each four, and the others, as (2, parts, stages, ...)."""
    nonzero = weight != 0
    number = np.cumsum(nonzero, axis=-1)
    return np.stack([nonzero & (number <= 2), nonzero & (number > 2)])


def _present(passes: np.ndarray, run: np.ndarray) -> np.ndarray:
    """Returns which stages there are, as (parts, stages, 2): those that store a weight. A run has
    at least one stage, as it has to be read. run: the run of each stage, in ascending order."""
    present: np.ndarray = np.any(passes, axis=(-1, -2, -3)).transpose(1, 2, 0).copy()
    first = np.unique(run, return_index=True)[1]
    present[:, first, 0] |= ~np.logical_or.reduceat(np.any(present, axis=2), first, axis=1)
    return present


def _values_and_indices(weight: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the stored values and the words of indices of stages, from weights as (stages, output
    channels, fours, 4) and from which of these are stored."""
    stages, channels = weight.shape[:2]
    pairs = _PAIRS[(kept << np.arange(4)).sum(axis=-1)]
    with np.errstate(over="ignore"):
        values = np.take_along_axis(np.where(kept, weight, 0), pairs, axis=-1).astype(np.float16)
    # axes: stage, 64 channels, channel, step of 32 input channels, half, value
    split = values.reshape(stages, -1, ROWS, 2, 2, 8)
    ordered = np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2, 5))
    # a word has four fours of two rows that are 8 rows apart
    bits = (pairs[..., 0] | pairs[..., 1] << 2).reshape(stages, channels // ROWS, 4, 2, 8, 4, 4)
    halves = (bits << 4 * np.arange(4)).sum(axis=-1).astype(np.uint32)
    # axes: stage, 64 channels, warp, row % 8, lane % 4, which is 2 * step + half
    words = halves[:, :, :, 0] | halves[:, :, :, 1] << np.uint32(16)
    return ordered, np.ascontiguousarray(words)
