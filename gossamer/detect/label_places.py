"""Places the labels of boxes on a photo so that no label hides another one."""

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
    """Returns the area of each box's label on a photo.

    A label takes the first free place at a corner of its box, outside or inside. A place is free
    where it overlaps no label of an earlier box. Where none of these places is free, the label
    takes the nearest free place of a grid over the photo. Where the grid has no free place either,
    the label takes the place at which it hides the fewest pixels of other labels. A place that
    would reach beyond the photo is moved into the photo.

    boxes: the boxes, most important first.
    sizes: width and height of each label.
    width, height: size of the photo.
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
    """Yields the left upper corner of a label for each of eight places at the corners of a box:
    above the box, inside at its top, inside at its bottom, and below the box, each at the left and
    at the right."""
    for top in (box.top - label_height, box.top, box.bottom - label_height, box.bottom):
        for left in (box.left, box.right - label_width):
            yield left, top


def _grid(label_width: float, label_height: float, width: float,
          height: float) -> Iterator[tuple[float, float]]:
    """Yields the left upper corners of a label for a grid of places all over a photo. Rows of
    places do not overlap; neighbouring places in a row overlap by half a label."""
    for row in range(int(height // label_height)):
        for column in range(int(2 * width // label_width)):
            yield column * label_width / 2, row * label_height


def _at(left: float, top: float, label_width: float, label_height: float, width: float,
        height: float) -> Area:
    """Returns the area of a label, moved so that it lies on the photo if the photo has room."""
    left = max(min(left, width - label_width), 0)
    top = max(min(top, height - label_height), 0)
    return Area(left, top, left + label_width, top + label_height)


def _distance(box: Area, area: Area) -> float:
    return math.hypot(area.left - box.left, area.top - box.top)


def _hidden(area: Area, taken: Sequence[Area]) -> float:
    return sum(area.overlap(other) for other in taken)
