"""The division of a layer among the work-groups of direct_sparse_pixels, and time estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gossamer.device.limits import Limits
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gpu import BEGIN, COPIED, LaunchWork, groups_per_unit

ROWS = 16
"""Number of output channels of a tensor core instruction's tile."""
MOST_IMAGES = 8
"""Maximum batch size. Larger batches have enough images for algorithms in which each work-item
computes one image."""
DEPTH = 16
"""Number of columns of the weights that one step multiplies."""
_FRAGMENT = 8
"""Number of pixels of a tensor core instruction's tile."""
_BATCH = 16
"""Maximum number of inputs that a work-item loads at once."""
_LARGEST_GRID = 65535
"""Maximum number of work-groups of a grid along y and along z."""
_SIMILAR, _LONGEST = 0.85, 1.3
"""Two ratios of numbers of columns. A block of similar rows has _SIMILAR times as many columns as a
block of random rows, and the block with the most columns has _LONGEST times as many as the mean.
Both ratios are typical of pruned layers of AlexNet, ResNet-50 and GoogLeNet, and do not depend on
the device."""


@dataclass(frozen=True)
class PixelTile:
    """The sizes of a work-group's tile, and the division of the tile among warps.

    tiles: number of tiles of 16 output channels in a block.
    blocks: number of blocks of a work-group.
    warps_p: number of warps that share a tile of pixels.
    parts: number of warps that share the columns of a block.
    fragments: number of groups of eight neighbouring pixels that a warp computes.
    cluster: number of work-groups that share the input channels.
    """

    tiles: int
    blocks: int
    warps_p: int
    parts: int
    fragments: int
    cluster: int

    @property
    def rows(self) -> int:
        """Output channels of a block."""
        return ROWS * self.tiles

    @property
    def work_group(self) -> int:
        """Work-items of a work-group."""
        return 32 * self.blocks * self.warps_p * self.parts

    @property
    def holders(self) -> int:
        """Number of warps of a cluster with partial sums of the same results."""
        return self.cluster * self.parts

    @property
    def sum_fragments(self) -> int:
        """Number of fragments of sums that each work-group of a cluster adds up.

        A fragment has 16 rows and 8 pixels.
        """
        return self.blocks * self.tiles * self.warps_p * self.fragments // self.cluster

    @property
    def partial_bytes(self) -> int:
        """Bytes of shared memory for the partial sums that a work-group adds up."""
        return 512 * self.holders * self.sum_fragments


@dataclass(frozen=True)
class PixelTiling:
    """A problem divided into tiles.

    A line is a row of pixels. A tile has `lines` lines, each of `width` fragments. A fragment is
    eight neighbouring pixels of a line.

    Shared memory holds a work-group's channels in vectors of eight inputs, with a copy of each
    channel for each horizontal tap. Within a copy, lines are grouped by their residue, which is
    their index modulo the vertical stride.

    problem: the convolution.
    shape: the sizes of a work-group's tile.
    precision: "fp16" or "tf32".
    """

    problem: Conv2dProblem
    shape: PixelTile
    precision: str

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector: eight inputs."""
        return _FRAGMENT * (2 if self.precision == "fp16" else 4)

    @property
    def banks(self) -> int:
        """Number of columns that one load reads without bank conflicts.

        The vectors of these columns must be in different banks.
        """
        return 128 // self.vector_bytes

    @cached_property
    def width(self) -> int:
        """Number of fragments of a tile's line."""
        fragments = -(-self.problem.out_width // _FRAGMENT)
        return -(-fragments // -(-fragments // self._capacity))

    @cached_property
    def lines(self) -> int:
        """Number of output lines of a tile."""
        most = max(1, self._capacity // self.width)
        return -(-self.problem.out_height // -(-self.problem.out_height // most))

    @property
    def _capacity(self) -> int:
        """Maximum number of fragments of a tile."""
        return self.shape.warps_p * self.shape.fragments

    @property
    def tiles_across(self) -> int:
        """Number of tiles along x."""
        return -(-self.problem.out_width // (_FRAGMENT * self.width))

    @property
    def tiles_down(self) -> int:
        """Number of tiles along y."""
        return -(-self.problem.out_height // self.lines)

    @property
    def channels(self) -> int:
        """Number of input channels of a work-group."""
        return -(-self.problem.group_channels // self.shape.cluster)

    @property
    def blocks(self) -> int:
        """Number of blocks of a group of the convolution.

        The number includes empty blocks that pad the last work-group.
        """
        blocks = -(-self.problem.group_out_channels // self.shape.rows)
        return -(-blocks // self.shape.blocks) * self.shape.blocks

    @property
    def span(self) -> tuple[int, int]:
        """Numbers of input lines and columns that the windows of a tile cover."""
        return (self.problem.window(0, self.lines),
                self.problem.window(1, _FRAGMENT * self.width))

    @property
    def columns(self) -> int:
        """Maximum number of inputs that a tile reads in one line."""
        return min(self.span[1], self.problem.width)

    @property
    def items(self) -> int:
        """Maximum number of inputs that a tile reads in one channel."""
        return min(self.span[0], self.problem.height) * self.columns

    @property
    def at_once(self) -> int:
        """Number of channels that a work-group copies to shared memory at once."""
        return max(1, self.shape.work_group // self.items)

    @property
    def batches(self) -> int:
        """Number of batches of loads in which a work-item copies its channels."""
        return -(-self.channels // (self.at_once * _BATCH))

    @property
    def batch(self) -> int:
        """Number of inputs that a work-item loads in one batch.

        Each input comes from a different channel. A work-item waits for one batch before it loads
        the next.
        """
        return -(-self.channels // (self.at_once * self.batches))

    @property
    def residue_vectors(self) -> int:
        """Number of vectors of all lines with one residue, within one copy."""
        return -(-self.span[0] // self.problem.stride[0]) * self.width

    @property
    def tap_vectors(self) -> int:
        """Number of vectors of one copy.

        The number is odd, so that the columns of the weights are spread over the banks.
        """
        return self.problem.stride[0] * self.residue_vectors | 1

    @property
    def channel_vectors(self) -> int:
        """Number of vectors of a channel.

        The number is odd, so that the columns of the weights are spread over the banks.
        """
        return self.problem.kernel[1] * self.tap_vectors | 1

    @property
    def vectors(self) -> int:
        """Number of vectors in shared memory.

        The number includes channels that pad the last batch of loads, and vectors after the last
        tap. Warps without pixels read the vectors after the last tap.
        """
        channels = self.at_once * self.batch * self.batches
        return channels * self.channel_vectors + self._capacity

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group."""
        channel_numbers = 4 * self.shape.blocks * self.shape.rows
        barrier = 8 if self.shape.cluster > 1 else 0
        return (self.vector_bytes * self.vectors + self.shape.partial_bytes + channel_numbers
                + barrier)

    def why_unfit(self, limits: Limits) -> str | None:
        """Return why the device cannot run MOST_IMAGES images; None if it can."""
        if self.shared_bytes > limits.shared_bytes_opt_in:
            return (f"needs {self.shared_bytes} bytes of shared memory per work-group, the device "
                    f"has {limits.shared_bytes_opt_in}")
        if max(self.tiles_down, MOST_IMAGES * self.tiles_across) > _LARGEST_GRID:
            return (f"{self.tiles_across} x {self.tiles_down} tiles of pixels need more than "
                    f"{_LARGEST_GRID} work-groups along one dimension of the grid")
        return None

    def first_vectors(self, channel: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Return the index of each column's vector for the first fragment of a tile.

        A column of the weights is multiplied by the eight inputs of its vector.
        """
        stride = self.problem.stride[0]
        line = row * self.problem.dilation[0]
        return (channel * self.channel_vectors + column * self.tap_vectors
                + line % stride * self.residue_vectors + line // stride * self.width)


def expected_us(divided: PixelTiling, limits: Limits) -> float:
    """Return the expected time of the kernel in microseconds.

    A work-group copies its inputs from the L2 cache to shared memory, multiplies its steps of 16
    columns, and adds up its sums. The products take the longer of two times. One is the latencies
    of all steps of the warp with the most columns. The other is the time of the products of all
    work-groups of a multiprocessor at full throughput.
    """
    problem, shape = divided.problem, divided.shape
    density = problem.weights_info.density
    groups = (shape.cluster * divided.blocks // shape.blocks * problem.groups
              * problem.batch * divided.tiles_down * divided.tiles_across)
    chunks = -(-divided.items // shape.work_group)
    inputs = shape.work_group / 32 * divided.batch * divided.batches * chunks
    # each input is stored once for each horizontal tap; sums are stored, read and added up
    copied = inputs * (1 + problem.kernel[1]) + shape.partial_bytes / COPIED + (
        25.0 * shape.sum_fragments)
    # see _SIMILAR and _LONGEST
    columns = divided.channels * problem.taps * min(
        _SIMILAR * (1 - (1 - density) ** shape.rows), 1)
    longest = math.ceil((_LONGEST * columns / DEPTH + 0.5) / shape.parts)
    # TF32 needs two instructions and four loads where float16 needs one instruction and two loads
    factor = 2 if divided.precision == "tf32" else 1
    warps = shape.blocks * shape.warps_p
    multiplied = warps * (columns / DEPTH + 0.5) * factor * (
        2.6 * shape.fragments + 4 * shape.tiles + 1)
    waited = longest * (80 + factor * (2 + 4 * shape.tiles) * shape.fragments)
    begin = BEGIN + 700 * (divided.batches * chunks - 1) + 400 * (shape.cluster > 1)
    at_once = groups_per_unit(divided.shared_bytes, limits, 512 // shape.work_group)
    return LaunchWork(groups, at_once, busy=copied + multiplied, waited=copied + waited,
                      begin=begin).expected_us(limits)
