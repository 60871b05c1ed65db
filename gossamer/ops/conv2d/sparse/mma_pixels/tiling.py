"""How direct_sparse_pixels divides a layer into groups, and what they are expected to take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gossamer.device.base import Limits
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.common.tensor_cores import ROWS

MOST_IMAGES = 8
"""From eight images on they fill the tensor cores' tile themselves, as in direct_sparse_mma."""
DEPTH = 16
"""Columns of a step."""
_OCTET = 8
"""Pixels of an instruction's tile."""
_BATCH = 16
"""Inputs that a work-item asks for at once, at most."""
_LARGEST_GRID = 65535
"""Groups along y and z."""
_PART = 16
"""Multiprocessors among which clusters are formed; what is more in such a part is left over."""
_ALIKE, _LONGEST = 0.85, 1.3
"""Shares of columns in blocks of alike rows of pruned layers, over those of any rows, and of the
longest of these lists over the mean."""


@dataclass(frozen=True)
class PixelTile:
    """tiles: of 16 output channels in a block. blocks: of a group. sides: warps that share a tile
    of pixels. parts: warps that share a block's columns. octets: of pixels, of a warp. cluster:
    groups that share the channels."""

    tiles: int
    blocks: int
    sides: int
    parts: int
    octets: int
    cluster: int

    @property
    def rows(self) -> int:
        """Output channels of a block."""
        return ROWS * self.tiles

    @property
    def work_group(self) -> int:
        return 32 * self.blocks * self.sides * self.parts

    @property
    def holders(self) -> int:
        """Warps that have sums of the same results."""
        return self.cluster * self.parts

    @property
    def fragments(self) -> int:
        """Of 16 rows of an octet, that a group of a cluster adds up."""
        return self.blocks * self.tiles * self.sides * self.octets // self.cluster

    @property
    def partial_bytes(self) -> int:
        """Shared memory of a group for what each holder has of its sums."""
        return 512 * self.holders * self.fragments


@dataclass(frozen=True)
class PixelTiling:
    """A problem divided into tiles of `lines` lines of `width` octets, and how a group's channels
    lie in shared memory, in pieces of eight inputs: of each channel a copy for each horizontal tap,
    of each copy the lines by their residue modulo the vertical stride. precision: fp16 or tf32."""

    problem: Conv2dProblem
    shape: PixelTile
    precision: str

    @property
    def piece_bytes(self) -> int:
        return _OCTET * (2 if self.precision == "fp16" else 4)

    @property
    def banks(self) -> int:
        """Columns that are loaded at once if their pieces are in different banks."""
        return 128 // self.piece_bytes

    @cached_property
    def width(self) -> int:
        octets = -(-self.problem.out_width // _OCTET)
        return -(-octets // -(-octets // self._capacity))

    @cached_property
    def lines(self) -> int:
        most = max(1, self._capacity // self.width)
        return -(-self.problem.out_height // -(-self.problem.out_height // most))

    @property
    def _capacity(self) -> int:
        return self.shape.sides * self.shape.octets

    @property
    def tiles_across(self) -> int:
        return -(-self.problem.out_width // (_OCTET * self.width))

    @property
    def tiles_down(self) -> int:
        return -(-self.problem.out_height // self.lines)

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return -(-(self.problem.channels // self.problem.groups) // self.shape.cluster)

    @property
    def blocks(self) -> int:
        """Of a group of the convolution, with those without channels that fill the last group."""
        blocks = -(-(self.problem.out_channels // self.problem.groups) // self.shape.rows)
        return -(-blocks // self.shape.blocks) * self.shape.blocks

    @property
    def span(self) -> tuple[int, int]:
        """Lines and columns that the windows of a tile cover."""
        p = self.problem
        outputs = (self.lines, _OCTET * self.width)
        height, width = ((count - 1) * stride + (kernel - 1) * dilation + 1
                         for count, stride, kernel, dilation
                         in zip(outputs, p.stride, p.kernel, p.dilation, strict=True))
        return height, width

    @property
    def columns(self) -> int:
        """Of the input in a line of a tile, at most."""
        return min(self.span[1], self.problem.width)

    @property
    def items(self) -> int:
        """Inputs of a channel in a tile, at most."""
        return min(self.span[0], self.problem.height) * self.columns

    @property
    def at_once(self) -> int:
        """Channels that a group copies to shared memory at once."""
        return max(1, self.shape.work_group // self.items)

    @property
    def batches(self) -> int:
        """Of channels that a work-item asks for before it waits."""
        return -(-self.channels // (self.at_once * _BATCH))

    @property
    def batch(self) -> int:
        return -(-self.channels // (self.at_once * self.batches))

    @property
    def residue_pieces(self) -> int:
        return -(-self.span[0] // self.problem.stride[0]) * self.width

    @property
    def tap_pieces(self) -> int:
        """Odd, as channel_pieces is, so that columns are spread over the banks."""
        return self.problem.stride[0] * self.residue_pieces | 1

    @property
    def channel_pieces(self) -> int:
        return self.problem.kernel[1] * self.tap_pieces | 1

    @property
    def pieces(self) -> int:
        """With those of channels that fill the last batch, and those behind the last tap that
        warps without pixels of their own read."""
        channels = self.at_once * self.batch * self.batches
        return channels * self.channel_pieces + self._capacity

    @property
    def shared_bytes(self) -> int:
        channel_numbers = 4 * self.shape.blocks * self.shape.rows
        return self.piece_bytes * self.pieces + self.shape.partial_bytes + channel_numbers

    def unfit(self, limits: Limits) -> str | None:
        """The reason why the device cannot run the most images of this shape; None: it can."""
        if self.shared_bytes > limits.shared_bytes_opt_in:
            return (f"needs {self.shared_bytes} bytes of shared memory a group, there are "
                    f"{limits.shared_bytes_opt_in}")
        if max(self.tiles_down, MOST_IMAGES * self.tiles_across) > _LARGEST_GRID:
            return (f"{self.tiles_across} x {self.tiles_down} tiles of pixels: more than "
                    f"{_LARGEST_GRID} groups")
        return None

    def places(self, channel: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """The pieces of the first octet for columns of the weights, channels of a group."""
        stride = self.problem.stride[0]
        line = row * self.problem.dilation[0]
        return (channel * self.channel_pieces + column * self.tap_pieces
                + line % stride * self.residue_pieces + line // stride * self.width)


def cycles(divided: PixelTiling, limits: Limits) -> float:
    """Expected cycles behind the launch. A group's inputs come from the L2 cache and go to local
    memory, its steps are multiplied, its sums are added up: each takes as long as the waiting of
    one warp or what all groups of a multiprocessor issue, whichever is more."""
    problem, shape = divided.problem, divided.shape
    density = problem.weights_info.density
    groups = (shape.cluster * divided.blocks // shape.blocks * problem.groups
              * problem.batch * divided.tiles_down * divided.tiles_across)
    blocks_per_unit = max(1, min(limits.shared_bytes_opt_in // divided.shared_bytes, 512 // shape.work_group))
    units = max(1, limits.compute_units if shape.cluster == 1 else limits.compute_units // _PART * _PART)
    waves = -(-groups // (units * blocks_per_unit))
    beside = -(-groups // (units * waves))
    # warps' instructions, on 4 schedulers, and words of shared memory, for the inputs
    chunks = -(-divided.items // shape.work_group)
    inputs = shape.work_group / 32 * divided.batch * divided.batches * chunks
    staged = inputs * max((6 + 2 * problem.kernel[1]) / 4, 1 + problem.kernel[1])
    # alike rows have fewer columns than any rows, and the longest list is longer than most
    columns = divided.channels * math.prod(problem.kernel) * min(
        _ALIKE * (1 - (1 - density) ** shape.rows), 1)
    steps = (columns / DEPTH + 0.5) / shape.parts
    longest = math.ceil((_LONGEST * columns / DEPTH + 0.5) / shape.parts)
    warps = shape.blocks * shape.sides * shape.parts
    issued = 12 + shape.tiles * (1 + shape.octets) + shape.octets / 2
    # TF32 takes two instructions and four loads where float16 takes one and two
    more = 2 if divided.precision == "tf32" else 1
    multiplied = warps * steps * more * max(issued / 4, 1.7 * shape.tiles * shape.octets,
                                            2.6 * shape.octets + 4 * shape.tiles + 1)
    waited = longest * (80 + more * (2 * shape.octets + 4 * shape.tiles * shape.octets))
    summed = shape.partial_bytes / 64 + 25.0 * shape.fragments
    latency = 1500 + 700 * (divided.batches * chunks - 1) + 400 * (shape.cluster > 1)
    return waves * (latency + beside * (staged + summed) + max(waited, beside * multiplied))
