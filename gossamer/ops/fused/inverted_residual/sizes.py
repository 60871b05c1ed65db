"""Computes the sizes of a block that is divided among the work-groups of inverted_residual_mma."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from gossamer.ops.fused.inverted_residual.block import Block

ROWS = 16
"""Number of pixels that a warp multiplies at once: the pixels of a pixel tile."""
_PAIR_WORDS = 32
"""Size of the weights that one step needs for two tiles of 8 channels, counted in words of 16
bytes."""
_MOST_TAPS = 25
"""The most taps of a depthwise convolution that tensor cores compute: the inputs of more taps do
not fit the registers."""
_MOST_STRIDE = 2
"""The largest stride in rows of a depthwise convolution that tensor cores compute."""
DEPTHS = {"fp16": 16, "tf32": 8, "fp32": 8}
"""Input channels of a step, by precision."""


@dataclass(frozen=True)
class BlockTile:
    """The work of a cluster of work-groups.

    rows: rows of outputs of the cluster.
    columns: columns of outputs of the cluster.
    chunk: hidden channels that a work-group computes at once, a multiple of 16.
    cluster: work-groups that share the chunks round-robin.
    warps: warps of a work-group.
    wgmma: 1 where four warps multiply together by wgmma (sm_90a), 0 where each warp multiplies
    alone by mma.
    """

    rows: int
    columns: int
    chunk: int
    cluster: int
    warps: int
    wgmma: int = 0


@dataclass(frozen=True)
class BlockSizes:
    """The sizes of a block that is divided into tiles.

    block: the block.
    tile: the work of each cluster.
    precision: "fp32", "tf32" or "fp16".
    """

    block: Block
    tile: BlockTile
    precision: str

    @cached_property
    def halo(self) -> tuple[int, int]:
        """Rows and columns of inputs under the windows of a tile."""
        return self.block.halo(self.tile.rows, self.tile.columns)

    @cached_property
    def _windows(self) -> int:
        """Pixels under a tile's windows, at most."""
        p = self.block.depthwise
        return min(self.halo[0], p.height) * min(self.halo[1], p.width)

    @cached_property
    def pixel_tiles(self) -> int:
        """Number of tiles of 16 pixels that hold a tile's outputs."""
        return -(-self.tile.rows * self.tile.columns // ROWS)

    @cached_property
    def chunks(self) -> int:
        """Chunks of hidden channels."""
        return -(-self.block.hidden // self.tile.chunk)

    @property
    def hidden(self) -> int:
        """Number of hidden channels, the padding of the last chunk included."""
        return self.chunks * self.tile.chunk

    @cached_property
    def own_chunks(self) -> int:
        """Chunks that a work-group computes, at most."""
        return -(-self.chunks // self.tile.cluster)

    @property
    def stages(self) -> int:
        """Chunks whose weights are in shared memory at once."""
        return min(self.own_chunks, 2)

    @cached_property
    def expand_steps(self) -> int:
        """Steps of K of the expansion; 0 without an expansion."""
        return -(-self.block.expanded_inputs // DEPTHS[self.precision])

    @property
    def operands(self) -> int:
        """How many numbers a pixel of the block's input has in shared memory: one for each channel,
        or one for each input gathered from the pixel's window, padded with zeros to whole steps."""
        if self.block.gathers:
            return self.expand_steps * DEPTHS[self.precision]
        return self.block.channels

    @property
    def project_steps(self) -> int:
        """Steps of K of a chunk's projection."""
        return self.tile.chunk // DEPTHS[self.precision]

    @cached_property
    def out_pairs(self) -> int:
        """Number of pairs of tiles of 8 output channels."""
        return -(-self.block.out_channels // 16)

    @cached_property
    def expand_words(self) -> int:
        """Size of the expansion's weights for a chunk, in words of 16 bytes."""
        return self.expand_steps * (self.tile.chunk // 16) * _PAIR_WORDS

    @cached_property
    def constants(self) -> tuple[int, int, int]:
        """How many constants a channel has in the epilogue of the expansion, of the depthwise
        convolution and of the projection."""
        counts = [part.epilogue.operands.count("channel") for part in self.block.convolutions]
        first, second, third = counts if len(counts) == 3 else (0, *counts)
        return first, second, third

    @cached_property
    def constant_words(self) -> int:
        """Size of a chunk's depthwise weights and of its constants in the epilogues of the
        expansion and of the depthwise convolution, in words of 16 bytes."""
        taps = math.prod(self.block.depthwise.kernel)
        if self.convolves:
            return (taps * self.tile.chunk // 8
                    + sum(self.constants[:2]) * self.tile.chunk // 4)
        return (taps + sum(self.constants[:2])) * self.tile.chunk // 4

    @cached_property
    def weight_words(self) -> int:
        """Size of all weights and constants of a chunk, in words of 16 bytes."""
        return (self.expand_words + self.constant_words
                + self.project_steps * self.out_pairs * _PAIR_WORDS)

    @property
    def fragments(self) -> int:
        """Number of fragments, 16 pixels by 8 channels each, of a tile's results."""
        return self.pixel_tiles * (self.block.out_channels // 8)

    @cached_property
    def convolves(self) -> bool:
        """Whether tensor cores compute the depthwise convolution."""
        p = self.block.depthwise
        return (self.precision == "fp16" and math.prod(p.kernel) <= _MOST_TAPS
                and p.stride[0] <= _MOST_STRIDE)
