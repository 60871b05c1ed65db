"""Draws boxes on photos."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gossamer.detect.box import Box
from gossamer.detect.label_places import Area, places

_GOLDEN = 0.618034
"""The difference between the hue of a class and the hue of the next class, where hues are from 0 to
1. It is the golden ratio less 1, so that neighbouring classes have very different hues."""


def draw_boxes(image: np.ndarray, boxes: Sequence[Box]) -> np.ndarray:
    """Draw boxes with labels. A label is the name of the class and the score of its box.

    No label hides another one, unless the photo has no room.

    Parameters
    ----------
    image : array of uint8, shape (height, width, 3)
        The photo, in RGB.
    boxes : sequence of Box
        The boxes. A box of higher score is drawn over boxes of lower score, and its label is placed
        earlier, so that the label is nearer to the box.

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
    labels = places(areas, sizes, width, height)
    for box, text, label in zip(best_first, texts, labels, strict=True):
        colour = _colour(box.class_index)
        draw.rectangle((*label[:2], label.right - 1, label.bottom - 1), fill=colour)
        draw.text((label.left + line, label.top), text, fill=_ink(colour), font=font)
    return np.asarray(photo)


def _inside(box: Box, width: int, height: int) -> Area:
    """Return the part of a box that lies on a photo of this width and height.

    The part is never empty: a box beyond the photo's edge becomes a line or a pixel at the edge.
    """
    left, right = (float(np.clip(edge, 0, width - 1)) for edge in (box.left, box.right))
    top, bottom = (float(np.clip(edge, 0, height - 1)) for edge in (box.top, box.bottom))
    return Area(left, top, max(right, left), max(bottom, top))


def _colour(class_index: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(class_index * _GOLDEN % 1, 0.9, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)


def _ink(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return black or white, whichever is easier to read on a colour."""
    red, green, blue = colour
    return (0, 0, 0) if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else (255, 255, 255)
