"""Decode outputs of detectors into boxes, and suppress overlapping boxes.

Each decoder takes the output for one photo. Boxes are kept only where their score exceeds a
threshold. The score of a box and a class is the box's objectness times the class's probability. As
in Darknet, a box is returned once for each class whose score exceeds the threshold.
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
        How sure the network is, from 0 to 1.
    left, top, right, bottom : float
        Edges of the box, in pixels from the photo's upper left corner. They may lie beyond the
        photo's edges.
    """

    name: str
    class_index: int
    score: float
    left: float
    top: float
    right: float
    bottom: float

    def as_json(self) -> dict[str, Any]:
        """Return the box in types that JSON has.

        Returns
        -------
        dict
            Number of the class ("class"), "name", "score", and "box" with left, top, right and
            bottom.
        """
        return {"class": self.class_index, "name": self.name, "score": self.score,
                "box": [self.left, self.top, self.right, self.bottom]}


STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
"""For networks with several grids in one output: the possible strides of their grids. A stride is
the width and the height of a grid's cells, in pixels of the input."""


@dataclass(frozen=True)
class Candidates:
    """Boxes of one photo.

    boxes: (K, 4) float64, the left, top, right and bottom edges in pixels of the network's input.
    scores: (K,) float64.
    classes: (K,) integers, the numbers of the classes.
    """

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class Grid:
    """The numbers of a network by which a head's output is decoded.

    size: height and width of the network's input, in pixels.
    anchors: (anchors, 2), width and height of the head's anchors in pixels of the input.
    classes: number of classes.
    """

    size: tuple[int, int]
    anchors: np.ndarray
    classes: int


def decode(head: DetectionHead, output: np.ndarray, grid: Grid, threshold: float) -> Candidates:
    """Return the boxes of one photo whose scores exceed the threshold.

    head: how the output encodes boxes.
    output: the head's output for the photo.
    """
    if output.dtype == np.float16:
        # scores are as precise as the head's numbers
        output = output.astype(np.float32)
    # NumPy need not warn of NaN and infinite edges: boxes with such edges are left out below
    with np.errstate(all="ignore"):
        centres, sizes, objectness, probabilities = _DECODERS[head.kind](head, output, grid,
                                                                         threshold)
        scores = objectness[:, None] * probabilities
        boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
        box, class_index = np.nonzero((scores > threshold)
                                      & np.isfinite(boxes).all(axis=1, keepdims=True))
    return Candidates(boxes[box], scores[box, class_index], class_index)


def join(parts: list[Candidates]) -> Candidates:
    """Return the boxes of several outputs as one object."""
    return Candidates(np.concatenate([part.boxes for part in parts]),
                      np.concatenate([part.scores for part in parts]),
                      np.concatenate([part.classes for part in parts]))


def cells(size: tuple[int, int], strides: tuple[int, ...]) -> int:
    """Return the number of cells of all grids together.

    size: height and width of the network's input.
    strides: stride of each grid.
    """
    return sum(math.prod(length // stride for length in size) for stride in strides)


_Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Four arrays for K boxes: centres (K, 2) and sizes (K, 2) in pixels of the input, objectness (K,),
and probabilities of the classes (K, classes)."""


def _darknet(head: DetectionHead, output: np.ndarray, grid: Grid, threshold: float) -> _Parts:
    """Decode a raw head of Darknet, (anchors * (5 + classes), H, W)."""
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
    """Decode an output of YOLOX or YOLOv5, (boxes, 5 + classes).

    The network itself has applied the sigmoid to objectness and probabilities.
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
    """Decode an output of YOLOv8, (4 + classes, cells), with boxes in pixels.

    There is no objectness.
    """
    chosen = np.flatnonzero((output[4:] > threshold).any(axis=0))
    numbers = output[:, chosen].T.astype(np.float64)
    return numbers[:, :2], numbers[:, 2:4], np.ones(len(numbers)), numbers[:, 4:]


_DECODERS: dict[str, Callable[[DetectionHead, np.ndarray, Grid, float], _Parts]] = {
    "yolo": _darknet, "region": _darknet, "yolox": _yolox, "yolox_decoded": _yolox,
    "yolov5": _yolox, "yolov8": _yolov8,
}


def _cells(size: tuple[int, int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the column and row of each cell, (cells, 2), and the stride of its grid, (cells, 1).

    The cells are in order, grid by grid and row by row; `count` is their number.
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
"""The number of boxes of highest score that are compared with all boxes of lower score in one
step."""


def suppress(candidates: Candidates, limit: float, kind: str = "greedynms",
             beta: float = 0.6) -> np.ndarray:
    """Return the indices of the boxes that stay, in descending order of score.

    limit: where two boxes of a class overlap more than this, the box of lower score is dropped.
    kind: how overlap is measured. "greedynms" takes the intersection over union. "diounms" takes
    the intersection over union less a penalty. The penalty is the squared distance of the centres,
    divided by the squared diagonal of the smallest box around both boxes, to the power beta (Z.
    Zheng et al., "Distance-IoU Loss: Faster and Better Learning for Bounding Box Regression", AAAI
    2020; the power is Darknet's).
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
    """Return the intersection over union of one box (4,), or of each of several boxes (M, 1, 4),
    with other boxes (K, 4): an array (K,) or (M, K). It is 0 for two empty boxes."""
    low, high = np.maximum(box[..., :2], boxes[:, :2]), np.minimum(box[..., 2:], boxes[:, 2:])
    sides = np.maximum(high - low, 0)
    common = sides[..., 0] * sides[..., 1]
    union = _area(box) + _area(boxes) - common
    return np.divide(common, union, out=np.zeros(union.shape), where=union > 0)


def _distance(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return the squared distance of the centres of boxes, divided by the squared diagonal of the
    smallest box around both boxes. Arguments and result have the shapes of overlap()."""
    around = np.maximum(box[..., 2:], boxes[:, 2:]) - np.minimum(box[..., :2], boxes[:, :2])
    diagonal = (around**2).sum(axis=-1)
    twice_between = (box[..., :2] + box[..., 2:]) - (boxes[:, :2] + boxes[:, 2:])
    between = (twice_between**2).sum(axis=-1) / 4
    return np.divide(between, diagonal, out=np.zeros(diagonal.shape), where=diagonal > 0)


def _area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[..., 2:] - boxes[..., :2]).prod(axis=-1)
