"""Divides the tiles of a block among the warps of inverted_residual_mma, and estimates the time of
the block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from gossamer.device.limits import Limits
from gossamer.ops.fused.inverted_residual.expected import (
    ChunkWork,
    Phase,
    cycles_of_image,
    cycles_of_wave,
    cycles_with_excite,
)
from gossamer.ops.fused.inverted_residual.sizes import DEPTHS, ROWS, WARPGROUP_WARPS, BlockSizes
from gossamer.ops.mma_precisions import CYCLES_OF_PRODUCT

# The numbers of sums that fit the registers were found by compiling for sm_80, sm_90a and sm_100:
# with more sums the compiler spills registers. On another architecture the compiler may spill with
# fewer sums, which makes kernels slower.
_MOST_SUMS = 96
"""The most sums of the projection that fit the registers of a work-item."""
_MOST_EXCITED_SUMS = 48
"""The most sums of the projection behind squeeze-and-excite that fit the registers of a work-item
in TF32 and float32, with 16 warps; more sums spilled on sm_100."""
_MOST_SUMS_BESIDE = 24
"""In float32 the registers hold two tiles of an expansion beside at most this number of sums of the
projection."""
_MOST_SUMS_AT_ONCE = {"fp16": 72, "tf32": 56}
"""For each precision, the most sums of an expansion and of the projection together that fit the
registers of a work-item if a multiprocessor has 16 warps; more sums spilled on sm_100. This bound
does not hold for the small expansions of _MOST_PAIRS."""
_MOST_PAIRS = 4
"""An expansion is small where its number of pixel tiles times its number of pairs of channel tiles
is at most this number. The sums of a small expansion fit the registers beside the sums of any
projection."""
_WARPGROUP_SUMS = {24: 24, 20: 40, 16: 72}
"""For each number of warps of a multiprocessor, the most sums by wgmma of an expansion and of the
projection together that fit the registers of a work-item; with 8 warps all sums fit."""
_LARGE_FILTER = 24
"""Registers of a work-item that a filter of more than _FEW_TAPS taps takes, so that fewer sums
fit."""
_MOST_SUMS_BESIDE_ROWS = 56
"""With 16 warps on a multiprocessor, the registers of a work-item hold four rows of outputs of the
depthwise convolution beside at most this number of sums of expansion and projection by wgmma."""
_UNIT_BYTES, _RESERVED_BYTES = 233472, 1024
"""Bytes of shared memory of a multiprocessor of sm_90a, and bytes that CUDA reserves for each
work-group."""
_MOST_GRID = 65535
"""Work-groups that a grid may have along y and along z."""
WARPS = (4, 8, 16)
_OUTPUTS_AT_ONCE = (1, 2, 4, 7, 8)
_FEW_TAPS, _FEW_WARPS = 9, 8
"""The most taps of a filter, and the most warps of a multiprocessor, with which four rows of
outputs are convolved at once."""
# The cycles below hold for an H200. On another device they decide only the order in which tiles are
# tried.
_LOADED = {"fp16": 4.0, "tf32": 4.0, "fp32": 16.0}
"""Cycles of a scheduler for loading a tile of 16 pixels, or the weights of 16 channels, for one
step of K; in float32 the split of each number into TF32 numbers is included."""
_CYCLES_OF_PAIR = 8.0
"""Cycles in which all tensor cores of a multiprocessor multiply 64 pixels by 16 channels over one
step of K by wgmma."""
_WGMMA_LATENCY = 120.0
"""Cycles from the first product of a warpgroup until its sums can be read, without the cycles of
the products."""
_BARRIER_WORDS = 3
"""Words of 16 bytes of the barriers for copies and sums."""
_ACCESS = 4
"""Cycles in which shared memory gives 16 bytes to each lane of a warp."""
_CHAIN = {"fp16": 35.0, "tf32": 35.0, "fp32": 90.0}
"""Cycles from one product to the next product that adds to the same sums; in float32 the cycles of
three products and an addition."""


@dataclass(frozen=True)
class BlockTiling(BlockSizes):
    """A block divided into tiles, with the division of each tile among warps, and the expected
    time."""

    @cached_property
    def row_tiles(self) -> int:
        """Number of tiles of 16 pixels that hold the inputs under the windows of a work-group. The
        number is rounded up to a multiple of the tiles that a warp, or with wgmma a warpgroup,
        expands at once."""
        of_unit = self.expand_tiles * self._warpgroup_warps
        return -(-self._windows // (ROWS * of_unit)) * of_unit

    @property
    def expand_tiles(self) -> int:
        """Tiles of 16 pixels that a warp expands at once. The weights are loaded, and in float32
        split, once for all of these tiles."""
        return self._expand_unit[0]

    @property
    def expand_pairs(self) -> int:
        """Pairs of channel tiles that a warp expands at once from the same pixels."""
        return self._expand_unit[1]

    @cached_property
    def _expand_unit(self) -> tuple[int, int]:
        """Returns how many tiles of pixels, and how many pairs of tiles of channels, a warp expands
        at once."""
        if self.block.expand is None:
            return 1, 1
        pairs = self.tile.chunk // 16
        if self.tile.wgmma:
            units = [(1, count) for count in range(1, pairs + 1)
                     if pairs % count == 0 and (count == 1 or self._fits_warpgroup(count))]
        else:
            units = [(tiles, count) for tiles in (1, 2, 3, 4) for count in range(1, 5)
                     if pairs % count == 0 and self._fits(tiles, count)]
        return min(units, key=lambda unit: self._expand_cycles(*unit).alone)

    def _fits(self, tiles: int, pairs: int) -> bool:
        """Returns whether the registers hold the sums of an expansion of `tiles` tiles of pixels by
        `pairs` pairs of channel tiles."""
        if self.precision == "fp32":
            several = self._windows > ROWS and self.tile.chunk // 16 >= self.tile.warps // 2
            fits = self.sums <= _MOST_SUMS_BESIDE and several
            return tiles == (2 if fits else 1) and tiles * pairs <= _MOST_PAIRS
        return tiles * pairs <= _MOST_PAIRS or (
            8 * tiles * pairs + self.sums <= _MOST_SUMS_AT_ONCE[self.precision])

    def _fits_warpgroup(self, pairs: int) -> bool:
        """Returns whether the registers hold the sums of an expansion of `pairs` pairs of tiles of
        channels by wgmma."""
        most = _WARPGROUP_SUMS[max(WARPS)] if self.tile.warps == max(WARPS) else math.inf
        return self._warpgroup_sums(pairs) <= most

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group."""
        word, expands = self._word, self.block.expand is not None
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

    @cached_property
    def warpgroups_m(self) -> int:
        """Number of parts into which the warpgroups divide the projection's channels. The
        projection's pixels are divided into _warpgroups / warpgroups_m parts. Without wgmma a
        warpgroup is one warp."""
        return min((count for count in (1, 2, 4, 8, 16) if self._warpgroups % count == 0 and (
                        not self.tile.wgmma or self.out_pairs % count == 0)),
                   key=lambda count: self._project_cycles(count).alone)

    def _phase(self, issued: float, waited: float, shared: float) -> Phase:
        """Returns the cycles of a phase. issued: cycles in which one warp issues its instructions;
        a scheduler issues the instructions of a quarter of the warps."""
        return Phase(issued * self.tile.warps / 4, waited, shared)

    def _sum_tiles(self, warpgroups_m: int) -> tuple[int, int]:
        """Returns how many pixel tiles, and how many pairs of channel tiles, the projection has for
        each warp."""
        of_warpgroups = -(-self.pixel_tiles // self._warpgroup_warps)
        return (-(-of_warpgroups // (self._warpgroups // warpgroups_m)),
                -(-self.out_pairs // warpgroups_m))

    def _project_cycles(self, warpgroups_m: int) -> Phase:
        tiles, pairs = self._sum_tiles(warpgroups_m)
        if self.tile.wgmma:
            return self._wgmma_cycles(tiles, pairs, self.project_steps, tiles)
        of_step = 2 * tiles * pairs * CYCLES_OF_PRODUCT[self.precision]
        loaded = of_step + _LOADED[self.precision] * (tiles + pairs)
        return self._phase(self.project_steps * loaded,
                           self.project_steps * max(of_step, _CHAIN[self.precision]),
                           self.project_steps * _ACCESS * (tiles + pairs) * self.tile.warps)

    def _wgmma_cycles(self, tiles: int, pairs: int, steps: int, loads: int) -> Phase:
        """Returns the cycles of products by wgmma, and of the loads of a warp's pixels for them."""
        multiplied = steps * tiles * pairs * _CYCLES_OF_PAIR
        return self._phase(multiplied, multiplied + 10 * steps * loads + _WGMMA_LATENCY,
                           steps * (_ACCESS * loads + tiles * pairs) * self.tile.warps)

    @cached_property
    def sums(self) -> int:
        """Number of sums of the projection that a work-item has."""
        tiles, pairs = self._sum_tiles(self.warpgroups_m)
        return 8 * tiles * pairs

    def _expand_cycles(self, tiles: int, pairs: int) -> Phase:
        if self.tile.wgmma:
            return self._warpgroup_expand_cycles(pairs)
        units = -(-self._windows // (ROWS * tiles)) * (self.tile.chunk // 16 // pairs)
        of_warp = -(-units // self.tile.warps)
        of_step = 2 * tiles * pairs * CYCLES_OF_PRODUCT[self.precision]
        finished = tiles * pairs * (24 if self.convolves else 60) + 40
        loaded = of_step + _LOADED[self.precision] * (tiles + pairs)
        waited = self.expand_steps * max(of_step, _CHAIN[self.precision]) + 2 * finished
        stored = tiles * pairs * 8 // self._word
        return self._phase(of_warp * (self.expand_steps * loaded + finished), of_warp * waited,
                           units * _ACCESS * (self.expand_steps * (tiles + pairs) + stored))

    def _warpgroup_expand_cycles(self, pairs: int) -> Phase:
        """Returns the cycles of an expansion by wgmma."""
        units = -(-self._windows // (ROWS * WARPGROUP_WARPS)) * (self.tile.chunk // 16 // pairs)
        of_warpgroup = -(-units // self._warpgroups)
        finished = pairs * (24 if self.convolves else 60) + 40
        products = self._wgmma_cycles(of_warpgroup, pairs, self.expand_steps, of_warpgroup)
        stored = units * WARPGROUP_WARPS * _ACCESS * pairs * 8 // self._word
        return Phase(products.issued + of_warpgroup * finished * self.tile.warps / 4,
                     products.waited + of_warpgroup * 2 * finished, products.shared + stored)

    @cached_property
    def run(self) -> int:
        """Number of outputs below one another that a warp convolves in turn."""
        return min((run for run in _OUTPUTS_AT_ONCE if self.tile.rows % run == 0),
                   key=lambda run: self._product_cycles(run).alone)

    @property
    def rows_at_once(self) -> int:
        """Rows of outputs whose sums a warp holds at once in the depthwise convolution on tensor
        cores: more where there are few warps, which leave registers free and hide little
        latency."""
        warps = self.tile.warps * self.blocks_per_unit
        few = warps <= _FEW_WARPS or (
            self.tile.wgmma and warps <= max(WARPS)
            and self._warpgroup_sums(self.expand_pairs) <= _MOST_SUMS_BESIDE_ROWS)
        return 4 if few and math.prod(self.block.depthwise.kernel) <= _FEW_TAPS else 2

    def _product_cycles(self, run: int) -> Phase:
        """Returns the cycles of the depthwise convolution on tensor cores."""
        p, tile = self.block.depthwise, self.tile
        columns = -(-tile.rows // run * tile.columns // ROWS)
        units = tile.chunk // 8 * columns
        of_warp = -(-units // tile.warps)
        # a product takes two neighbouring taps, or the last taps of two rows of odd length
        taps, columns_of_taps = math.prod(p.kernel), p.kernel[1] // 2 + p.kernel[1] % 2
        pairs = -(-taps // 2)
        rows = (run - 1) * min(p.stride[0], p.kernel[0]) + p.kernel[0]
        of_output = pairs * CYCLES_OF_PRODUCT["fp16"] + 8
        issued = 3 * taps + 2 * rows * columns_of_taps + run * of_output + 50
        waited = 100 + -(-run // self.rows_at_once) * (pairs * _CHAIN["fp16"] + 80)
        loads = rows * (p.kernel[1] // 2) + rows // p.stride[0] * (p.kernel[1] % 2)
        return self._phase(of_warp * issued, of_warp * waited,
                           units * (_ACCESS * loads + 2 * run))

    def _warpgroup_sums(self, pairs: int) -> int:
        """Returns the number of registers that a work-item needs with wgmma: for the sums of the
        projection, for the sums of an expansion of `pairs` pairs of channel tiles, and for a large
        filter."""
        is_large = math.prod(self.block.depthwise.kernel) > _FEW_TAPS
        return self.sums + 8 * pairs + _LARGE_FILTER * is_large

    @cached_property
    def blocks_per_unit(self) -> int:
        """Work-groups for which the compiler is to leave room in a multiprocessor's registers."""
        if self.tile.wgmma:
            most = next((warps for warps, sums in _WARPGROUP_SUMS.items()
                         if self._warpgroup_sums(self.expand_pairs) <= sums), 8)
            return max(1, min(most // self.tile.warps,
                              _UNIT_BYTES // (self.shared_bytes + _RESERVED_BYTES)))
        splits = self.precision == "fp32"
        crowded = self.sums > (16 if splits else 32) or (splits and self.expand_tiles > 1) or (
            not self.convolves and self.sums + 4 * self.columns_at_once > 44)
        most = 8 if crowded else 12 if splits else 16
        return max(1, most // self.tile.warps)

    @cached_property
    def columns_at_once(self) -> int:
        """Neighbouring outputs that a work-item convolves at once."""
        return min((count for count in _OUTPUTS_AT_ONCE if self.tile.columns % count == 0),
                   key=lambda count: self._convolve_cycles(count).alone)

    def _convolve_cycles(self, columns_at_once: int) -> Phase:
        """Returns the cycles of the depthwise convolution without tensor cores."""
        p, tile = self.block.depthwise, self.tile
        units = tile.rows * (tile.columns // columns_at_once) * (tile.chunk // 4)
        window = (columns_at_once - 1) * p.stride[1] + p.kernel[1]
        per_unit = p.kernel[0] * (6 * window + 4 * p.kernel[1] + 4 * columns_at_once * p.kernel[1])
        issued = -(-units // (32 * tile.warps)) * (per_unit + 24 * columns_at_once + 30)
        accesses = p.kernel[0] * (window + p.kernel[1]) + columns_at_once
        return self._phase(issued, 1.5 * issued, units / 32 * _ACCESS * accesses)

    def why_unfit(self, limits: Limits) -> str | None:
        """Returns the reason why the device cannot run the tile, or None."""
        if self.shared_bytes > limits.shared_bytes_opt_in:
            return (f"needs {self.shared_bytes} bytes of shared memory a group, there are "
                    f"{limits.shared_bytes_opt_in}")
        if self.tile.wgmma:
            if not limits.wgmma:
                return "the device has no wgmma (sm_90a)"
            if self.precision == "fp32" or self.block.excite is not None:
                return "wgmma takes float16 and TF32, and no squeeze-and-excite"
            if self.tile.warps % WARPGROUP_WARPS:
                return f"wgmma takes four warps at a time, not {self.tile.warps}"
            if not self._fits_warpgroup(self.expand_pairs):
                return f"{self.sums} sums of a work-item and an expansion do not fit its registers"
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
        phases = [self._product_cycles(self.run) if self.convolves
                  else self._convolve_cycles(self.columns_at_once),
                  self._project_cycles(self.warpgroups_m)]
        if self.block.expand is not None:
            phases.append(self._expand_cycles(*self._expand_unit))
        work = ChunkWork(tuple(phases), tile.cluster, self.own_chunks, 16 * self.weight_words,
                         self.precision)
        if self.block.excite is not None:
            small = self.block.excite.squeezed * self.hidden * 32 // self._word
            return waves * cycles_with_excite(work, small, together)
        if waves == 1 and p.batch == 1:
            return cycles_of_image(work, max(together, work.beside(groups, limits)))
        return waves * cycles_of_wave(work, together)
