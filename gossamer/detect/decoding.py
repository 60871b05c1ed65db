"""Decode outputs of detectors into boxes, and suppress overlapping boxes.

Each decoder processes the output for one photo, and keeps only boxes with a score above a
threshold. The score of a box for a class is its objectness times the probability of the class. As
in Darknet, a box is returned once for each class with a score above the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.model.metadata import DetectionHead


@dataclass(frozen=True)
class Box:
    """An object on a photo.

    Attributes
    ----------
    name : str
        Name of the object's class.
    class_index : int
        Number of the object's class, from 0.
    score : float
        Confidence of the network, from 0 to 1.
    left, top, right, bottom : float
        Edges of the box, in pixels from the photo's upper left corner. They may be outside the
        photo.
    """

    name: str
    class_index: int
    score: float
    left: float
    top: float
    right: float
    bottom: float

    def as_json(self) -> dict[str, Any]:
        """Return the box as a JSON object.

        Returns
        -------
        dict
            The keys "class" (the class index), "name", "score", and "box" with "left", "top",
            "right" and "bottom".
        """
        return {"class": self.class_index, "name": self.name, "score": self.score,
                "box": [self.left, self.top, self.right, self.bottom]}


STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
"""Possible sets of strides of networks that join several grids in one output.

A stride is the width and height of a grid's cells, in pixels of the input.
"""


@dataclass(frozen=True)
class Candidates:
    """Boxes of one photo.

    boxes: (K, 4) float64, the left, top, right and bottom edges in pixels of the network's input.
    scores: (K,) float64.
    classes: (K,) integers, the class indices.
    """

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class Grid:
    """The parameters that are needed to decode a head's output.

    size: height and width of the network's input, in pixels.
    anchors: (anchors, 2), width and height of the head's anchors in pixels of the input.
    classes: number of classes.
    """

    size: tuple[int, int]
    anchors: np.ndarray
    classes: int


def decode(head: DetectionHead, output: np.ndarray, grid: Grid, threshold: float) -> Candidates:
    """Return the boxes of one photo with scores above the threshold.

    head: the encoding of boxes in the output.
    output: the head's output for the photo.
    """
    if output.dtype == np.float16:
        # compute in float32: in float16, sigmoids and the threshold would be rounded
        output = output.astype(np.float32)
    # no warnings about NaN and infinite edges: boxes with such edges are dropped below
    with np.errstate(all="ignore"):
        centres, sizes, objectness, probabilities = _DECODERS[head.kind](head, output, grid,
                                                                         threshold)
        scores = objectness[:, None] * probabilities
        boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
        box, class_index = np.nonzero((scores > threshold)
                                      & np.isfinite(boxes).all(axis=1, keepdims=True))
    return Candidates(boxes[box], scores[box, class_index], class_index)


def join(parts: list[Candidates]) -> Candidates:
    """Concatenate the boxes of several outputs."""
    return Candidates(np.concatenate([part.boxes for part in parts]),
                      np.concatenate([part.scores for part in parts]),
                      np.concatenate([part.classes for part in parts]))


def cells(size: tuple[int, int], strides: tuple[int, ...]) -> int:
    """Return the total number of cells of all grids.

    size: height and width of the network's input.
    strides: stride of each grid.
    """
    return sum(math.prod(length // stride for length in size) for stride in strides)


_Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Centres (K, 2), sizes (K, 2), objectness (K,) and class probabilities (K, classes) of K boxes.

Centres and sizes are in pixels of the input.
"""


def _darknet(head: DetectionHead, output: np.ndarray, grid: Grid, threshold: float) -> _Parts:
    """Decode a raw Darknet head of shape (anchors * (5 + classes), H, W)."""
    height, width = output.shape[1:]
    numbers = output.reshape(len(head.mask), 5 + grid.classes, height, width)
    has_sigmoids = head.kind == "yolo" and head.new_coords
    objectness = numbers[:, 4] if has_sigmoids else _sigmoid(numbers[:, 4])
    anchor, row, column = np.nonzero(objectness > threshold)
    chosen = numbers[anchor, :, row, column].astype(np.float64)
    objectness = objectness[anchor, row, column].astype(np.float64)
    classes, offsets = chosen[:, 5:], chosen[:, :2]
    if head.kind == "region" and head.softmax:
        classes = np.exp(classes - classes.max(axis=1, keepdims=True, initial=-np.inf))
        classes /= classes.sum(axis=1, keepdims=True)
    elif not has_sigmoids:
        classes = _sigmoid(classes)
    offsets = offsets if has_sigmoids else _sigmoid(offsets)
    offsets = offsets * head.scale_x_y - (head.scale_x_y - 1) / 2
    sizes = (2 * chosen[:, 2:4]) ** 2 if has_sigmoids else np.exp(chosen[:, 2:4])
    cell = np.array([grid.size[1] / width, grid.size[0] / height])
    centres = (np.stack([column, row], axis=1) + offsets) * cell
    return centres, sizes * grid.anchors[anchor], objectness, classes


def _yolox(head: DetectionHead, output: np.ndarray, grid: Grid, threshold: float) -> _Parts:
    """Decode an output of YOLOX or YOLOv5, of shape (boxes, 5 + classes).

    The network has already applied the sigmoid to objectness and probabilities.
    """
    chosen = np.flatnonzero(output[:, 4] > threshold)
    numbers = output[chosen].astype(np.float64)
    centres, sizes = numbers[:, :2], numbers[:, 2:4]
    if head.kind == "yolox":
        corners, strides = _cells(grid.size, len(output))
        centres = (centres + corners[chosen]) * strides[chosen]
        sizes = np.exp(sizes) * strides[chosen]
    return centres, sizes, numbers[:, 4], numbers[:, 5:]


def _yolov8(head: DetectionHead, output: np.ndarray, grid: Grid, threshold: float) -> _Parts:
    """Decode an output of YOLOv8, of shape (4 + classes, cells).

    Boxes are in pixels, without objectness.
    """
    chosen = np.flatnonzero((output[4:] > threshold).any(axis=0))
    numbers = output[:, chosen].T.astype(np.float64)
    return numbers[:, :2], numbers[:, 2:4], np.ones(len(numbers)), numbers[:, 4:]


_DECODERS: dict[str, Callable[[DetectionHead, np.ndarray, Grid, float], _Parts]] = {
    "yolo": _darknet, "region": _darknet, "yolox": _yolox, "yolox_decoded": _yolox,
    "yolov5": _yolox, "yolov8": _yolov8,
}


def _cells(size: tuple[int, int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of all cells, and the strides of their grids.

    The positions are pairs (column, row) of shape (cells, 2); the strides have shape (cells, 1).
    Cells are ordered by grid, then by row. `count` is the total number of cells.
    """
    strides = next(strides for strides in STRIDES if cells(size, strides) == count)
    corners, steps = [], []
    for stride in strides:
        rows, columns = np.mgrid[:size[0] // stride, :size[1] // stride]
        corners.append(np.stack([columns.ravel(), rows.ravel()], axis=1))
        steps.append(np.full((rows.size, 1), stride))
    return np.concatenate(corners), np.concatenate(steps)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_BLOCK = 64
"""Number of top-scoring boxes that are compared with all lower-scoring boxes in one step."""


def suppress(candidates: Candidates, limit: float, kind: str = "greedynms",
             beta: float = 0.6) -> np.ndarray:
    """Return the indices of the kept boxes, in descending order of score.

    limit: if two boxes of a class overlap more than this, the box of lower score is dropped.
    kind: the measure of overlap. "greedynms" uses the intersection over union (IoU). "diounms" uses
    the IoU minus a penalty: the squared distance of the centres, divided by the squared diagonal of
    the smallest box around both boxes, to the power beta (Z. Zheng et al., "Distance-IoU Loss:
    Faster and Better Learning for Bounding Box Regression", AAAI 2020; the power is from Darknet).
    """
    def are_apart(one: np.ndarray, others: np.ndarray) -> np.ndarray:
        boxes = candidates.boxes[one][..., None, :], candidates.boxes[others]
        overlaps = overlap(*boxes)
        if kind == "diounms":
            overlaps -= _distance(*boxes) ** beta
        return overlaps <= limit

    kept: list[np.ndarray] = []
    for class_index in np.unique(candidates.classes):
        members = np.flatnonzero(candidates.classes == class_index)
        left = members[np.argsort(-candidates.scores[members], kind="stable")]
        while left.size:
            block, left = left[:_BLOCK], left[_BLOCK:]
            first = len(kept)
            while block.size:
                kept.append(block[0])
                block = block[1:][are_apart(block[0], block[1:])]
            left = left[are_apart(np.array(kept[first:]), left).all(axis=0)]
    indices = np.array(kept, np.int64)
    return indices[np.argsort(-candidates.scores[indices], kind="stable")]


def overlap(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return the intersection over union of boxes with other boxes.

    box: one box (4,), or several boxes (M, 1, 4).
    boxes: the other boxes, (K, 4).
    Returns an array (K,) or (M, K). The value for two empty boxes is 0.
    """
    low, high = np.maximum(box[..., :2], boxes[:, :2]), np.minimum(box[..., 2:], boxes[:, 2:])
    sides = np.maximum(high - low, 0)
    common = sides[..., 0] * sides[..., 1]
    union = _area(box) + _area(boxes) - common
    return np.divide(common, union, out=np.zeros(union.shape), where=union > 0)


def _distance(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return the normalised squared distance of the centres of boxes.

    The squared distance is divided by the squared diagonal of the smallest box around both boxes.
    Arguments and result have the same shapes as in overlap().
    """
    around = np.maximum(box[..., 2:], boxes[:, 2:]) - np.minimum(box[..., :2], boxes[:, :2])
    diagonal = (around**2).sum(axis=-1)
    twice_between = (box[..., :2] + box[..., 2:]) - (boxes[:, :2] + boxes[:, 2:])
    between = (twice_between**2).sum(axis=-1) / 4
    return np.divide(between, diagonal, out=np.zeros(diagonal.shape), where=diagonal > 0)


def _area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[..., 2:] - boxes[..., :2]).prod(axis=-1)
