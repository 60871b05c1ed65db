"""Divide a block into tiles for inverted_residual_mma, and each tile among work-groups and warps.

`tilings` lists the tiles that fit a device, in increasing order of expected time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gossamer.device.limits import Limits
from gossamer.ops.fused.inverted_residual.block import Block, of_batch
from gossamer.ops.fused.inverted_residual.divisions import (
    DEPTHS,
    FEW_TAPS,
    ROWS,
    WARPGROUP_SUMS,
    WARPGROUP_WARPS,
    WARPS,
    Division,
    WorkGroup,
    convolution,
    convolution_on_tensor_cores,
    expansion,
    fits_warpgroup,
    projection,
    warpgroup_sums,
)
from gossamer.ops.gpu import BEGIN, COPIED, RESERVED_BYTES, LaunchWork, groups_per_unit

_PAIR_WORDS = 32
"""Number of 16-byte words of weights for one step of K and a pair of channel tiles."""
_MOST_TAPS = 25
"""Maximum number of taps of a depthwise convolution on tensor cores; the inputs of more taps would
not fit the registers."""
_MOST_STRIDE = 2
"""Maximum row stride of a depthwise convolution on tensor cores."""
# The limits of accumulators were found by compiling, like those in divisions.py.
_MOST_SUMS = 96
"""Maximum number of accumulators of the projection that fit the registers of a work-item."""
_MOST_EXCITED_SUMS = 48
"""Value that replaces _MOST_SUMS if three conditions hold: the block has squeeze-and-excite, the
precision is TF32 or float32, and a work-group has 16 warps. With more accumulators, the compiler
spilled registers on sm_100."""
_MOST_SUMS_BESIDE_ROWS = 56
"""Maximum number of accumulators of expansion and projection for which a work-item has enough
registers for four rows of depthwise outputs. Applies to wgmma with at most 16 warps per
multiprocessor."""
_UNIT_BYTES = 233472
"""Bytes of shared memory per multiprocessor of sm_90a."""
_MOST_GRID = 65535
"""Maximum number of work-groups of a grid along each of y and z."""
_FEW_WARPS = 8
"""With at most this number of warps per multiprocessor, and a filter of at most FEW_TAPS taps, each
warp computes four rows of depthwise outputs at once instead of two."""
_BARRIER_WORDS = 3
"""Number of 16-byte words for the barriers of copies and sums."""
# The rates below were fitted to a ranking of MobileNet's tiles. A cost model computed the ranking.
# That model had been fitted to 900 measured times of small and large batches on an H200.
_BUSY, _STALLED, _PHASE = 1.24, 1.23, 186.0
"""Factors by which the busy and the waited cycles of a phase are multiplied (see Division), and the
fixed overhead of a phase in cycles, including the barrier after it."""
_CLUSTER, _MEMBER, _EXCITES = 723.0, 122.0, 5000.0
"""Start-up cycles of a cluster, start-up cycles of each further work-group of the cluster, and
cycles of a squeeze-and-excite layer excluding the loading of its weights."""


@dataclass(frozen=True)
class BlockTile:
    """The tile of a cluster of work-groups.

    rows: rows of outputs.
    columns: columns of outputs.
    chunk: number of hidden channels that a work-group computes at once; a multiple of 16.
    cluster: number of work-groups, to which chunks are assigned round-robin.
    warps: number of warps per work-group.
    wgmma: 1 if four warps multiply together with wgmma (sm_90a), 0 if each warp uses mma.
    """

    rows: int
    columns: int
    chunk: int
    cluster: int
    warps: int
    wgmma: int = 0


@dataclass(frozen=True)
class BlockTiling:
    """A block divided into tiles, and the division of each tile among warps.

    block: the block.
    tile: the tile of each cluster.
    precision: "fp32", "tf32" or "fp16".
    """

    block: Block
    tile: BlockTile
    precision: str

    @cached_property
    def halo(self) -> tuple[int, int]:
        """Numbers of rows and columns of depthwise inputs per tile."""
        return self.block.halo(self.tile.rows, self.tile.columns)

    @cached_property
    def _windows(self) -> int:
        """Maximum number of input pixels that a tile's depthwise windows cover."""
        p = self.block.depthwise
        return min(self.halo[0], p.height) * min(self.halo[1], p.width)

    @cached_property
    def pixel_tiles(self) -> int:
        """Number of pixel tiles (16 pixels) in a tile's outputs."""
        return -(-self.tile.rows * self.tile.columns // ROWS)

    @cached_property
    def chunks(self) -> int:
        """Number of chunks of hidden channels."""
        return -(-self.block.hidden // self.tile.chunk)

    @property
    def hidden(self) -> int:
        """Number of hidden channels, rounded up to a multiple of the chunk."""
        return self.chunks * self.tile.chunk

    @cached_property
    def own_chunks(self) -> int:
        """Maximum number of chunks per work-group."""
        return -(-self.chunks // self.tile.cluster)

    @property
    def stages(self) -> int:
        """Number of chunks whose weights are in shared memory at once."""
        return min(self.own_chunks, 2)

    @cached_property
    def expand_steps(self) -> int:
        """Number of steps of K of the expansion; 0 without an expansion."""
        return -(-self.block.expanded_inputs // DEPTHS[self.precision])

    @property
    def operands(self) -> int:
        """Number of elements stored per pixel of the block's input.

        An element is an input channel. If the first convolution gathers windows, an element is an
        input of the pixel's window, and windows are padded with zeros to whole steps of K.
        """
        if self.block.gathers:
            return self.expand_steps * DEPTHS[self.precision]
        return self.block.channels

    @property
    def project_steps(self) -> int:
        """Number of steps of K of a chunk's projection."""
        return self.tile.chunk // DEPTHS[self.precision]

    @cached_property
    def out_pairs(self) -> int:
        """Number of pairs of channel tiles (8 channels) in the output."""
        return -(-self.block.out_channels // 16)

    @cached_property
    def expand_words(self) -> int:
        """Number of 16-byte words of a chunk's expansion weights."""
        return self.expand_steps * (self.tile.chunk // 16) * _PAIR_WORDS

    @cached_property
    def constants(self) -> tuple[int, int, int]:
        """Number of constants per channel in the epilogue of each convolution.

        The order is expansion (0 if there is none), depthwise convolution, projection.
        """
        counts = [part.epilogue.operands.count("channel") for part in self.block.convolutions]
        first, second, third = counts if len(counts) == 3 else (0, *counts)
        return first, second, third

    @cached_property
    def constant_words(self) -> int:
        """Number of 16-byte words of a chunk's depthwise weights and epilogue constants.

        The constants are those in the epilogues of the expansion and of the depthwise convolution.
        """
        taps = math.prod(self.block.depthwise.kernel)
        if self.convolves:
            return (taps * self.tile.chunk // 8
                    + sum(self.constants[:2]) * self.tile.chunk // 4)
        return (taps + sum(self.constants[:2])) * self.tile.chunk // 4

    @cached_property
    def weight_words(self) -> int:
        """Number of 16-byte words of all weights and constants of a chunk."""
        return (self.expand_words + self.constant_words
                + self.project_steps * self.out_pairs * _PAIR_WORDS)

    @property
    def fragments(self) -> int:
        """Number of fragments (16 pixels by 8 channels) in a tile's results."""
        return self.pixel_tiles * (self.block.out_channels // 8)

    @cached_property
    def convolves(self) -> bool:
        """Whether tensor cores compute the depthwise convolution."""
        p = self.block.depthwise
        return (self.precision == "fp16" and math.prod(p.kernel) <= _MOST_TAPS
                and p.stride[0] <= _MOST_STRIDE)

    @cached_property
    def row_tiles(self) -> int:
        """Number of pixel tiles (16 pixels) that a work-group's depthwise windows cover.

        The number is rounded up to a multiple of the tiles that a warp (with wgmma, a warpgroup)
        expands at once.
        """
        of_unit = self.expand_tiles * self._work_group.warpgroup_warps
        return -(-self._windows // (ROWS * of_unit)) * of_unit

    @property
    def expand_tiles(self) -> int:
        """Number of pixel tiles that a warp expands at once."""
        return 1 if self._expansion is None else self._expansion.sizes[0]

    @property
    def expand_pairs(self) -> int:
        """Number of pairs of channel tiles that a warp expands at once."""
        return 1 if self._expansion is None else self._expansion.sizes[1]

    @property
    def warpgroups_m(self) -> int:
        """Number of groups into which the projection's channels are divided."""
        return self._projection.sizes[0]

    @property
    def sums(self) -> int:
        """Number of accumulators of the projection per work-item."""
        return self._projection.sizes[1]

    @property
    def outputs_in_turn(self) -> int:
        """Number of consecutive outputs of a column that a warp computes on tensor cores."""
        return self._convolution_on_tensor_cores.sizes[0]

    @property
    def columns_at_once(self) -> int:
        """Number of neighbouring outputs that a work-item computes without tensor cores."""
        return self._convolution.sizes[0]

    @cached_property
    def _work_group(self) -> WorkGroup:
        return WorkGroup(self.tile.warps, self.tile.wgmma, self.precision)

    @cached_property
    def _projection(self) -> Division:
        return projection(self._work_group, self.pixel_tiles, self.out_pairs, self.tile.chunk)

    @cached_property
    def _expansion(self) -> Division | None:
        if self.block.expand is None:
            return None
        return expansion(self._work_group, -(-self._windows // ROWS), self.tile.chunk,
                         self.expand_steps, sums=self.sums, taps=self._taps,
                         convolves=self.convolves)

    @cached_property
    def _convolution_on_tensor_cores(self) -> Division:
        p = self.block.depthwise
        return convolution_on_tensor_cores(
            self._work_group, (self.tile.rows, self.tile.columns), self.tile.chunk, p.kernel,
            p.stride[0], self.rows_at_once)

    @cached_property
    def _convolution(self) -> Division:
        p = self.block.depthwise
        return convolution(self._work_group, (self.tile.rows, self.tile.columns), self.tile.chunk,
                           p.kernel, p.stride[1])

    @property
    def _taps(self) -> int:
        return math.prod(self.block.depthwise.kernel)

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per work-group."""
        word, expands = self._work_group.word, self.block.expand is not None
        x_row = self.expand_steps * DEPTHS[self.precision] // word + 1
        chunk_row = self.tile.chunk // word + 1
        results = self.constants[2] * self.block.out_channels // 4
        others = (results + self.row_tiles * 4 + _BARRIER_WORDS
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
            # convolved pixels stay in shared memory; sums overwrite the inputs and expanded pixels
            return 16 * (max(inputs + expanded, sums) + self.own_chunks * convolved + gates
                         + others)
        return 16 * (inputs + expanded + convolved + sums + others)

    @property
    def rows_at_once(self) -> int:
        """Number of rows of depthwise outputs that a warp accumulates at once on tensor cores.

        With few warps the number is larger. There are then enough registers, and the warps alone
        would hide too little latency.
        """
        warps = self.tile.warps * self.blocks_per_unit
        few = warps <= _FEW_WARPS or (
            self.tile.wgmma and warps <= max(WARPS)
            and warpgroup_sums(self.sums, self.expand_pairs, self._taps) <= _MOST_SUMS_BESIDE_ROWS)
        return 4 if few and self._taps <= FEW_TAPS else 2

    @cached_property
    def blocks_per_unit(self) -> int:
        """Number of work-groups per multiprocessor for which the compiler must leave registers."""
        if self.tile.wgmma:
            most = next((warps for warps, sums in WARPGROUP_SUMS.items()
                         if warpgroup_sums(self.sums, self.expand_pairs, self._taps) <= sums), 8)
            return max(1, min(most // self.tile.warps,
                              _UNIT_BYTES // (self.shared_bytes + RESERVED_BYTES)))
        splits = self.precision == "fp32"
        takes_many = self.sums > (16 if splits else 32) or (splits and self.expand_tiles > 1) or (
            not self.convolves and self.sums + 4 * self.columns_at_once > 44)
        most = 8 if takes_many else 12 if splits else 16
        return max(1, most // self.tile.warps)

    def fits(self, limits: Limits) -> bool:
        """Return whether the tiling fits the device."""
        tile, p, excites = self.tile, self.block.depthwise, self.block.excite is not None
        # wgmma kernels need float16 or TF32 and a multiple of four warps, and do not support
        # squeeze-and-excite
        if tile.wgmma and (not limits.wgmma or self.precision == "fp32" or excites
                           or tile.warps % WARPGROUP_WARPS or not fits_warpgroup(
                               self._work_group, self.sums, self.expand_pairs, self._taps)):
            return False
        is_tight = excites and self.precision != "fp16" and tile.warps == max(WARPS)
        return (self.shared_bytes <= limits.shared_bytes_opt_in
                and self.sums <= (_MOST_EXCITED_SUMS if is_tight else _MOST_SUMS)
                and max(-(-p.out_height // tile.rows), p.batch) <= _MOST_GRID)

    def expected_us(self, limits: Limits) -> float:
        """Return the expected time of the kernel in microseconds."""
        p, tile = self.block.depthwise, self.tile
        groups = (tile.cluster * -(-p.out_height // tile.rows) * -(-p.out_width // tile.columns)
                  * p.batch)
        convolved = self._convolution_on_tensor_cores if self.convolves else self._convolution
        phases = [phase for phase in (self._expansion, convolved, self._projection) if phase]
        fetched = 16 * self.weight_words / COPIED
        busy = math.hypot(_BUSY * sum(phase.busy for phase in phases), fetched)
        waited = sum(max(phase.busy, _STALLED * phase.waited) + _PHASE for phase in phases)
        begin = BEGIN + fetched + _CLUSTER * (tile.cluster > 1) + _MEMBER * (tile.cluster - 1)
        if self.block.excite is not None:
            # the weights of the two small convolutions are divided among the cluster's work-groups
            begin += _EXCITES + (self.block.excite.squeezed * self.hidden * 32
                                 / self._work_group.word / tile.cluster / COPIED)
        return LaunchWork(
            groups, groups_per_unit(self.shared_bytes, limits, self.blocks_per_unit),
            busy=self.own_chunks * busy, waited=self.own_chunks * waited, begin=begin,
            cluster=tile.cluster).expected_us(limits)


_SHAPES = ((1, 4), (2, 4), (4, 4), (2, 7), (7, 2), (4, 7), (7, 4), (4, 8), (7, 7), (8, 8), (7, 14),
           (8, 16), (14, 14), (16, 16))
"""Approximate numbers of output rows and columns of the candidate tiles."""
_CHUNKS = (16, 32, 48, 64, 96, 128)
BATCHES = (1, 64)
"""Batch sizes for which candidate tiles are chosen. A block has the same candidates at every batch
size, so that a plan tuned at one batch size can be used at others."""
_CLUSTERS = (1, 2, 3, 4, 6, 8, 10, 12, 15, 16)
_MOST_SHARED = 3
"""The largest cluster size is tried if it results in at most this number of work-groups per
multiprocessor."""


@lru_cache(maxsize=1024)
def tilings(block: Block, precision: str, limits: Limits) -> tuple[BlockTiling, ...]:
    """Return the tiles that fit the device, in increasing order of expected time."""
    p = block.depthwise
    if not p.outputs[0].size:
        return ()
    fitting = []
    for rows, columns in _shapes(block):
        groups = -(-p.out_height // rows) * -(-p.out_width // columns) * p.batch
        for chunk in _CHUNKS:
            if chunk >= block.hidden + 16:
                continue
            most = min(limits.cluster, -(-block.hidden // chunk))
            clusters = _clusters(groups, most, limits.compute_units)
            if block.excite is not None:
                # all sizes are tried, because the shared memory of a small cluster may not hold all
                # hidden channels of an image
                clusters = [size for size in _CLUSTERS if size <= most]
            for cluster in clusters:
                for warps in WARPS:
                    for wgmma in (0, 1):
                        tile = BlockTile(rows, columns, chunk, cluster, warps, wgmma)
                        divided = BlockTiling(block, tile, precision)
                        if divided.fits(limits):
                            fitting.append(divided)
    return tuple(sorted(fitting, key=lambda divided: divided.expected_us(limits)))


def _clusters(groups: int, most: int, units: int) -> list[int]:
    """Return the cluster sizes to try.

    Of the sizes in _CLUSTERS up to `most`, these are:
    - the largest size with fewer work-groups per launch than compute units,
    - the smallest size with at least as many work-groups per launch as compute units,
    - the largest size, if it results in at most _MOST_SHARED work-groups per compute unit.

    groups: number of clusters per launch.
    most: maximum cluster size.
    units: number of compute units.
    """
    sizes = [size for size in _CLUSTERS if size <= most]
    filling = sum(size * groups < units for size in sizes)
    tried = sizes[max(0, filling - 1):filling + 1]
    if sizes[-1] * groups <= _MOST_SHARED * units:
        tried.append(sizes[-1])
    return list(dict.fromkeys(tried))


def has_tile(block: Block, precision: str, limits: Limits) -> bool:
    """Return whether any tile of a block fits the device in a precision.

    Tiles with the smallest chunk and without clusters are checked first, because this is fast.
    """
    if block.excite is None and any(
            BlockTiling(block, BlockTile(rows, columns, _CHUNKS[0], 1, warps),
                        precision).fits(limits)
            for rows, columns in _shapes(block) for warps in WARPS):
        return True
    return any(tilings(of_batch(block, batch), precision, limits) for batch in BATCHES)


def _shapes(block: Block) -> list[tuple[int, int]]:
    """Return the (rows, columns) of the tiles to try.

    Squeeze-and-excite needs means over the image, so the only tile is the whole image.
    """
    p = block.depthwise
    if block.excite is not None:
        return [(p.out_height, p.out_width)]
    return list(dict.fromkeys((_balanced(p.out_height, rows), _balanced(p.out_width, columns))
                              for rows, columns in _SHAPES))


def _balanced(size: int, most: int) -> int:
    """Return the length of the tiles into which `size` is divided as evenly as possible.

    The number of tiles is the smallest for which the length is at most `most`.
    """
    return -(-size // -(-size // most))
