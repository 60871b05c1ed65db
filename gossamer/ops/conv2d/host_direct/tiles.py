"""Tiles of an output plane, and input views for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gossamer.device.native import processor as native
from gossamer.ops.conv2d.problem import Conv2dProblem

_MOST_VECTORS = 14
"""Largest number of vectors of a tile, whose sums are kept in registers."""
_OTHERS = 2
"""Number of registers for values other than the sums and one weight of each output channel of a
tile."""
_MOST_PIXELS = 8
"""Largest number of pixels of a tile whose vectors are along output channels: their addresses are
in registers."""
NONE, SHARED, ALIGNED = "none", "shared", "aligned"
"""NONE: the input itself is read. SHARED: one view serves all columns of taps. ALIGNED: each column
of taps has a view."""

Kind = tuple[int, int, int]
"""What tiles with the same code have in common: rows, vectors of a row, and valid lanes of the last
one."""


@dataclass(frozen=True)
class Views:
    """The views of an input channel for nonzero weights.

    The weights are multiplied with these views.

    A view consists of every stride-th row and column of the padded input, beginning at a row and a
    column. A tap further down reads the same view from a later row. With SHARED a tap further right
    reads it from a later column; with ALIGNED it has its own view, so that all vectors begin at
    multiples of their size. Views of pointwise convolutions may be the input itself.

    copies: first row and column of each view, in pixels of the padded input.
    beyond: for each of these rows, how many rows past a tile's height are read.
    height: rows of the largest tile. row: floats of each row of a view.
    further: vectors of a row after those of the tile, which taps of later columns read.
    step: distance in floats between two positions that a table can specify; 0 if the input itself
    is read, and a position is a channel.
    """

    copies: tuple[tuple[int, int], ...]
    beyond: tuple[tuple[int, int], ...]
    height: int
    row: int
    further: int
    step: int

    def first(self, number: int) -> int:
        """Return the number of floats before a view."""
        return sum(self.height + dict(self.beyond)[phase]
                   for phase, _ in self.copies[:number]) * self.row

    @property
    def floats(self) -> int:
        """Number of floats of all views of a channel."""
        return self.first(len(self.copies))

    @property
    def positions(self) -> int:
        """Number of positions in the views of a channel."""
        return -(-self.floats // self.step) if self.step else 1


@dataclass(frozen=True)
class Tile:
    """Part of an output plane, summed in registers.

    row, column: position of the tile.
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
    """Return the tiles of an output plane, the largest first.

    For a pointwise convolution, a plane is one row.

    outputs: number of output channels that are computed together, whose sums share the registers.
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
    """The accumulators if vectors are along output channels.

    They cover some output channels for some pixels.
    """

    lanes: int
    vectors: int
    pixels: int

    @property
    def width(self) -> int:
        """Number of output channels of a panel."""
        return self.lanes * self.vectors


def tiling_of(problem: Conv2dProblem, lanes: int) -> Tiling:
    """Return a tiling that fills the registers.

    They contain its sums, the weights of a panel, and a pixel.
    """
    registers = native.processor().registers
    count = -(-problem.out_channels // lanes)
    vectors = -(-count // -(-count // (registers // 8)))
    most = min((registers - vectors - 1) // vectors, _MOST_PIXELS)
    pixels = max(problem.image_pixels, 1)
    return Tiling(lanes, vectors, -(-pixels // -(-pixels // most)))


def _spans(size: int, lanes: int, most: int) -> list[tuple[int, int, int]]:
    """Divide a row into spans of vectors.

    Each has its first vector, its number of vectors, and the valid lanes of the last one.
    """
    count = -(-size // lanes)
    return [(first, number, lanes if first + number < count else size - (count - 1) * lanes)
            for first, number in _parts(count, most)]


def _parts(size: int, most: int) -> list[tuple[int, int]]:
    """Divide a range into few parts of at most `most`.

    Each has its start and its length.
    """
    if size == 0:
        return []
    length = -(-size // -(-size // most))
    return [(first, min(length, size - first)) for first in range(0, size, length)]
