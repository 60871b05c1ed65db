"""The division of a generated sparse convolution among work-groups and parts of the code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.tensor import rounded_up

WARP = 32
BUFFERS = 3
"""Number of buffers in the ring in shared memory; a buffer holds the inputs of one stage."""

_REGISTERS = 65536
SUB_PARTITIONS = 4
"""Number of sub-partitions of a multiprocessor, each with a scheduler and warps of its own."""


@dataclass(frozen=True)
class GeneratedConfig:
    """A way to generate and launch the code of a sparse convolution.

    channels: number of output channels of a block; a work-item holds the sums of all of them.
    images: number of images of a work-group's tile.
    rows: number of output rows of a work-group's tile.
    columns: number of output columns of a work-group's tile.
    stage: number of input channels that are computed between two barriers.
    k_groups: number of sets of work-items among which the input channels are divided. At the end,
    the sums of all sets are added up.
    staggered_entries: number of parts of a stage's code. Different warps begin at different parts,
    so that several instruction fetches are in flight at once; each warp then runs all parts in
    turn.
    prefetch_warps: 1 for one prefetch warp per staggered entry, 0 for none; 1 requires
    k_groups = 1. A prefetch warp computes no results. It runs the entry's part of a stage's code
    one stage ahead, so that the other warps find the code in the instruction cache. The other warps
    then all begin at the start of the stage's code.
    blocks_per_unit: number of work-groups that must fit a multiprocessor at once.
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


@dataclass(frozen=True)
class GeneratedTiling:
    """A config applied to a problem whose tensors have the layout CHWN.

    The patch of a tile is the inputs of one channel that a work-group copies to shared memory for
    the tile.

    problem: the convolution.
    config: the way to generate its code.
    halves: True if inputs and outputs are float16 and a work-item computes two neighbouring images.
    """

    problem: Conv2dProblem
    config: GeneratedConfig
    halves: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the input and the output."""
        return 2 if self.halves else 4

    @property
    def pair(self) -> int:
        """Number of neighbouring images that a work-item computes."""
        return 2 if self.halves else 1

    @property
    def lanes(self) -> int:
        """Number of work-items that compute one pixel, for different images."""
        return self.config.images // self.pair

    @property
    def items(self) -> int:
        """Number of work-items of a k_group that have results."""
        return self.config.rows * self.config.columns * self.lanes

    @property
    def k_group(self) -> int:
        """Number of work-items of a k_group, rounded up to whole warps."""
        return rounded_up(self.items, WARP)

    @property
    def workers(self) -> int:
        """Number of work-items of all k_groups."""
        return self.k_group * self.config.k_groups

    @property
    def work_group(self) -> int:
        """Number of work-items of a work-group, including prefetch warps."""
        return self.workers + self.config.prefetch_warps * self.config.staggered_entries * WARP

    @property
    def pixel(self) -> int:
        """Bytes of one pixel of an input channel in memory, for all images.

        In CHWN the values of all images of the batch are adjacent.
        """
        return self.problem.batch * self.itemsize

    @property
    def patch_pixel(self) -> int:
        """Bytes of one pixel of an input channel in shared memory, for the images of the tile."""
        return self.config.images * self.itemsize

    @cached_property
    def vector(self) -> int:
        """Bytes that one instruction copies to shared memory.

        The result is 16, 8 or 4. It is 0 if vectors of none of these sizes are aligned. If a
        work-group computes all images, and if a pixel has fewer bytes than a vector, a vector can
        span several pixels.
        """
        problem, tile = self.problem, self.config.columns * self.problem.stride[1]
        all_images = self.config.images == problem.batch
        for size in (16, 8, 4):
            pixels = size // self.pixel
            if self.pixel % size == 0 and self.patch_pixel % size == 0:
                return size
            if (all_images and size % self.pixel == 0 and problem.width % pixels == 0
                    and (tile % pixels == 0 or self.tiles[2] == 1)):
                return size
        return 0

    @property
    def lead(self) -> int:
        """Number of columns of the patch before the first column that is needed.

        These extra columns align the start of the patch to a vector.
        """
        return -self.problem.pads[1] % max(1, self.vector // self.pixel)

    @property
    def patch_rows(self) -> int:
        """Number of input rows that the windows of a tile cover."""
        return self.problem.window(0, self.config.rows)

    @property
    def patch_columns(self) -> int:
        """Number of input columns that the windows of a tile cover, rounded up to whole vectors."""
        needed = self.problem.window(1, self.config.columns) + self.lead
        return rounded_up(needed, max(1, self.vector // self.pixel))

    @property
    def plane(self) -> int:
        """Bytes of an input channel in shared memory."""
        return rounded_up(self.patch_rows * self.patch_columns * self.patch_pixel, 16)

    @property
    def vectors(self) -> int:
        """Number of vectors that a work-group copies for an input channel."""
        return self.patch_rows * self.patch_columns * self.patch_pixel // self.vector

    @property
    def copies(self) -> int:
        """Number of vectors that a work-item copies for an input channel."""
        return -(-self.vectors // self.work_group)

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Numbers of work-groups along images, rows and columns."""
        problem, config = self.problem, self.config
        return (-(-problem.batch // config.images), -(-problem.out_height // config.rows),
                -(-problem.out_width // config.columns))

    @property
    def blocks(self) -> int:
        """Number of blocks into which the output channels of a group are divided."""
        return -(-self.problem.group_out_channels // self.config.channels)

    @property
    def block(self) -> int:
        """Maximum number of output channels of a block."""
        return -(-self.problem.group_out_channels // self.blocks)

    @property
    def groups(self) -> tuple[int, int]:
        """Number of tiles, and number of blocks of all groups of the convolution.

        There is one work-group for each pair of a tile and a block.
        """
        images, rows, columns = self.tiles
        return images * rows * columns, self.blocks * self.problem.groups

    @property
    def buffers(self) -> int:
        """Number of buffers in use: fewer than BUFFERS if the layer has fewer stages."""
        stages = -(-self.problem.group_channels // self.config.stage)
        return min(BUFFERS, stages)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group.

        The memory is first used for the buffers, and then for the sums of the k_groups.
        """
        staged = self.buffers * self.config.stage * self.plane
        sums = 4 * self.pair * self.block * self.workers if self.config.k_groups > 1 else 0
        return max(staged, sums)

    @property
    def registers(self) -> int:
        """Maximum number of registers that a work-item may use."""
        return self.registers_of(self.config.blocks_per_unit)

    def registers_of(self, blocks_per_unit: int) -> int:
        """Return the maximum number of registers that a work-item may use.

        Warps are divided among the multiprocessor's sub-partitions, each with its own registers.

        blocks_per_unit: number of work-groups that share a multiprocessor.
        """
        warps = -(-self.work_group // WARP // SUB_PARTITIONS) * blocks_per_unit
        return min(255, _REGISTERS // SUB_PARTITIONS // (warps * WARP) // 8 * 8)
