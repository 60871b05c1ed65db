"""Sparse weights as tables: blocks of output channels that share the columns of their weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_CANDIDATES = 512
"""Channels, of those left the ones with the most weights, among which a block's next is sought:
bounds the time for many channels."""

_UNROLLED = 4
"""Columns that a kernel takes at once."""

_MULTIPLE = 8
"""Of blocks: the most that share a work-group."""


@dataclass(frozen=True)
class Table:
    """Blocks of output channels, the longest first.

    starts: (blocks + 1) where a block's columns start, in fours.
    channels: (blocks, rows) output channels; -1 where a block has fewer.
    columns: (all columns + 4) of each column its place among the weights of an output channel of
    the ungrouped convolution, c*R*S + r*S + s with c from 0 to C - 1. Each block's number is a
    multiple of 4; four more stand behind the last, to be read ahead.
    values: (all columns + 4, rows) float32.
    """

    starts: np.ndarray
    channels: np.ndarray
    columns: np.ndarray
    values: np.ndarray


def table(weight: np.ndarray, groups: int, rows: int) -> Table:
    """The table of (M, C/groups, R, S) weights, filled up to a multiple of 8 blocks with ones
    that have no channels."""
    weight = np.asarray(weight, np.float32)
    matrix = weight.reshape(len(weight), -1)
    per_group = len(matrix) // groups
    found: list[tuple[list[int], np.ndarray]] = []
    for first in range(0, len(matrix), per_group):
        mask = matrix[first:first + per_group] != 0
        for members in cluster(mask, rows):
            found.append(([first + each for each in members],
                          np.flatnonzero(mask[members].any(axis=0))))
    found.sort(key=lambda each: -len(each[1]))
    count = -(-len(found) // _MULTIPLE) * _MULTIPLE
    lengths = np.zeros(count, np.int64)
    lengths[:len(found)] = [-(-len(columns) // _UNROLLED) for _, columns in found]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    channels = np.full((count, rows), -1, np.int32)
    all_columns = np.zeros(int(starts[-1] + 1) * _UNROLLED, np.int32)
    values = np.zeros((len(all_columns), rows), np.float32)
    for block, (members, columns) in enumerate(found):
        channels[block, :len(members)] = members
        if len(columns):
            here = slice(starts[block] * _UNROLLED, starts[block + 1] * _UNROLLED)
            all_columns[here] = columns[-1]  # with zeros for weights
            all_columns[here][:len(columns)] = columns
            all_columns[here] += members[0] // per_group * matrix.shape[1]
            values[here][:len(columns), :len(members)] = matrix[members][:, columns].T
    return Table(starts.astype(np.int32), channels, all_columns, values)


def cluster(mask: np.ndarray, rows: int) -> list[list[int]]:
    """The rows of a boolean (M, K) mask in blocks of so many (the last may have fewer), alike in
    where they are true: a block starts with the row that has the most of those left, and takes
    the one with the highest cosine to what it covers, over and over; ties go to the first."""
    counts = mask.sum(axis=1)
    left = np.argsort(-counts, kind="stable")
    if rows == 1:
        return [[int(row)] for row in left]
    bits = _packed(mask)
    norms = np.sqrt(np.maximum(counts, 1))
    blocks = []
    while len(left):
        members, left = [int(left[0])], left[1:]
        covered = bits[members[0]].copy()
        while len(members) < rows and len(left):
            near = left[:_CANDIDATES]
            shared = np.bitwise_count(bits[near] & covered).sum(axis=1, dtype=np.int64)
            best = int(np.argmax(shared / norms[near]))
            members.append(int(near[best]))
            covered |= bits[near[best]]
            left = np.delete(left, best)
        blocks.append(members)
    return blocks


def _packed(mask: np.ndarray) -> np.ndarray:
    """Each row's booleans as bits of 64-bit words."""
    padded = np.pad(mask, ((0, 0), (0, -mask.shape[1] % 64)))
    return np.packbits(padded, axis=1).view(np.uint64)
