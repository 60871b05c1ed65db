"""Pruned weights in CSR, and in tables of blocks of output channels with shared columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import TensorSpec

if TYPE_CHECKING:
    from scipy import sparse

DENSEST = 0.75
"""Maximum density at which sparse algorithms are tried. By a rule of thumb, dense algorithms are
faster at larger densities on any device."""
_CANDIDATES = 512
"""Maximum number of channels among which the next channel of a block is searched: the remaining
channels with the most nonzero weights. The limit bounds the time for layers with many channels."""
_UNROLLED = 4
"""Number of columns that a kernel multiplies per loop iteration."""
_MULTIPLE = 8
"""The number of blocks is rounded up to a multiple of this number, the maximum number of blocks of
a work-group."""


def too_dense(weights: WeightsInfo) -> str | None:
    """Return why algorithms that skip zeros are not tried; None if they are tried."""
    if weights.density > DENSEST:
        return f"density {weights.density:.2f}: fewer than a quarter of the weights are zero"
    return None


def cannot_index(problem: Conv2dProblem, device: Device) -> str | None:
    """Return why kernels with 32-bit offsets cannot compute a pruned problem; None if they can."""
    if (reason := cannot_compile(problem, device)) is not None:
        return reason
    if (reason := too_dense(problem.weights_info)) is not None:
        return reason
    if math.prod(padded_input(problem.inputs[0], problem).stored_shape) >= 2**31:
        return "the padded input has 2^31 elements or more: indices are 32-bit"
    if problem.out_channels * problem.depth >= 2**31:
        return "there are 2^31 weights or more: indices are 32-bit"
    return None


def csr(arrays: Mapping[str, np.ndarray]) -> sparse.csr_array:
    """Return the weights as a float32 CSR matrix (M, C/groups * R * S); NaN counts as nonzero."""
    # importing SciPy takes long, and only processes with pruned layers need it
    from scipy import sparse

    weight = np.asarray(arrays["weight"], np.float32)
    return sparse.csr_array(weight.reshape(len(weight), -1))


def padded_input(x: TensorSpec, problem: Conv2dProblem) -> TensorSpec:
    """Return the spec of the input with its padding stored."""
    return x.with_format(border=problem.pads)


def padded_bytes(x: TensorSpec, problem: Conv2dProblem) -> int:
    """Return the bytes of the padded input; 0 if x needs no padding."""
    return padded_input(x, problem).nbytes if any(problem.pads) else 0


@dataclass(frozen=True)
class Table:
    """Blocks of output channels, the longest first.

    starts: (blocks + 1) index of each block's first column, divided by 4; the last entry is the end
    of the last block.
    channels: (blocks, rows) output channels of each block; -1 in place of missing channels.
    columns: (all columns + 4) index c*R*S + r*S + s of each column, where (r, s) is the tap and c,
    from 0 to C - 1, is the input channel among the channels of all groups. The number of columns of
    a block is a multiple of 4. Four more columns follow the last block, because kernels read ahead.
    values: (all columns + 4, rows) weights in float32.
    """

    starts: np.ndarray
    channels: np.ndarray
    columns: np.ndarray
    values: np.ndarray


def table(weight: np.ndarray, groups: int, rows: int) -> Table:
    """Return the table of (M, C/groups, R, S) weights.

    Empty blocks pad the number of blocks to a multiple of 8.
    """
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
            all_columns[span] = columns[-1]  # columns that pad the last four have zero weights
            all_columns[span][:len(columns)] = columns
            all_columns[span] += members[0] // per_group * matrix.shape[1]
            values[span][:len(columns), :len(members)] = matrix[members][:, columns].T
    return Table(starts.astype(np.int32), channels, all_columns, values)


def cluster(mask: np.ndarray, rows: int) -> list[list[int]]:
    """Group the rows of a mask (M, K) into blocks of similar rows.

    Blocks have `rows` rows; the last block may have fewer. A block starts with the remaining row
    that has the most true elements. Rows are then added one at a time: the next row is the
    remaining row with the highest cosine similarity to the union of the block's rows. If several
    rows are equally similar, the first of them is added.
    """
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
    """Return each row's booleans as bits of 64-bit words."""
    padded = np.pad(mask, ((0, 0), (0, -mask.shape[1] % 64)))
    return np.packbits(padded, axis=1).view(np.uint64)
