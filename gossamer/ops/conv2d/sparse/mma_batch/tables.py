"""The tables of direct_sparse_mma: where its columns lie in shared memory, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.common.tensor_cores import ROWS, fragments
from gossamer.ops.conv2d.sparse.mma_batch.order import Kind, TileBlock, blocks_of, dealt, scheduled
from gossamer.ops.lru_cache import LruCache
from gossamer.ops.weights import Weights

ROW_CLASSES = 3
"""What the class of a pixel's row of shared memory grows by along y: so a window of 3 x 3 has all
eight."""


_PARTS: LruCache[dict[str, np.ndarray]] = LruCache(
    2**28, lambda parts: sum(part.nbytes for part in parts.values()))
"""The tables of layers, whatever the batch."""


@dataclass(frozen=True)
class Geometry:
    """How a layer's input comes into shared memory: `chunk` channels at a time, for each of which
    `pitch` rows, into one of `stages` parts of `stage_rows` rows. height, width: of the input
    pixels that a tile's windows cover."""

    height: int
    width: int
    chunk: int
    stages: int

    @property
    def pitch(self) -> int:
        return self.height * self.width

    @property
    def stage_rows(self) -> int:
        return self.chunk * self.pitch

    @property
    def nbytes(self) -> int:
        """Of shared memory: the rows, where one stage's are in the input, and where the tile is."""
        return self.stage_rows * (self.stages * 128 + 8) + 16


@dataclass(frozen=True)
class BatchTables:
    """The tables of a layer: blocks of alike output channels, `tiles` times 16, `together` of which
    share a work-group, with `turns` warps each.

    starts: of each block, its first step, and the end of each phase's steps of each kind: with two
    tiles those of both, of the first and of the second, else one kind. places: of each column of a
    step, its row of shared memory for the tile's first pixel, times 128, and its class. weights:
    fragments of 16 channels, four registers for each of 32 lanes; a step has as many as a block has
    tiles, and as many lots of columns, where each is for one tile alone. channels: of each row of a
    block, its output channel, or -1. Behind the last step stands one more, to be read ahead.
    """

    problem: Conv2dProblem
    weights: Weights
    kind: Kind
    tiles: int
    together: int
    turns: int
    geometry: Geometry

    def key(self, part: str) -> str:
        return (f"{part} of {self.tiles} tiles, {self.together} x {self.turns}, {self.kind}, "
                f"{self.geometry}")

    def packing(self, part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        return lambda arrays: self.parts[part]

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
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
            found = blocks_of(rows, matrix[rows] != 0, self.tiles)
            for number, block in enumerate(dealt(found, self.together, self.turns)):
                # of the blocks of one scheduler, not all round their share of a phase alike
                turn = number % self.together // 4
                rounding = (turn + 0.5) / -(-self.together // 4)
                kinds = [self._steps(block, tiles, matrix, rounding) for tiles in block.kinds]
                own = [step]
                for phase in range(phases_of(problem, self.geometry)):
                    for ends, chosen, weights in kinds:
                        span = slice(ends[phase], ends[phase + 1])
                        places.append(chosen[span])
                        values.append(weights[span])
                        step += len(places[-1])
                        own.append(step)
                starts.append(own)
                channels.append([np.pad(tile, (0, ROWS - len(tile)), constant_values=-1)
                                 for tile in block.tiles])
        places.append(np.zeros((1, self.tiles, depth), np.int64))
        values.append(np.zeros((1, self.tiles, ROWS, depth), np.float32))
        return {"starts": np.array(starts, np.int32),
                "places": np.concatenate(places).astype(np.int32),
                "weights": fragments(np.concatenate(values), self.kind.precision),
                "channels": np.array(channels, np.int32).reshape(-1, self.tiles * ROWS)}

    def _steps(self, block: TileBlock, tiles: tuple[int, ...], matrix: np.ndarray, rounding: float
               ) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Of the columns that exactly these tiles need: the first step of each phase and the end,
        the places of each step (steps, tiles, depth), and its weights (steps, tiles, 16, depth)."""
        depth, columns = self.kind.depth, block.columns(tiles)
        lots = self.tiles // len(tiles)
        channel, place = self._located(columns)
        steps, ends = scheduled(channel // self.geometry.chunk, place % self.kind.apart,
                                phases_of(self.problem, self.geometry), self.geometry.stages,
                                self.kind.apart, lots * depth, rounding)
        chosen = np.array(steps, np.int64).reshape(-1, lots * depth)
        of = chosen.reshape(-1)
        weights = np.zeros((len(tiles), ROWS, of.size), np.float32)
        for number, tile in enumerate(tiles):
            members = block.tiles[tile]
            weights[number, :len(members), of >= 0] = matrix[
                np.ix_(members, columns[of[of >= 0]])].T
        # what fills a step up repeats one of its columns
        filled = place[np.where(chosen < 0, chosen[:, :1], chosen)].reshape(-1, lots, depth)
        by_lot = weights.reshape(len(tiles), ROWS, -1, lots, depth).transpose(2, 3, 0, 1, 4)
        return ([0, *ends], np.repeat(filled, self.tiles // lots, axis=1),
                by_lot.reshape(-1, self.tiles, ROWS, depth))

    def _located(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each column its channel within the group, and its place in shared memory."""
        problem, geometry = self.problem, self.geometry
        channel, tap = np.divmod(columns, problem.kernel[0] * problem.kernel[1])
        row, column = np.divmod(tap, problem.kernel[1])
        chunk, in_chunk = np.divmod(channel, geometry.chunk)
        down, right = row * problem.dilation[0], column * problem.dilation[1]
        pool_row = (chunk % geometry.stages * geometry.stage_rows + in_chunk * geometry.pitch
                    + down * geometry.width + right)
        return channel, pool_row << 7 | (in_chunk + ROW_CLASSES * down + right) % 8


def phases_of(problem: Conv2dProblem, geometry: Geometry) -> int:
    """How many chunks the channels of a group are."""
    return -(-(problem.channels // problem.groups) // geometry.chunk)


def block_count(problem: Conv2dProblem, tiles: int, together: int) -> int:
    """Of each group, with those without channels that fill the last work-group."""
    blocks = -(-(problem.out_channels // problem.groups) // (ROWS * tiles))
    return -(-blocks // together) * together
