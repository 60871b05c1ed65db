"""The tables of bottleneck_mma: which columns each block of output channels multiplies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from gossamer.ops.conv2d.sparse.common.row_blocks import cluster
from gossamer.ops.conv2d.sparse.common.tensor_cores import ROWS, packed_fragments
from gossamer.ops.fused.bottleneck.tiling import DEPTH, BottleneckTiling
from gossamer.tensor import rounded_up

_BANKS = 8
"""Fragments that shared memory gives at once, each from other banks."""

_NEIGHBOURS = np.arange(ROWS).reshape(4, 2, 2).swapaxes(0, 1).reshape(-1)
"""The channels of a tile in the order of its rows. Lane q of four has the rows 2q, 2q + 1, 2q + 8
and 2q + 9."""


class BottleneckTables:
    """The tables of a block.

    "starts" has for each layer, chunk of its inputs and block of its output channels the first
    step, and the end. "columns" has for each of the 16 columns of a step the bytes from a
    fragment's place to where its column lies. "weights" has for each step and tile four registers
    of each of 32 lanes, as halves. One more step stands behind the last, as the kernel reads ahead.

    The output channels of the first two layers are in an order in which those of a block need
    similar columns; what the next layer reads is in that order, too. The last layer's are in theirs
    from tile to tile, and within a tile such that a lane's four results are neighbours.

    divided: the block in tiles.
    arrays: the constants of the fusion.
    """

    def __init__(self, divided: BottleneckTiling, arrays: Mapping[str, np.ndarray]) -> None:
        self._divided = divided
        self._arrays = arrays

    def key(self, part: str) -> str:
        """Returns the name under which a table is cached with the weights."""
        d = self._divided
        return (f"{part} of {d.rows_of_block} rows, chunks of {d.tile.chunk}, "
                f"{d.tile.transposed}, {d.pitch}, {d.pieces}")

    def packing(self, part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        """Returns a function that packs the constants into a table."""
        return lambda arrays: self.parts[part]

    def constants(self, layer: int, operand: int) -> tuple[str, Callable[
            [Mapping[str, np.ndarray]], np.ndarray]]:
        """Returns the name of a layer's operand with one number a channel, in the layer's order,
        and what packs it."""
        channels = self._divided.block.layers[layer].out_channels
        name = f"{layer}.operand{operand}"

        def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            filled = np.zeros(rounded_up(channels, 4), np.float32)
            vector = np.broadcast_to(arrays[name].reshape(-1), (channels,))
            filled[:channels] = vector[self.orders[layer]]
            return filled

        return f"{name} by blocks of {self._divided.rows_of_block}", pack

    @cached_property
    def orders(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The output channels of each layer in the order in which blocks take them."""
        first, second = (np.array([row for members in cluster(
            self._weight(layer).reshape(len(self._weight(layer)), -1) != 0,
            self._divided.rows_of_block) for row in members], np.int64) for layer in (0, 1))
        return first, second, np.arange(len(self._weight(2)))

    def _weight(self, layer: int) -> np.ndarray:
        return np.asarray(self._arrays[f"{layer}.weight"], np.float32)

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """The tables by name."""
        divided, orders = self._divided, self.orders
        starts, places, values = [0], [], []
        for layer in range(3):
            weight = self._weight(layer)[orders[layer]]
            if layer:
                weight = weight[:, orders[layer - 1]]
            matrix = weight.reshape(len(weight), -1)
            offsets = self._offsets(layer)
            size = divided.tile.chunk if layer == 0 else matrix.shape[1]
            for first in range(0, matrix.shape[1], size):
                chunk = matrix[:, first:first + size]
                for row in range(0, len(matrix), divided.rows_of_block):
                    block = chunk[row:row + divided.rows_of_block]
                    columns = self._columns(layer, block, offsets[first:])
                    padded = rounded_up(len(columns), DEPTH)
                    value = np.zeros((divided.rows_of_block, padded), np.float32)
                    value[:len(block), :len(columns)] = block[:, columns]
                    if layer == 2:
                        value = value[np.add.outer(np.arange(0, len(value), ROWS),
                                                   _NEIGHBOURS).reshape(-1)]
                    values.append(value)
                    # a column without weights reads a place that exists
                    places.append(np.resize(offsets[first + columns], padded))
                    starts.append(starts[-1] + padded // DEPTH)
        values.append(np.zeros((divided.rows_of_block, DEPTH), np.float32))
        places.append(np.zeros(DEPTH, np.int64))
        tiled = np.concatenate(values, axis=1).reshape(divided.tile.tiles, ROWS, -1, DEPTH)
        return {"starts": np.array(starts, np.int32),
                "columns": np.concatenate(places).astype(np.int32),
                "weights": packed_fragments(tiled.transpose(2, 0, 1, 3), "fp16")}

    def _columns(self, layer: int, block: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Returns the columns that a block multiplies, in their order."""
        needed = np.asarray(block.any(axis=0))
        if layer == 0 and not self._divided.tile.transposed:
            # whole steps of neighbours
            steps = np.add.reduceat(needed, np.arange(0, len(needed), DEPTH)) > 0
            return np.flatnonzero(np.repeat(steps, DEPTH)[:len(needed)])
        columns = np.flatnonzero(needed)
        return columns[_dealt(offsets[columns] // 16 % _BANKS)]

    def _offsets(self, layer: int) -> np.ndarray:
        """Returns, for each column of a layer, the distance in bytes between a fragment and the
        column's first input."""
        divided = self._divided
        problem = divided.block.layers[layer]
        pieces = divided.pieces[layer]
        channel, tap = np.divmod(np.arange(problem.depth), math.prod(problem.kernel))
        if layer == 0:
            channel = channel % divided.tile.chunk
            if not divided.tile.transposed:
                return channel // DEPTH * (2 * DEPTH)
        row, column = np.divmod(tap, problem.kernel[1])
        return 16 * (channel * pieces + row * divided.pitch + column)


def _dealt(banks: np.ndarray) -> np.ndarray:
    """Returns an order of columns in which eight successive ones lie in different banks, as far as
    that goes."""
    sets = -(-len(banks) // _BANKS)
    order = np.full(sets * _BANKS, -1)
    order[:len(banks)] = np.argsort(banks, kind="stable")
    dealt = order.reshape(_BANKS, sets).T.reshape(-1)
    return dealt[dealt >= 0]
