"""Draw boxes on photos, with labels that do not overlap."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gossamer.detect.decoding import Box

_GOLDEN = 0.618034
"""The hue difference of consecutive classes; hues are from 0 to 1.

The difference is the golden ratio minus 1. With it, consecutive classes have very different hues.
"""


def draw_boxes(image: np.ndarray, boxes: Sequence[Box]) -> np.ndarray:
    """Draw boxes labelled with class name and score.

    Labels do not overlap, unless the photo is too small.

    Parameters
    ----------
    image : array of uint8, shape (height, width, 3)
        The photo, in RGB.
    boxes : sequence of Box
        The boxes. Boxes of higher score are drawn over boxes of lower score. The labels of
        boxes of higher score are placed first, and are therefore closer to their boxes.

    Returns
    -------
    array of uint8, shape (height, width, 3)
        A copy of the photo with the boxes.
    """
    photo = Image.fromarray(image)
    draw = ImageDraw.Draw(photo)
    height, width = image.shape[:2]
    line = max(round(min(height, width) / 250), 1)
    font = ImageFont.load_default(size=max(min(height, width) / 40, 10))
    best_first = sorted(boxes, key=lambda box: -box.score)
    areas = [_inside(box, width, height) for box in best_first]
    for box, area in reversed([*zip(best_first, areas, strict=True)]):
        draw.rectangle(area, outline=_colour(box.class_index), width=line)
    texts = [f"{box.name} {box.score:.0%}" for box in best_first]
    sizes = [(right + 2 * line, bottom + line) for _, _, right, bottom in (
        draw.textbbox((0, 0), text, font=font) for text in texts)]
    labels = label_positions(areas, sizes, width, height)
    for box, text, label in zip(best_first, texts, labels, strict=True):
        colour = _colour(box.class_index)
        draw.rectangle((*label[:2], label.right - 1, label.bottom - 1), fill=colour)
        draw.text((label.left + line, label.top), text, fill=_ink(colour), font=font)
    return np.asarray(photo)


def _inside(box: Box, width: int, height: int) -> Area:
    """Clip a box to a photo of this width and height.

    The result is never empty: a box outside the photo becomes a line or a pixel at the edge.
    """
    left, right = (float(np.clip(edge, 0, width - 1)) for edge in (box.left, box.right))
    top, bottom = (float(np.clip(edge, 0, height - 1)) for edge in (box.top, box.bottom))
    return Area(left, top, max(right, left), max(bottom, top))


def _colour(class_index: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(class_index * _GOLDEN % 1, 0.9, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)


def _ink(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return black or white, whichever is more legible on a colour."""
    red, green, blue = colour
    return (0, 0, 0) if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else (255, 255, 255)


class Area(NamedTuple):
    """A rectangle on a photo, in pixels from the upper left corner."""

    left: float
    top: float
    right: float
    bottom: float


def label_positions(boxes: Sequence[Area], sizes: Sequence[tuple[float, float]], width: float,
                    height: float) -> list[Area]:
    """Return the area of each box's label on a photo.

    A position is free if a label there overlaps no label of an earlier box. A label is placed at
    the first free position at a corner of its box, outside or inside the box. If none is free, the
    label is placed at the nearest free position of a grid over the photo. If the grid has no free
    position either, the label is placed where it hides the fewest pixels of other labels. Labels
    that would extend beyond the photo are moved inside.

    boxes: the boxes, most important first.
    sizes: width and height of each label.
    width, height: size of the photo.
    """
    taken: list[Area] = []
    for box, (label_width, label_height) in zip(boxes, sizes, strict=True):
        areas = [_at(left, top, label_width, label_height, width, height)
                 for left, top in _corners(box, label_width, label_height)]
        hidden = _hidden(areas, taken)
        if hidden.all():
            grid = [_at(left, top, label_width, label_height, width, height)
                    for left, top in _grid(label_width, label_height, width, height)]
            areas += sorted(grid, key=partial(_distance, box))
            hidden = _hidden(areas, taken)
        taken.append(areas[np.argmin(hidden)])
    return taken


def _corners(box: Area, label_width: float, label_height: float) -> Iterator[tuple[float, float]]:
    """Yield eight label positions (upper left corners) at the corners of a box.

    The positions are above the box, inside at the top, inside at the bottom, and below the box,
    each at the left and at the right.
    """
    for top in (box.top - label_height, box.top, box.bottom - label_height, box.bottom):
        for left in (box.left, box.right - label_width):
            yield left, top


def _grid(label_width: float, label_height: float, width: float,
          height: float) -> Iterator[tuple[float, float]]:
    """Yield label positions (upper left corners) on a grid over a photo.

    Labels in different rows do not overlap; neighbouring labels in a row overlap by half.
    """
    for row in range(int(height // label_height)):
        for column in range(int(2 * width // label_width)):
            yield column * label_width / 2, row * label_height


def _at(left: float, top: float, label_width: float, label_height: float, width: float,
        height: float) -> Area:
    """Return the area of a label, moved inside the photo if possible."""
    left = max(min(left, width - label_width), 0)
    top = max(min(top, height - label_height), 0)
    return Area(left, top, left + label_width, top + label_height)


def _distance(box: Area, area: Area) -> float:
    return math.hypot(area.left - box.left, area.top - box.top)


def _hidden(areas: Sequence[Area], taken: Sequence[Area]) -> np.ndarray:
    """Return, for each area, the number of pixels of `taken` areas that the area would hide."""
    new, old = np.reshape(areas, (-1, 1, 2, 2)), np.reshape(taken, (1, -1, 2, 2))
    sides = np.minimum(new[:, :, 1], old[:, :, 1]) - np.maximum(new[:, :, 0], old[:, :, 0])
    return np.maximum(sides, 0).prod(axis=2).sum(axis=1)
