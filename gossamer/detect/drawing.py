"""Draws boxes on photos."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gossamer.detect.box import Box

_GOLDEN = 0.618034
"""Step of the hue from class to class, by which any few classes get colours far apart."""


def draw_boxes(image: np.ndarray, boxes: Sequence[Box]) -> np.ndarray:
    """Draw boxes with the names of their classes and their scores.

    Parameters
    ----------
    image : array of uint8, shape (height, width, 3)
        The photo, in RGB.
    boxes : sequence of Box
        The boxes; those of highest score are drawn last.

    Returns
    -------
    array of uint8, shape (height, width, 3)
        A photo with the boxes.
    """
    photo = Image.fromarray(image)
    draw = ImageDraw.Draw(photo)
    height, width = image.shape[:2]
    line = max(round(min(height, width) / 250), 1)
    font = ImageFont.load_default(size=max(min(height, width) / 40, 10))
    for box in sorted(boxes, key=lambda box: box.score):
        colour = _colour(box.class_index)
        left, right = (float(np.clip(edge, 0, width - 1)) for edge in (box.left, box.right))
        top, bottom = (float(np.clip(edge, 0, height - 1)) for edge in (box.top, box.bottom))
        draw.rectangle((left, top, max(right, left), max(bottom, top)), outline=colour, width=line)
        text = f"{box.name} {box.score:.0%}"
        _, _, text_width, text_height = draw.textbbox((0, 0), text, font=font)
        text_left = max(min(left, width - text_width - 2 * line), 0)
        text_top = top - text_height - line if top >= text_height + line else top
        draw.rectangle((text_left, text_top, text_left + text_width + 2 * line,
                        text_top + text_height + line), fill=colour)
        draw.text((text_left + line, text_top), text, fill=_ink(colour), font=font)
    return np.asarray(photo)


def _colour(class_index: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(class_index * _GOLDEN % 1, 0.9, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)


def _ink(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return black or white, whichever can be read on a colour."""
    red, green, blue = colour
    return (0, 0, 0) if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else (255, 255, 255)
