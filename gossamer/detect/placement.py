"""Stretch or letterbox photos to a network's input size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Style:
    """The resizing conventions of a family of networks.

    fill: grey level, from 0 to 255, around a letterboxed photo.
    centred: true if a letterboxed photo is centred in the input, false if the photo is in the upper
    left corner.
    corners_meet: true if resizing aligns the centres of the corner pixels, as in Darknet; false if
    it aligns the outer corners of the images, as in OpenCV.
    """

    fill: float
    centred: bool
    corners_meet: bool


STYLES = {
    "yolo": Style(127.5, True, True), "region": Style(127.5, True, True),
    "yolox": Style(114, False, False), "yolox_decoded": Style(114, False, False),
    "yolov5": Style(114, True, False), "yolov8": Style(114, True, False),
}
"""The style of a network by the kind of its heads."""


@dataclass(frozen=True)
class Placement:
    """The rectangle of a network's input that a photo fills.

    photo: height and width of the photo, in its own pixels.
    left, top: upper left corner of the rectangle, in pixels of the input.
    width, height: size of the rectangle, in pixels of the input.
    """

    photo: tuple[int, int]
    left: int
    top: int
    width: int
    height: int

    def to_photo(self, boxes: np.ndarray) -> np.ndarray:
        """Convert boxes to pixels of the photo.

        boxes: (K, 4), the left, top, right and bottom edges in pixels of the input.
        """
        height, width = self.photo
        start = np.array([self.left, self.top, self.left, self.top])
        scale = np.array([width / self.width, height / self.height] * 2)
        return (boxes - start) * scale


def place(photo: tuple[int, int], size: tuple[int, int], resize: str, style: Style) -> Placement:
    """Return the rectangle of a network's input that a photo fills.

    photo: height and width of the photo.
    size: height and width of the input.
    resize: "stretch" or "letterbox".
    """
    (height, width), (full_height, full_width) = photo, size
    if resize == "stretch":
        return Placement(photo, 0, 0, full_width, full_height)
    if full_width * height < full_height * width:
        inner_width, inner_height = full_width, max(height * full_width // width, 1)
    else:
        inner_width, inner_height = max(width * full_height // height, 1), full_height
    left = (full_width - inner_width) // 2 if style.centred else 0
    top = (full_height - inner_height) // 2 if style.centred else 0
    return Placement(photo, left, top, inner_width, inner_height)


def fitted(image: np.ndarray, placement: Placement, size: tuple[int, int],
           style: Style) -> np.ndarray:
    """Return the network's input with the resized photo at its placement.

    The result has shape (height, width, channels), or (height, width) for a photo without channels.
    Each pixel of the placement's rectangle is interpolated bilinearly from four pixels of the
    photo; pixels outside the rectangle have the style's `fill`. Only the pixels that are needed are
    converted to float32. A large photo therefore needs no more temporary memory than a small one.

    size: height and width of the input.
    """
    result = np.full((*size, *image.shape[2:]), style.fill, np.float32)
    rows = _neighbours(image.shape[0], placement.height, style.corners_meet)
    columns = _neighbours(image.shape[1], placement.width, style.corners_meet)
    extra = (1,) * (image.ndim - 2)
    row_share = rows[2].reshape(-1, 1, *extra)
    column_share = columns[2].reshape(1, -1, *extra)
    lines = []
    for row in rows[:2]:
        before, after = (image[np.ix_(row, column)].astype(np.float32) for column in columns[:2])
        lines.append(before * (1 - column_share) + after * column_share)
    result[placement.top:placement.top + placement.height,
           placement.left:placement.left + placement.width] = (
        lines[0] * (1 - row_share) + lines[1] * row_share)
    return result


def _neighbours(length: int, new_length: int,
                corners_meet: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return indices and weights to interpolate the pixels of a resized row or column.

    Each resized pixel is interpolated from two original pixels. The first two arrays hold the
    indices of these pixels. The third array holds the weight of the second one.
    """
    steps = np.arange(new_length)
    if corners_meet:
        positions = steps * ((length - 1) / max(new_length - 1, 1))
    else:
        positions = (steps + 0.5) * (length / new_length) - 0.5
    positions = np.clip(positions, 0, length - 1)
    before = positions.astype(np.int64)
    return before, np.minimum(before + 1, length - 1), (positions - before).astype(np.float32)
