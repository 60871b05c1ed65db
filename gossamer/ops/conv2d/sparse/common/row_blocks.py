"""Stores sparse weights as tables: blocks of output channels that share their columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_CANDIDATES = 512
"""A block's next channel is chosen among at most this number of the remaining channels: the
channels with the most nonzero weights. The limit bounds the time for layers with many channels."""

_UNROLLED = 4
"""Columns that a kernel multiplies in an iteration of its loop."""

_MULTIPLE = 8
"""The number of blocks is rounded up to a multiple of this number, which is the largest number of
blocks of a work-group."""


@dataclass(frozen=True)
class Table:
    """Blocks of output channels, the longest first.

    starts: (blocks + 1) indices of columns, divided by 4. For each block there is the index of its
    first column; the last entry is the end of the last block.
    channels: (blocks, rows) output channels; -1 where a block has fewer channels.
    columns: (all columns + 4) index of each column among the weights of an output channel of the
    ungrouped convolution, c*R*S + r*S + s with c from 0 to C - 1. The number of columns of a block
    is a multiple of 4. Four more columns follow the last block, because kernels read ahead.
    values: (all columns + 4, rows) weights in float32.
    """

    starts: np.ndarray
    channels: np.ndarray
    columns: np.ndarray
    values: np.ndarray


def table(weight: np.ndarray, groups: int, rows: int) -> Table:
    """Returns the table of (M, C/groups, R, S) weights. Blocks without channels fill the number of
    blocks up to a multiple of 8."""
    weight = np.asarray(weight, np.float32)
    matrix = weight.reshape(len(weight), -1)
    per_group = len(matrix) // groups
    blocks: list[tuple[list[int], np.ndarray]] = []
    for first in range(0, len(matrix), per_group):
        mask = matrix[first:first + per_group] != 0
        for members in cluster(mask, rows):
            blocks.append(([first + row for row in members],
                           np.flatnonzero(mask[members].any(axis=0))))
    blocks.sort(key=lambda block: -len(block[1]))
    count = -(-len(blocks) // _MULTIPLE) * _MULTIPLE
    lengths = np.zeros(count, np.int64)
    lengths[:len(blocks)] = [-(-len(columns) // _UNROLLED) for _, columns in blocks]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    channels = np.full((count, rows), -1, np.int32)
    all_columns = np.zeros(int(starts[-1] + 1) * _UNROLLED, np.int32)
    values = np.zeros((len(all_columns), rows), np.float32)
    for block, (members, columns) in enumerate(blocks):
        channels[block, :len(members)] = members
        if len(columns):
            span = slice(starts[block] * _UNROLLED, starts[block + 1] * _UNROLLED)
            all_columns[span] = columns[-1]  # columns that fill up the last four have zero weights
            all_columns[span][:len(columns)] = columns
            all_columns[span] += members[0] // per_group * matrix.shape[1]
            values[span][:len(columns), :len(members)] = matrix[members][:, columns].T
    return Table(starts.astype(np.int32), channels, all_columns, values)


def cluster(mask: np.ndarray, rows: int) -> list[list[int]]:
    """Groups the rows of a boolean mask (M, K) into blocks of `rows` rows that are true in similar
    columns; the last block may have fewer rows. A block starts with the remaining row that is true
    most often. The block then repeatedly takes the row with the highest cosine similarity to the
    columns that the block covers; of equally similar rows it takes the first."""
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
            nearest = left[:_CANDIDATES]
            shared = np.bitwise_count(bits[nearest] & covered).sum(axis=1, dtype=np.int64)
            best = int(np.argmax(shared / norms[nearest]))
            members.append(int(nearest[best]))
            covered |= bits[nearest[best]]
            left = np.delete(left, best)
        blocks.append(members)
    return blocks


def _packed(mask: np.ndarray) -> np.ndarray:
    """Returns each row's booleans as bits of 64-bit words."""
    padded = np.pad(mask, ((0, 0), (0, -mask.shape[1] % 64)))
    return np.packbits(padded, axis=1).view(np.uint64)
