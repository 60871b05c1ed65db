"""Tiles of an output plane, and the input views that they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gossamer.device.native import processor as native
from gossamer.ops.conv2d.problem import Conv2dProblem

_MOST_VECTORS = 14
"""Maximum number of vectors of a tile; their sums are kept in registers."""
_OTHERS = 2
"""Number of registers for values other than sums and weights. In addition, a tile needs one
register for the weight of each of its output channels."""
_MOST_PIXELS = 8
"""Maximum number of pixels of a tile whose vectors run along output channels. The addresses of the
pixels are kept in registers."""
NONE, SHARED, ALIGNED = "none", "shared", "aligned"
"""How inputs are read. NONE: from the input itself. SHARED: from one view for all columns of taps.
ALIGNED: from a separate view for each column of taps."""

Kind = tuple[int, int, int]
"""The properties that decide a tile's code: number of rows, number of vectors of a row, and valid
lanes of a row's last vector."""


@dataclass(frozen=True)
class Views:
    """The views of an input channel; the inputs of each nonzero weight are read from a view.

    A view consists of every stride-th row and column of the padded input, from a first row and a
    first column on. Taps whose rows are congruent modulo the stride read the same view; lower taps
    begin at later rows of the view. With SHARED, taps whose columns are congruent modulo the stride
    also read the same view; taps further right begin at later columns. With ALIGNED, each column of
    taps has its own view, so that all vectors are aligned to their size. A pointwise convolution
    may use the input itself as its view.

    copies: first row and first column of each view, in pixels of the padded input.
    beyond: pairs (first row, number of rows). A view with this first row has this many rows more
    than the largest tile.
    height: number of rows of the largest tile.
    row: number of floats of a row of a view.
    further: number of vectors by which a row of a view is longer than a row of the tile. With
    SHARED, taps of later columns read these vectors.
    step: distance in floats between neighbouring positions of a table. If the input itself is read,
    the step is 0, and a position is the index of a channel.
    """

    copies: tuple[tuple[int, int], ...]
    beyond: tuple[tuple[int, int], ...]
    height: int
    row: int
    further: int
    step: int

    def first(self, number: int) -> int:
        """Return the number of floats of all views of a channel that precede view `number`."""
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
    """Part of an output plane, accumulated in registers.

    row, column: position of the tile's first pixel in the plane.
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

    The plane of a pointwise convolution counts as one row.

    outputs: number of output channels that are computed together; their sums share the registers.
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
    """Sizes of a tile whose vectors run along output channels.

    A tile has `vectors` vectors of `lanes` output channels for each of `pixels` pixels.
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

    The registers hold the tile's sums, the weights of a panel, and an input value.
    """
    registers = native.processor().registers
    count = -(-problem.out_channels // lanes)
    vectors = -(-count // -(-count // (registers // 8)))
    most = min((registers - vectors - 1) // vectors, _MOST_PIXELS)
    pixels = max(problem.image_pixels, 1)
    return Tiling(lanes, vectors, -(-pixels // -(-pixels // most)))


def _spans(size: int, lanes: int, most: int) -> list[tuple[int, int, int]]:
    """Divide a row into spans of vectors.

    Each span is its first vector, its number of vectors, and the valid lanes of its last vector.
    """
    count = -(-size // lanes)
    return [(first, number, lanes if first + number < count else size - (count - 1) * lanes)
            for first, number in _parts(count, most)]


def _parts(size: int, most: int) -> list[tuple[int, int]]:
    """Divide a range into as few parts as possible, each of at most `most` elements.

    Each part is its start and its length.
    """
    if size == 0:
        return []
    length = -(-size // -(-size // most))
    return [(first, min(length, size - first)) for first in range(0, size, length)]
