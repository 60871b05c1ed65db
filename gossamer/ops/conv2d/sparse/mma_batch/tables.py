"""Builds the tables of direct_sparse_mma: the weights of columns, and where columns lie in shared
memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.common.tensor_cores import ROWS, packed_fragments
from gossamer.ops.conv2d.sparse.mma_batch.order import Kind, TileBlock, blocks_of, dealt, scheduled
from gossamer.ops.lru_cache import LruCache
from gossamer.ops.weights import Weights

ROW_CLASSES = 3
"""Difference between the swizzle classes of a pixel and of the pixel above it; direct_sparse_mma.cu
defines swizzle classes. With 3, a window of 3 x 3 has all eight classes."""

_PARTS: LruCache[dict[str, np.ndarray]] = LruCache(
    2**28, lambda parts: sum(part.nbytes for part in parts.values()))
"""A cache of the tables of layers, which do not depend on the batch size. The cache's size is in
bytes."""


@dataclass(frozen=True)
class Geometry:
    """How a layer's input lies in shared memory, into which it is copied one chunk of channels at a
    time.

    height: rows of the input that the windows of a tile cover.
    width: columns of the input that the windows of a tile cover.
    chunk: channels that are copied at a time.
    stages: parts of shared memory, each for a chunk, which are filled one after another (a ring).
    """

    height: int
    width: int
    chunk: int
    stages: int

    @property
    def pitch(self) -> int:
        """Rows of shared memory that a channel takes."""
        return self.height * self.width

    @property
    def stage_rows(self) -> int:
        """Rows of shared memory that a chunk takes."""
        return self.chunk * self.pitch

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory: the rows of all stages, the sources of one stage's rows, and the
        tile's position."""
        return self.stage_rows * (self.stages * 128 + 8) + 16


@dataclass(frozen=True)
class BatchTables:
    """The tables of a layer, which is multiplied in blocks of similar output channels.

    problem: the convolution.
    weights: the weights of the layer.
    kind: the precision.
    tiles: tiles of 16 output channels in a block.
    together: blocks of a work-group.
    warps_a_block: warps that multiply the same block.
    geometry: how the input lies in shared memory.

    The tables by name:

    "starts" has for each block its first step and, phase by phase, the end of the steps of each
    kind (with two tiles: steps for both tiles, for the first tile alone, for the second tile
    alone).
    "places" has for each column of a step its row of shared memory for the tile's first pixel,
    times 128, plus the row's swizzle class.
    "weights" has the fragments of 16 channels, four registers for each of 32 lanes. A step has as
    many fragments as a block has tiles; where the columns of the step are for one tile alone, each
    fragment has other columns.
    "channels" has for each row of a block its output channel, or -1.

    One further step follows the last step, because kernels read ahead.
    """

    problem: Conv2dProblem
    weights: Weights
    kind: Kind
    tiles: int
    together: int
    warps_a_block: int
    geometry: Geometry

    def key(self, part: str) -> str:
        """Returns the name under which a table is cached with the weights."""
        return (f"{part} of {self.tiles} tiles, {self.together} x {self.warps_a_block}, "
                f"{self.kind}, {self.geometry}")

    def packing(self, part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        """Returns a function that packs a layer's arrays into a table."""
        return lambda arrays: self.parts[part]

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """The tables by name."""
        return _PARTS.of((replace(self.problem, batch=1), self.key(""), self.weights.digest),
                         self._parts)

    def _parts(self) -> dict[str, np.ndarray]:
        problem, depth = self.problem, self.kind.depth
        matrix = np.asarray(self.weights.arrays["weight"], np.float32).reshape(
            problem.out_channels, -1)
        per_group = problem.out_channels // problem.groups
        starts, channels, places, values = [], [], [], []
        step = 0
        for first in range(0, problem.out_channels, per_group):
            rows = np.arange(first, first + per_group)
            blocks = blocks_of(rows, matrix[rows] != 0, self.tiles)
            for number, block in enumerate(dealt(blocks, self.together, self.warps_a_block)):
                # the blocks of one scheduler round their numbers of steps in a phase differently,
                # so that the scheduler's sums of steps are similar in all phases
                of_scheduler = number % self.together // 4
                rounding = (of_scheduler + 0.5) / -(-self.together // 4)
                kinds = [self._steps(block, tiles, matrix, rounding) for tiles in block.kinds]
                block_starts = [step]
                for phase in range(phases_of(problem, self.geometry)):
                    for ends, chosen, weights in kinds:
                        span = slice(ends[phase], ends[phase + 1])
                        places.append(chosen[span])
                        values.append(weights[span])
                        step += len(places[-1])
                        block_starts.append(step)
                starts.append(block_starts)
                channels.append([np.pad(tile, (0, ROWS - len(tile)), constant_values=-1)
                                 for tile in block.tiles])
        places.append(np.zeros((1, self.tiles, depth), np.int64))
        values.append(np.zeros((1, self.tiles, ROWS, depth), np.float32))
        return {"starts": np.array(starts, np.int32),
                "places": np.concatenate(places).astype(np.int32),
                "weights": packed_fragments(np.concatenate(values), self.kind.precision),
                "channels": np.array(channels, np.int32).reshape(-1, self.tiles * ROWS)}

    def _steps(self, block: TileBlock, tiles: tuple[int, ...], matrix: np.ndarray, rounding: float
               ) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Returns the steps for the columns that exactly these tiles need: the number of the first
        step of each phase, and the end; the places (steps, tiles, depth); and the weights (steps,
        tiles, 16, depth)."""
        depth, columns = self.kind.depth, block.columns(tiles)
        sets = self.tiles // len(tiles)
        channel, place = self._located(columns)
        steps, ends = scheduled(channel // self.geometry.chunk, place % self.kind.apart,
                                phases_of(self.problem, self.geometry), self.geometry.stages,
                                self.kind.apart, sets * depth, rounding)
        chosen = np.array(steps, np.int64).reshape(-1, sets * depth)
        flat = chosen.reshape(-1)
        weights = np.zeros((len(tiles), ROWS, flat.size), np.float32)
        for number, tile in enumerate(tiles):
            members = block.tiles[tile]
            weights[number, :len(members), flat >= 0] = matrix[
                np.ix_(members, columns[flat[flat >= 0]])].T
        # unused columns of a step repeat its first column
        filled = place[np.where(chosen < 0, chosen[:, :1], chosen)].reshape(-1, sets, depth)
        by_set = weights.reshape(len(tiles), ROWS, -1, sets, depth).transpose(2, 3, 0, 1, 4)
        return ([0, *ends], np.repeat(filled, self.tiles // sets, axis=1),
                by_set.reshape(-1, self.tiles, ROWS, depth))

    def _located(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each column its channel within the group and its place in shared memory."""
        problem, geometry = self.problem, self.geometry
        channel, tap = np.divmod(columns, problem.kernel[0] * problem.kernel[1])
        row, column = np.divmod(tap, problem.kernel[1])
        chunk, in_chunk = np.divmod(channel, geometry.chunk)
        down, right = row * problem.dilation[0], column * problem.dilation[1]
        pool_row = (chunk % geometry.stages * geometry.stage_rows + in_chunk * geometry.pitch
                    + down * geometry.width + right)
        return channel, pool_row << 7 | (in_chunk + ROW_CLASSES * down + right) % 8


def phases_of(problem: Conv2dProblem, geometry: Geometry) -> int:
    """Returns the number of phases, which is the number of chunks of a group's channels."""
    return -(-(problem.channels // problem.groups) // geometry.chunk)


def block_count(problem: Conv2dProblem, tiles: int, together: int) -> int:
    """Returns the number of blocks of each group, with empty blocks that fill the last
    work-group."""
    blocks = -(-(problem.out_channels // problem.groups) // (ROWS * tiles))
    return -(-blocks // together) * together
