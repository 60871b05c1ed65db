"""Tiles of an output plane, and the views of the input that they are computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gossamer.device.native import processor as native
from gossamer.ops.conv2d.problem import Conv2dProblem

_MOST_VECTORS = 14
"""Vectors of a tile: sums that are kept in registers."""
_OTHERS = 2
"""Registers for other values than the sums and one weight of each output channel of a tile."""
_MOST_PIXELS = 8
"""Pixels of a tile whose vectors lie along output channels: their addresses are in registers."""
NONE, SHARED, ALIGNED = "none", "shared", "aligned"
"""NONE: the input itself is read. SHARED: one view serves all columns of taps. ALIGNED: each column
of taps has a view."""

Kind = tuple[int, int, int]
"""What tiles of the same code have in common: rows, vectors of a row, and valid lanes of the last
one."""


@dataclass(frozen=True)
class Views:
    """The views of a channel's input that nonzero weights are multiplied with.

    A view is every stride-th row and column of the padded input, beginning at a row and a column. A
    tap further down reads the same view from a later row. With SHARED a tap further right reads it
    from a later column; with ALIGNED it has a view of its own, so that all vectors begin at
    multiples of their size. Views of pointwise convolutions may be the input itself.

    copies: first row and column of each view, in pixels of the padded input.
    beyond: for each of these rows, how many rows past a tile's height are read.
    height: rows of the largest tile. row: floats of each row of a view.
    further: vectors of a row behind those of the tile, which taps of later columns read.
    step: distance in floats between two positions that a table can name; 0 where the input itself
    is read, and a position is a channel.
    """

    copies: tuple[tuple[int, int], ...]
    beyond: tuple[tuple[int, int], ...]
    height: int
    row: int
    further: int
    step: int

    def first(self, number: int) -> int:
        """Return how many floats lie before a view."""
        return sum(self.height + dict(self.beyond)[phase]
                   for phase, _ in self.copies[:number]) * self.row

    @property
    def floats(self) -> int:
        """Floats of all views of a channel."""
        return self.first(len(self.copies))

    @property
    def positions(self) -> int:
        """Positions in the views of a channel."""
        return -(-self.floats // self.step) if self.step else 1


@dataclass(frozen=True)
class Tile:
    """A part of an output plane that is summed in registers.

    row, column: where the tile begins.
    """

    kind: Kind
    row: int
    column: int


def views_of(problem: Conv2dProblem, lanes: int, kind: str, outputs: int = 1) -> Views:
    """Return the views of a convolution; kind is NONE, SHARED or ALIGNED."""
    tiles = tiles_of(problem, lanes, outputs)
    height, vectors, _ = tiles[0].kind if tiles else (1, 1, 1)
    rows, columns = ([step * dilation for step in range(size)] for size, dilation in zip(
        problem.kernel, problem.dilation, strict=True))
    beyond: dict[int, int] = {}
    for row in rows:
        phase = row % problem.stride[0]
        beyond[phase] = max(beyond.get(phase, 0), row // problem.stride[0])
    further = 0
    if kind == SHARED:
        further = -(-(columns[-1] // problem.stride[1]) // lanes)
        columns = list(dict.fromkeys(column % problem.stride[1] for column in columns))
    return Views(tuple((phase, column) for phase in beyond for column in columns),
                 tuple(beyond.items()), height, (vectors + further) * lanes,
                 further, {NONE: 0, SHARED: 1, ALIGNED: lanes}[kind])


def tiles_of(problem: Conv2dProblem, lanes: int, outputs: int = 1) -> list[Tile]:
    """Return the tiles of an output plane, the first one the largest.

    A pointwise convolution sees a plane as one row.

    outputs: how many output channels are computed together, whose sums share the registers.
    """
    most = min(native.processor().registers - 3, _MOST_VECTORS) if outputs == 1 else max(
        (native.processor().registers - outputs - _OTHERS) // outputs, 1)
    if problem.is_pointwise:
        return [Tile((1, vectors, last), 0, first * lanes) for first, vectors, last in _spans(
            problem.image_pixels, lanes, most)]
    spans = _spans(problem.out_width, lanes, min(most, 4) if outputs == 1 else most)
    rows = _parts(problem.out_height, max(most // max((span[1] for span in spans), default=1), 1))
    return [Tile((height, vectors, last), row, first * lanes)
            for row, height in rows for first, vectors, last in spans]


class Tiling(NamedTuple):
    """What is summed in registers where vectors lie along output channels: some of them, for some
    pixels."""

    lanes: int
    vectors: int
    pixels: int

    @property
    def width(self) -> int:
        """Output channels of a panel."""
        return self.lanes * self.vectors


def tiling_of(problem: Conv2dProblem, lanes: int) -> Tiling:
    """Return a tiling whose sums, with the weights of a panel and a pixel, fill the registers."""
    registers = native.processor().registers
    count = -(-problem.out_channels // lanes)
    vectors = -(-count // -(-count // (registers // 8)))
    most = min((registers - vectors - 1) // vectors, _MOST_PIXELS)
    pixels = max(problem.image_pixels, 1)
    return Tiling(lanes, vectors, -(-pixels // -(-pixels // most)))


def _spans(size: int, lanes: int, most: int) -> list[tuple[int, int, int]]:
    """Divide a row into spans of vectors: the first vector, how many, the last one's lanes."""
    count = -(-size // lanes)
    return [(first, number, lanes if first + number < count else size - (count - 1) * lanes)
            for first, number in _parts(count, most)]


def _parts(size: int, most: int) -> list[tuple[int, int]]:
    """Divide a range into as few parts of at most `most`, each with its start and its length."""
    if size == 0:
        return []
    length = -(-size // -(-size // most))
    return [(first, min(length, size - first)) for first in range(0, size, length)]
