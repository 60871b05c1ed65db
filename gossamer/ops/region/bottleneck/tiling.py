"""Divides a bottleneck block among the work-groups of bottleneck_mma and estimates their time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gossamer.device.limits import Limits
from gossamer.ops.conv2d.sparse.common.tensor_cores import ROWS
from gossamer.ops.region.bottleneck.block import Bottleneck

DEPTH = 16
"""Columns of a step."""
OCTET = 8
"""Pixels of a tensor core instruction's tile."""
_ROWS = (2, 4, 7, 8, 14, 16, 28)
_STRIPS = (1, 2, 4, 7)
_CHUNKS = (256, 128, 64, 32)
_WARPS = (16, 8)
_TILES = (1, 2)
_MOST_SUMS = {16: 64, 8: 96}
"""Sums of a work-item, by warps of a work-group, for which there are registers."""
_GRID = 65535
"""Work-groups that a grid may have along y and along z."""

_PRODUCT = 1.65
"""Cycles in which a multiprocessor multiplies 16 channels by 16 columns by an octet."""
_GATHER = 2.4
"""Cycles in which shared memory gives an octet of 16 columns; 2 were there no bank conflicts."""
_FRAGMENT = 4.5
"""Cycles in which a multiprocessor loads the weights and the places of a step of a tile."""
_STEP = 45.0
"""Cycles that a warp takes for a step besides those for its octets."""
_OCTET_WAIT = 9.0
"""Cycles that a warp takes for an octet of a step."""
_TURN = 0.035
"""Cycles in which shared memory takes a byte of the input and turns it."""
_LATENCY = 5000.0
"""Cycles in which a work-group begins, waits at its barriers and stores its last results."""
_CHUNK = 700.0
"""Cycles in which a work-group waits for a chunk of the input and at the barriers around it."""
_L2, _MEMORY = 40.0, 18.0
"""Bytes that a multiprocessor receives from the L2 cache, and those that it exchanges with memory,
in a cycle."""


@dataclass(frozen=True)
class BottleneckTile:
    """The work of a work-group.

    rows: rows of its outputs. strip: an eighth of their columns. chunk: channels of the input that
    shared memory holds at once, a multiple of 32. tiles: tiles of 16 output channels that share
    their columns. warps: its warps. turned: 1 where the first layer skips zeros too, for which its
    input is turned in shared memory; 0 where it multiplies all channels.
    """

    rows: int
    strip: int
    chunk: int
    tiles: int
    warps: int
    turned: int


@dataclass(frozen=True)
class Octets:
    """How warps share a layer. octets: those that a warp multiplies at once, an even number.
    groups: groups of so many in a tile. blocks: blocks of output channels."""

    octets: int
    groups: int
    blocks: int

    @property
    def units(self) -> int:
        """Blocks of channels by groups of octets, each of which one warp computes."""
        return self.groups * self.blocks


@dataclass(frozen=True)
class BottleneckTiling:
    """A block in tiles of a size."""

    block: Bottleneck
    tile: BottleneckTile

    @property
    def columns(self) -> int:
        """Columns of outputs of a tile."""
        return OCTET * self.tile.strip

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
        """Octets of a row of the first result."""
        return self.tile.strip + self.block.window.kernel[1] - 1

    @property
    def halo_octets(self) -> int:
        """Octets of a channel of the input."""
        return -(-math.prod(self.halo) // OCTET)

    @property
    def tile_octets(self) -> int:
        """Octets of a channel of the outputs."""
        return self.tile.rows * self.tile.strip

    @cached_property
    def pieces(self) -> tuple[int, int, int]:
        """Octets of a channel in shared memory of the input and of both inner results."""
        return (self.halo_octets | 1, self.halo[0] * self.pitch | 1, self.tile_octets | 1)

    @property
    def chunks(self) -> int:
        """Chunks of the input's channels."""
        return -(-self.block.layers[0].channels // self.tile.chunk)

    @property
    def inputs_at(self) -> int:
        """Where the input lies in shared memory, in octets: behind the first result."""
        return self.block.window.channels * self.pieces[1]

    @property
    def starts(self) -> int:
        """Numbers that say at which step each block of output channels begins, and the end."""
        first, *others = (-(-layer.out_channels // self.rows_of_block)
                          for layer in self.block.layers)
        return self.chunks * first + sum(others) + 1

    @property
    def starts_at(self) -> int:
        """Where these lie in shared memory, in octets."""
        chunk = self.tile.chunk
        staged = OCTET * self.halo_octets * (chunk // OCTET + 1)
        inputs = chunk * self.pieces[0] if self.tile.turned else staged
        second = self.block.window.out_channels * self.pieces[2]
        return self.inputs_at + max(inputs + staged, second)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group."""
        return 16 * self.starts_at + 4 * self.starts

    @cached_property
    def divided(self) -> tuple[Octets, Octets, Octets] | None:
        """How warps share each layer; None where the registers do not hold the first one's sums."""
        found = []
        for number, layer in enumerate(self.block.layers):
            total = self.halo_octets if number == 0 else self.tile_octets
            best = self._shared_out(-(-layer.out_channels // self.rows_of_block), total,
                                    is_held=number == 0)
            if best is None:
                return None
            found.append(best)
        return found[0], found[1], found[2]

    def _shared_out(self, blocks: int, total: int, is_held: bool) -> Octets | None:
        most = _MOST_SUMS[self.tile.warps] // (4 * self.tile.tiles)
        fitting = []
        for octets in range(2, min(most, total + total % 2) + 1, 2):
            shared = Octets(octets, -(-total // octets), blocks)
            turns = -(-shared.units // self.tile.warps)
            if not is_held or turns * octets <= most:
                fitting.append((turns * (_STEP + _OCTET_WAIT * octets), -octets, shared))
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
        if number or self.tile.turned:
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
            octets = shared.octets * tile.tiles
            full += shared.units * steps * max(
                _PRODUCT * octets, _GATHER * shared.octets + _FRAGMENT * tile.tiles)
            alone += (-(-shared.units // tile.warps)) * steps * (
                _STEP + _OCTET_WAIT * octets)
            weight_bytes += shared.blocks * steps * tile.tiles * (512 + 64)
        inputs = 2 * OCTET * self.halo_octets * self.block.layers[0].channels
        full += tile.turned * _TURN * inputs
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
    """Returns the tiles that the device can run, those expected to be fastest first."""
    fitting = [divided for divided in _candidates(block) if divided.unfit(limits) is None]
    return tuple(sorted(fitting, key=lambda divided: divided.cycles(limits)))


def _candidates(block: Bottleneck) -> Iterator[BottleneckTiling]:
    p = block.window
    heights = dict.fromkeys(-(-p.out_height // -(-p.out_height // rows)) for rows in _ROWS)
    widest = -(-p.out_width // OCTET)
    widths = dict.fromkeys(min(strip, widest) for strip in _STRIPS)
    deepest = -(-block.layers[0].channels // 32) * 32
    chunks = dict.fromkeys(min(chunk, deepest) for chunk in _CHUNKS)
    for rows in heights:
        for strip in widths:
            for chunk in chunks:
                for tiles in _TILES:
                    for warps in _WARPS:
                        for turned in (0, 1):
                            yield BottleneckTiling(
                                block, BottleneckTile(rows, strip, chunk, tiles, warps, turned))
