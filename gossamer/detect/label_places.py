"""Where the labels of boxes go on a photo, so that none hides another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple


class Area(NamedTuple):
    """A rectangle on a photo, in pixels from its left upper corner."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Area) -> float:
        """Returns the number of pixels that two rectangles share."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(width, 0) * max(height, 0)


def places(boxes: Sequence[Area], sizes: Sequence[tuple[float, float]], width: float,
           height: float) -> list[Area]:
    """Returns the area of each box's label on a photo of this width and height.

    A label is at a corner of its box, outside or inside, at the first of them where the photo has
    room and no label of an earlier box is; else at the nearest free place of a grid; and only where
    there is none over others, as little as can be.

    boxes: the boxes, those that matter most first.
    sizes: width and height of each label.
    """
    taken: list[Area] = []
    for box, (label_width, label_height) in zip(boxes, sizes, strict=True):
        areas = [_at(left, top, label_width, label_height, width, height)
                 for left, top in _corners(box, label_width, label_height)]
        free = next((area for area in areas if not _hidden(area, taken)), None)
        if free is None:
            grid = [_at(left, top, label_width, label_height, width, height)
                    for left, top in _grid(label_width, label_height, width, height)]
            areas += sorted(grid, key=partial(_distance, box))
            free = min(areas, key=lambda area: _hidden(area, taken))
        taken.append(free)
    return taken


def _corners(box: Area, label_width: float, label_height: float) -> Iterator[tuple[float, float]]:
    """Yields the left upper corner of a label at the corners of a box: above it, inside its top,
    inside its bottom and below it, each at its left and at its right."""
    for top in (box.top - label_height, box.top, box.bottom - label_height, box.bottom):
        for left in (box.left, box.right - label_width):
            yield left, top


def _grid(label_width: float, label_height: float, width: float,
          height: float) -> Iterator[tuple[float, float]]:
    """Yields places all over a photo, which do not overlap each other by rows."""
    for row in range(int(height // label_height)):
        for column in range(int(2 * width // label_width)):
            yield column * label_width / 2, row * label_height


def _at(left: float, top: float, label_width: float, label_height: float, width: float,
        height: float) -> Area:
    """Returns the area of a label, moved into the photo as far as it can be."""
    left = max(min(left, width - label_width), 0)
    top = max(min(top, height - label_height), 0)
    return Area(left, top, left + label_width, top + label_height)


def _distance(box: Area, area: Area) -> float:
    return math.hypot(area.left - box.left, area.top - box.top)


def _hidden(area: Area, taken: Sequence[Area]) -> float:
    return sum(area.overlap(other) for other in taken)
