"""How generated sparse convolution is divided among work-groups, work-items and code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gossamer.ops.conv2d.problem import Conv2dProblem

WARP = 32
BUFFERS = 3
"""Parts of shared memory between which loading and computing alternate."""

_REGISTERS = 65536
SUB_PARTITIONS = 4
"""Of a multiprocessor, each with warps of its own."""


@dataclass(frozen=True)
class GeneratedConfig:
    """channels: output channels of a block, whose sums a work-item holds at once.
    images, rows, columns: the results of a work-group, for each of its channels.
    stage: input channels between two barriers.
    k_groups: sets of work-items that share the input channels and add up at the end.
    staggered_entries: parts of a stage's code at which different warps begin, each running all of them in
    turn: as many instruction fetches are under way at once.
    prefetch_warps: 1 where warps without results, one a stream, run through a stage's code before the
    others come to it, each its own part; the others find it fetched, and all begin at its start.
    Else 0. Only with one k_group.
    blocks_per_unit: work-groups that must fit a multiprocessor at once.
    kernels: among which the blocks are shared; they are assembled, and run, at the same time.
    """

    channels: int
    images: int
    rows: int
    columns: int
    stage: int
    k_groups: int = 1
    staggered_entries: int = 1
    prefetch_warps: int = 0
    blocks_per_unit: int = 1
    kernels: int = 1


@dataclass(frozen=True)
class GeneratedTiling:
    """A config applied to a problem. Tensors lie in CHWN; bytes unless a name says otherwise.

    halves: inputs and outputs are float16, and a work-item computes two neighbouring images.
    """

    problem: Conv2dProblem
    config: GeneratedConfig
    halves: bool = False

    @property
    def itemsize(self) -> int:
        return 2 if self.halves else 4

    @property
    def pair(self) -> int:
        """Images of a work-item."""
        return 2 if self.halves else 1

    @property
    def lanes(self) -> int:
        """Work-items of a pixel."""
        return self.config.images // self.pair

    @property
    def items(self) -> int:
        """Work-items of a k_group that have results."""
        return self.config.rows * self.config.columns * self.lanes

    @property
    def k_group(self) -> int:
        """Work-items of a k_group: whole warps."""
        return -(-self.items // WARP) * WARP

    @property
    def workers(self) -> int:
        """Work-items of all k_groups."""
        return self.k_group * self.config.k_groups

    @property
    def work_group(self) -> int:
        """Work-items with those of prefetch_warps."""
        return self.workers + self.config.prefetch_warps * self.config.staggered_entries * WARP

    @property
    def pixel(self) -> int:
        """Of a pixel's images in memory."""
        return self.problem.batch * self.itemsize

    @property
    def patch_pixel(self) -> int:
        """Of a pixel's images in shared memory."""
        return self.config.images * self.itemsize

    @cached_property
    def vector(self) -> int:
        """Copied to shared memory at once: 16, 8 or 4, or 0 where nothing is aligned. Several
        pixels at once where a group takes all images, and those come in parts of them."""
        problem, tile = self.problem, self.config.columns * self.problem.stride[1]
        whole = self.config.images == problem.batch
        for size in (16, 8, 4):
            pixels = size // self.pixel
            if self.pixel % size == 0 and self.patch_pixel % size == 0:
                return size
            if (whole and size % self.pixel == 0 and problem.width % pixels == 0
                    and (tile % pixels == 0 or self.tiles[2] == 1)):
                return size
        return 0

    @property
    def lead(self) -> int:
        """Columns of the patch before those that are needed, so that vectors are aligned."""
        return -self.problem.pads[1] % max(1, self.vector // self.pixel)

    @property
    def patch_rows(self) -> int:
        problem = self.problem
        return ((self.config.rows - 1) * problem.stride[0]
                + (problem.kernel[0] - 1) * problem.dilation[0] + 1)

    @property
    def patch_columns(self) -> int:
        problem = self.problem
        needed = ((self.config.columns - 1) * problem.stride[1] + self.lead
                  + (problem.kernel[1] - 1) * problem.dilation[1] + 1)
        pixels = max(1, self.vector // self.pixel)
        return -(-needed // pixels) * pixels

    @property
    def plane(self) -> int:
        """Of an input channel in shared memory."""
        return -(-self.patch_rows * self.patch_columns * self.patch_pixel // 16) * 16

    @property
    def vectors(self) -> int:
        """Copied for an input channel."""
        return self.patch_rows * self.patch_columns * self.patch_pixel // self.vector

    @property
    def copies(self) -> int:
        """Vectors that a work-item copies for an input channel."""
        return -(-self.vectors // self.work_group)

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Work-groups along images, rows and columns."""
        problem, config = self.problem, self.config
        return (-(-problem.batch // config.images), -(-problem.out_height // config.rows),
                -(-problem.out_width // config.columns))

    @property
    def blocks(self) -> int:
        """Blocks of the output channels of one of the problem's groups, of like size."""
        return -(-self.per_group // self.config.channels)

    @property
    def per_group(self) -> int:
        return self.problem.out_channels // self.problem.groups

    @property
    def block(self) -> int:
        """Output channels of a block, at most."""
        return -(-self.per_group // self.blocks)

    @property
    def groups(self) -> tuple[int, int]:
        """Work-groups: tiles by blocks."""
        images, rows, columns = self.tiles
        return images * rows * columns, self.blocks * self.problem.groups

    @property
    def buffers(self) -> int:
        stages = -(-(self.problem.channels // self.problem.groups) // self.config.stage)
        return min(BUFFERS, stages)

    @property
    def shared_bytes(self) -> int:
        staged = self.buffers * self.config.stage * self.plane
        sums = 4 * self.pair * self.block * self.workers if self.config.k_groups > 1 else 0
        return max(staged, sums)

    @property
    def registers(self) -> int:
        """The most that a work-item may use: warps are dealt to the parts of a multiprocessor,
        each with registers of its own."""
        warps = -(-self.work_group // WARP // SUB_PARTITIONS) * self.config.blocks_per_unit
        return min(255, _REGISTERS // SUB_PARTITIONS // (warps * WARP) // 8 * 8)
