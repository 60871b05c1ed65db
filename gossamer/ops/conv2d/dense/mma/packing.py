"""Packs weights, and makes the tables of K, for convolutions as matrix products on tensor cores.

K is the axis over which the product sums: for each tap (r, s) of a window, the input channels of a
group. Eight pieces of 16 bytes along K make a line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gossamer.ops.conv2d.dense.implicit_im2col import k_table
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.common.tensor_cores import rounded_to_tf32
from gossamer.tensor import TensorSpec

PIECES = 8
"""Pieces of 16 bytes in a line."""
_OUTSIDE = 0x7fff
"""A row that is outside of every image."""


def vector_of(precision: str) -> int:
    """Returns the number of values in a piece of 16 bytes."""
    return 8 if precision == "fp16" else 4


def bytes_at_once(problem: Conv2dProblem, precision: str) -> int:
    """Returns the largest number of bytes that can be copied at once from every pixel in NHWC: the
    largest divisor of 16 (the bytes of a piece) that also divides the bytes of a group's
    channels."""
    channels = problem.channels // problem.groups
    return math.gcd(16, channels * (2 if precision == "fp16" else 4))


def stored_at_once(problem: Conv2dProblem, precision: str) -> int:
    """Returns the number of adjacent output channels that a lane stores at once: 8 (in float16), 4,
    2 or 1."""
    return math.gcd(vector_of(precision), problem.out_channels // problem.groups)


def stages_of(problem: Conv2dProblem, precision: str) -> int:
    """Returns the number of stages: lines of 128 bytes along K."""
    return -(-problem.depth // (PIECES * vector_of(precision)))


def lines_of(problem: Conv2dProblem, precision: str) -> int:
    """Returns the number of lines of a stage: the output channels of a group, rounded up to a
    multiple of 4 * vector_of(precision)."""
    block = 4 * vector_of(precision)
    return -(-(problem.out_channels // problem.groups) // block) * block


def packed_lines(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem,
                 precision: str) -> np.ndarray:
    """Returns the weights as (groups, stages, lines, values of a line).

    Where a lane stores 4 output channels or more at once, the lines of a block of 4 * vector output
    channels are ordered so that each lane of a row of the tensor cores' results has adjacent
    channels: line 8 f + 2 q + j of the block belongs to channel vector * q + 2 f + j, where f is
    a fragment, q one of the row's four lanes, and j is 0 or 1. Otherwise lines are in the order of
    channels: each of the row's four lanes then has a pair of adjacent channels, and the next pair
    belongs to the next lane. Piece p of line l is stored as piece p ^ l % 8 of the line.
    """
    vector = vector_of(precision)
    groups, stages = problem.groups, stages_of(problem, precision)
    lines = lines_of(problem, precision)
    weight = np.asarray(arrays["weight"], np.float32)
    per_group = problem.out_channels // groups
    rows = weight.reshape(groups, per_group, -1, *problem.kernel).transpose(0, 1, 3, 4, 2)
    padded = np.zeros((groups, lines, stages * PIECES * vector), np.float32)
    padded[:, :per_group, :problem.depth] = rows.reshape(groups, per_group, -1)
    # axes: group, block, lane % 4, fragment, value of a pair, stage, piece, value
    order = (0, 5, 1, 3, 2, 4, 6, 7)
    split = padded.reshape(groups, -1, 4, vector // 2, 2, stages, PIECES, vector)
    if stored_at_once(problem, precision) <= 2:
        # axes: group, block, fragment, lane % 4, value of a pair, stage, piece, value
        order = (0, 5, 1, 2, 3, 4, 6, 7)
        split = padded.reshape(groups, -1, vector // 2, 4, 2, stages, PIECES, vector)
    ordered = split.transpose(order).reshape(groups, stages, -1, PIECES, PIECES, vector)
    eighth, piece = np.meshgrid(np.arange(PIECES), np.arange(PIECES), indexing="ij")
    swizzled = ordered[:, :, :, eighth, piece ^ eighth].reshape(groups, stages, lines, -1)
    if precision == "tf32":
        return rounded_to_tf32(np.ascontiguousarray(swizzled))
    with np.errstate(over="ignore"):
        return swizzled.astype(np.float16)


def table_of_lines(problem: Conv2dProblem, x: TensorSpec, precision: str, values: int
                   ) -> np.ndarray:
    """Returns the table of K: for every `values`-th k its offset in x from a window's first pixel,
    and its position in the window as row << 16 | column. Entries after the last k have a row
    outside of every image.

    values: values of a pixel that are copied at once.
    """
    vector = vector_of(precision)
    table = np.zeros((stages_of(problem, precision) * PIECES * vector, 2), np.int32)
    table[:, 1] = _OUTSIDE << 16
    table[:problem.depth] = k_table(problem, x, channels_last=True)
    return table[::values]
