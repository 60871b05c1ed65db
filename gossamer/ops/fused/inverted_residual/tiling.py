"""Divides the tiles of a block among the warps of inverted_residual_mma, and estimates the time of
the block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from gossamer.device.limits import Limits
from gossamer.ops.fused.inverted_residual.expected import (
    ChunkWork,
    cycles_of_image,
    cycles_of_wave,
    cycles_with_excite,
)
from gossamer.ops.fused.inverted_residual.phases import (
    FEW_TAPS,
    WARPGROUP_SUMS,
    WARPGROUP_WARPS,
    WARPS,
    Convolution,
    Expansion,
    Projection,
    WorkGroup,
    convolution,
    convolution_on_tensor_cores,
    expansion,
    fits_warpgroup,
    projection,
    warpgroup_sums,
)
from gossamer.ops.fused.inverted_residual.sizes import DEPTHS, ROWS, BlockSizes

# The numbers of sums that fit the registers were found in the same way as those of phases.py.
_MOST_SUMS = 96
"""The most sums of the projection that fit the registers of a work-item."""
_MOST_EXCITED_SUMS = 48
"""The most sums of the projection behind squeeze-and-excite that fit the registers of a work-item
in TF32 and float32, with 16 warps; more sums spilled on sm_100."""
_MOST_SUMS_BESIDE_ROWS = 56
"""With 16 warps on a multiprocessor, the registers of a work-item hold four rows of outputs of the
depthwise convolution beside at most this number of sums of expansion and projection by wgmma."""
_UNIT_BYTES, _RESERVED_BYTES = 233472, 1024
"""Bytes of shared memory of a multiprocessor of sm_90a, and bytes that CUDA reserves for each
work-group."""
_MOST_GRID = 65535
"""Work-groups that a grid may have along y and along z."""
_FEW_WARPS = 8
"""The most warps of a multiprocessor with which four rows of outputs are convolved at once, where
the filter has at most FEW_TAPS taps."""
_BARRIER_WORDS = 3
"""Words of 16 bytes of the barriers for copies and sums."""


@dataclass(frozen=True)
class BlockTiling(BlockSizes):
    """A block divided into tiles, with the division of each tile among warps, and the expected
    time."""

    @cached_property
    def row_tiles(self) -> int:
        """Number of tiles of 16 pixels that hold the inputs under the windows of a work-group. The
        number is rounded up to a multiple of the tiles that a warp, or with wgmma a warpgroup,
        expands at once."""
        of_unit = self.expand_tiles * self._work_group.warpgroup_warps
        return -(-self._windows // (ROWS * of_unit)) * of_unit

    @property
    def expand_tiles(self) -> int:
        """Tiles of 16 pixels that a warp expands at once."""
        return 1 if self._expansion is None else self._expansion.tiles

    @property
    def expand_pairs(self) -> int:
        """Pairs of channel tiles that a warp expands at once from the same pixels."""
        return 1 if self._expansion is None else self._expansion.pairs

    @property
    def warpgroups_m(self) -> int:
        """Number of parts into which the warpgroups divide the projection's channels."""
        return self._projection.warpgroups_m

    @property
    def sums(self) -> int:
        """Number of sums of the projection that a work-item has."""
        return self._projection.sums

    @property
    def run(self) -> int:
        """Number of outputs below one another that a warp convolves in turn on tensor cores."""
        return self._convolution_on_tensor_cores.at_once

    @property
    def columns_at_once(self) -> int:
        """Neighbouring outputs that a work-item convolves at once without tensor cores."""
        return self._convolution.at_once

    @cached_property
    def _work_group(self) -> WorkGroup:
        return WorkGroup(self.tile.warps, self.tile.wgmma, self.precision)

    @cached_property
    def _projection(self) -> Projection:
        return projection(self._work_group, self.pixel_tiles, self.out_pairs, self.tile.chunk)

    @cached_property
    def _expansion(self) -> Expansion | None:
        if self.block.expand is None:
            return None
        return expansion(self._work_group, -(-self._windows // ROWS), self.tile.chunk,
                         self.expand_steps, sums=self.sums, taps=self._taps,
                         convolves=self.convolves)

    @cached_property
    def _convolution_on_tensor_cores(self) -> Convolution:
        p = self.block.depthwise
        return convolution_on_tensor_cores(
            self._work_group, (self.tile.rows, self.tile.columns), self.tile.chunk, p.kernel,
            p.stride[0], self.rows_at_once)

    @cached_property
    def _convolution(self) -> Convolution:
        p = self.block.depthwise
        return convolution(self._work_group, (self.tile.rows, self.tile.columns), self.tile.chunk,
                           p.kernel, p.stride[1])

    @property
    def _taps(self) -> int:
        return math.prod(self.block.depthwise.kernel)

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group."""
        word, expands = self._work_group.word, self.block.expand is not None
        x_row = self.expand_steps * DEPTHS[self.precision] // word + 1
        chunk_row = self.tile.chunk // word + 1
        results = self.constants[2] * self.block.out_channels // 4
        beside = (results + self.row_tiles * 4 + _BARRIER_WORDS
                  + self.stages * self.weight_words)
        inputs = self.row_tiles * ROWS * x_row if expands else 0
        expanded = math.prod(self.halo) * chunk_row * (1 if expands else self.stages)
        convolved = self.pixel_tiles * ROWS * chunk_row
        sums = 0
        if self.tile.cluster > 1:
            sums = -(-self.fragments // self.tile.cluster) * self.tile.cluster * 32
        if self.block.excite is not None:
            gates = (self.own_chunks * self.tile.chunk // 4
                     + -(-(self.tile.cluster + 1) * self.block.excite.squeezed // 4))
            # convolved pixels stay, and sums take the place of the inputs and expanded pixels
            return 16 * (max(inputs + expanded, sums) + self.own_chunks * convolved + gates
                         + beside)
        return 16 * (inputs + expanded + convolved + sums + beside)

    @property
    def rows_at_once(self) -> int:
        """Rows of outputs whose sums a warp holds at once in the depthwise convolution on tensor
        cores: more where there are few warps, which leave registers free and hide little
        latency."""
        warps = self.tile.warps * self.blocks_per_unit
        few = warps <= _FEW_WARPS or (
            self.tile.wgmma and warps <= max(WARPS)
            and warpgroup_sums(self.sums, self.expand_pairs, self._taps) <= _MOST_SUMS_BESIDE_ROWS)
        return 4 if few and self._taps <= FEW_TAPS else 2

    @cached_property
    def blocks_per_unit(self) -> int:
        """Work-groups for which the compiler is to leave room in a multiprocessor's registers."""
        if self.tile.wgmma:
            most = next((warps for warps, sums in WARPGROUP_SUMS.items()
                         if warpgroup_sums(self.sums, self.expand_pairs, self._taps) <= sums), 8)
            return max(1, min(most // self.tile.warps,
                              _UNIT_BYTES // (self.shared_bytes + _RESERVED_BYTES)))
        splits = self.precision == "fp32"
        crowded = self.sums > (16 if splits else 32) or (splits and self.expand_tiles > 1) or (
            not self.convolves and self.sums + 4 * self.columns_at_once > 44)
        most = 8 if crowded else 12 if splits else 16
        return max(1, most // self.tile.warps)

    def why_unfit(self, limits: Limits) -> str | None:
        """Returns the reason why the device cannot run the tile, or None."""
        if self.tile.wgmma:
            if not limits.wgmma:
                return "the device has no wgmma (sm_90a)"
            if self.precision == "fp32" or self.block.excite is not None:
                return "wgmma takes float16 and TF32, and no squeeze-and-excite"
            if self.tile.warps % WARPGROUP_WARPS:
                return f"wgmma takes four warps at a time, not {self.tile.warps}"
            if not fits_warpgroup(self._work_group, self.sums, self.expand_pairs, self._taps):
                return f"{self.sums} sums of a work-item and an expansion do not fit its registers"
        if self.shared_bytes > limits.shared_bytes_opt_in:
            return (f"needs {self.shared_bytes} bytes of shared memory a group, there are "
                    f"{limits.shared_bytes_opt_in}")
        is_tight = (self.block.excite is not None and self.precision != "fp16"
                    and self.tile.warps == max(WARPS))
        if self.sums > (_MOST_EXCITED_SUMS if is_tight else _MOST_SUMS):
            return f"{self.sums} sums of a work-item do not fit its registers"
        p = self.block.depthwise
        if max(-(-p.out_height // self.tile.rows), p.batch) > _MOST_GRID:
            return f"more than {_MOST_GRID} tiles of rows, or images"
        return None

    def cycles(self, limits: Limits) -> float:
        """Returns the expected cycles of the kernel, without its launch."""
        p, tile = self.block.depthwise, self.tile
        groups = (tile.cluster * -(-p.out_height // tile.rows) * -(-p.out_width // tile.columns)
                  * p.batch)
        at_once = max(1, min(limits.shared_bytes_opt_in // self.shared_bytes,
                             self.blocks_per_unit))
        waves = -(-groups // (limits.compute_units * at_once))
        together = -(-groups // (limits.compute_units * waves))
        convolved = self._convolution_on_tensor_cores if self.convolves else self._convolution
        phases = [convolved.cycles, self._projection.cycles]
        if self._expansion is not None:
            phases.append(self._expansion.cycles)
        work = ChunkWork(tuple(phases), tile.cluster, self.own_chunks, 16 * self.weight_words,
                         self.precision)
        if self.block.excite is not None:
            small = self.block.excite.squeezed * self.hidden * 32 // self._work_group.word
            return waves * cycles_with_excite(work, small, together)
        if waves == 1 and p.batch == 1:
            return cycles_of_image(work, max(together, work.beside(groups, limits)))
        return waves * cycles_of_wave(work, together)
