"""Divides a bottleneck block among the work-groups of bottleneck_mma and estimates their time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gossamer.device.limits import Limits
from gossamer.ops.conv2d.sparse.common.tensor_cores import ROWS
from gossamer.ops.fused.bottleneck.block import Bottleneck

DEPTH = 16
"""Columns of a step."""
FRAGMENT = 8
"""Pixels of a tensor core instruction's tile."""
_ROWS = (2, 4, 7, 8, 14, 16, 28)
_FRAGMENT_STRIDES = (1, 2, 4, 7)
_CHUNKS = (256, 128, 64, 32)
_WARPS = (16, 8)
_TILES = (1, 2)
_MOST_SUMS = {16: 64, 8: 96}
"""Sums of a work-item, by warps of a work-group, for which there are registers."""
_GRID = 65535
"""Work-groups that a grid may have along y and along z."""

# The rates below are assumed for an H200, not fitted: there blocks take 2 to 4 times as long as
# they say. Only the order in which tiles are tried follows from them, on any device.
_PRODUCT = 1.65
"""Cycles in which a multiprocessor multiplies 16 output channels by 16 columns for a fragment."""
_GATHER = 2.4
"""Cycles in which shared memory gives a fragment of 16 columns; 2 were there no bank conflicts."""
_WEIGHTS = 4.5
"""Cycles in which a multiprocessor loads the weights and the places of a step of a tile."""
_STEP = 45.0
"""Cycles that a warp takes for a step, without those for its fragments."""
_FRAGMENT_WAIT = 9.0
"""Cycles that a warp takes for a fragment of a step."""
_TRANSPOSE = 0.035
"""Cycles in which shared memory takes a byte of the input and transposes it."""
_LATENCY = 5000.0
"""Cycles in which a work-group begins, waits at its barriers and stores its last results."""
_CHUNK = 700.0
"""Cycles in which a work-group waits for a chunk of the input and at the barriers around it."""
_L2, _MEMORY = 40.0, 18.0
"""Bytes in a cycle: those that a multiprocessor receives from the L2 cache, and those that it reads
from and writes to device memory."""


@dataclass(frozen=True)
class BottleneckTile:
    """The work of a work-group.

    rows: rows of the work-group's outputs.
    fragment_stride: an eighth of their columns, which is the distance between two pixels of a
    fragment.
    chunk: channels of the input that shared memory holds at once, a multiple of 32.
    tiles: tiles of 16 output channels that share their columns.
    warps: warps of the work-group.
    transposed: 1 where the first layer skips zeros too, for which its input is transposed in shared
    memory; 0 where it multiplies all channels.
    """

    rows: int
    fragment_stride: int
    chunk: int
    tiles: int
    warps: int
    transposed: int


@dataclass(frozen=True)
class Fragments:
    """How warps share a layer.

    fragments: fragments that a warp multiplies at once, an even number.
    groups: groups of `fragments` fragments in a tile.
    blocks: blocks of output channels.
    """

    fragments: int
    groups: int
    blocks: int

    @property
    def units(self) -> int:
        """Blocks of channels by groups of fragments, each of which one warp computes."""
        return self.groups * self.blocks


@dataclass(frozen=True)
class BottleneckTiling:
    """A block in tiles of a size."""

    block: Bottleneck
    tile: BottleneckTile

    @property
    def columns(self) -> int:
        """Columns of outputs of a tile."""
        return FRAGMENT * self.tile.fragment_stride

    @property
    def rows_of_block(self) -> int:
        """Output channels that share their columns."""
        return ROWS * self.tile.tiles

    @cached_property
    def halo(self) -> tuple[int, int]:
        """Rows and columns of the windows of a tile."""
        kernel = self.block.window.kernel
        return self.tile.rows + kernel[0] - 1, self.columns + kernel[1] - 1

    @property
    def pitch(self) -> int:
        """Fragments of a row of the first result."""
        return self.tile.fragment_stride + self.block.window.kernel[1] - 1

    @property
    def halo_fragments(self) -> int:
        """Fragments of a channel of the input."""
        return -(-math.prod(self.halo) // FRAGMENT)

    @property
    def tile_fragments(self) -> int:
        """Fragments of a channel of the outputs."""
        return self.tile.rows * self.tile.fragment_stride

    @cached_property
    def pieces(self) -> tuple[int, int, int]:
        """Fragments of a channel in shared memory of the input and of both inner results."""
        return (self.halo_fragments | 1, self.halo[0] * self.pitch | 1, self.tile_fragments | 1)

    @property
    def chunks(self) -> int:
        """Chunks of the input's channels."""
        return -(-self.block.layers[0].channels // self.tile.chunk)

    @property
    def inputs_at(self) -> int:
        """Where the input lies in shared memory, in fragments: behind the first result."""
        return self.block.window.channels * self.pieces[1]

    @property
    def starts(self) -> int:
        """Number of entries in the table that says at which step each block of output channels
        begins, and where the last one ends."""
        first, *others = (-(-layer.out_channels // self.rows_of_block)
                          for layer in self.block.layers)
        return self.chunks * first + sum(others) + 1

    @property
    def starts_at(self) -> int:
        """Where that table lies in shared memory, in fragments."""
        chunk = self.tile.chunk
        staged = FRAGMENT * self.halo_fragments * (chunk // FRAGMENT + 1)
        inputs = chunk * self.pieces[0] if self.tile.transposed else staged
        second = self.block.window.out_channels * self.pieces[2]
        return self.inputs_at + max(inputs + staged, second)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group."""
        return 16 * self.starts_at + 4 * self.starts

    @cached_property
    def divided(self) -> tuple[Fragments, Fragments, Fragments] | None:
        """How warps share each layer; None where the registers do not hold the first one's sums."""
        found = []
        for number, layer in enumerate(self.block.layers):
            total = self.halo_fragments if number == 0 else self.tile_fragments
            best = self._shared_out(-(-layer.out_channels // self.rows_of_block), total,
                                    is_held=number == 0)
            if best is None:
                return None
            found.append(best)
        return found[0], found[1], found[2]

    def _shared_out(self, blocks: int, total: int, is_held: bool) -> Fragments | None:
        most = _MOST_SUMS[self.tile.warps] // (4 * self.tile.tiles)
        fitting = []
        for fragments in range(2, min(most, total + total % 2) + 1, 2):
            shared = Fragments(fragments, -(-total // fragments), blocks)
            rounds = -(-shared.units // self.tile.warps)
            if not is_held or rounds * fragments <= most:
                fitting.append((rounds * (_STEP + _FRAGMENT_WAIT * fragments), -fragments, shared))
        return min(fitting, key=lambda item: item[:2])[2] if fitting else None

    def unfit(self, limits: Limits) -> str | None:
        """Returns why the device cannot run the tile; None where it can."""
        if self.shared_bytes > limits.shared_bytes_opt_in:
            return (f"needs {self.shared_bytes} of {limits.shared_bytes_opt_in} bytes of shared "
                    "memory")
        if self.divided is None:
            return "the sums of the first layer do not fit the registers of a work-group"
        if max(self.grid[1:]) > _GRID:
            return f"more than {_GRID} images or rows of tiles"
        return None

    @property
    def grid(self) -> tuple[int, int, int]:
        """Work-groups along x, y and z."""
        p = self.block.window
        return -(-p.out_width // self.columns), -(-p.out_height // self.tile.rows), p.batch

    def steps(self, number: int) -> int:
        """Returns the expected steps of a block of output channels of a layer."""
        layer, chunks = self.block.layers[number], 1 if number else self.chunks
        kept = 1.0
        if number or self.tile.transposed:
            kept -= (1 - layer.weights_info.density) ** min(self.rows_of_block, layer.out_channels)
        columns = layer.depth * kept / chunks
        return chunks * math.ceil(columns / DEPTH)

    def cycles(self, limits: Limits) -> float:
        """Returns the cycles that the block is expected to take."""
        divided = self.divided
        assert divided is not None
        tile = self.tile
        beside = max(1, min(limits.shared_bytes_opt_in // self.shared_bytes, 16 // tile.warps))
        full = alone = weight_bytes = 0.0
        for number, shared in enumerate(divided):
            steps = self.steps(number)
            fragments = shared.fragments * tile.tiles
            full += shared.units * steps * max(
                _PRODUCT * fragments, _GATHER * shared.fragments + _WEIGHTS * tile.tiles)
            alone += (-(-shared.units // tile.warps)) * steps * (
                _STEP + _FRAGMENT_WAIT * fragments)
            weight_bytes += shared.blocks * steps * tile.tiles * (512 + 64)
        inputs = 2 * FRAGMENT * self.halo_fragments * self.block.layers[0].channels
        full += tile.transposed * _TRANSPOSE * inputs
        alone += self.chunks * _CHUNK + _LATENCY
        groups = math.prod(self.grid)
        together = min(beside, -(-groups // limits.compute_units))
        waves = -(-groups // (limits.compute_units * together))
        of_wave = max(alone, self.chunks * _CHUNK + together * full,
                      together * (weight_bytes + inputs) / _L2)
        sizes = sum(spec.size for spec in (*self.block.problem.inputs, *self.block.problem.outputs))
        return max(waves * of_wave, _LATENCY + 2 * sizes / (_MEMORY * limits.compute_units))


@lru_cache(maxsize=256)
def tilings(block: Bottleneck, limits: Limits) -> tuple[BottleneckTiling, ...]:
    """Returns the tiles that the device can run, in the order of their expected times."""
    fitting = [divided for divided in _candidates(block) if divided.unfit(limits) is None]
    return tuple(sorted(fitting, key=lambda divided: divided.cycles(limits)))


def _candidates(block: Bottleneck) -> Iterator[BottleneckTiling]:
    p = block.window
    heights = dict.fromkeys(-(-p.out_height // -(-p.out_height // rows)) for rows in _ROWS)
    widest = -(-p.out_width // FRAGMENT)
    widths = dict.fromkeys(min(stride, widest) for stride in _FRAGMENT_STRIDES)
    deepest = -(-block.layers[0].channels // 32) * 32
    chunks = dict.fromkeys(min(chunk, deepest) for chunk in _CHUNKS)
    for rows in heights:
        for stride in widths:
            for chunk in chunks:
                for tiles in _TILES:
                    for warps in _WARPS:
                        for transposed in (0, 1):
                            tile = BottleneckTile(rows, stride, chunk, tiles, warps, transposed)
                            yield BottleneckTiling(block, tile)
