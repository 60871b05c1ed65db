"""Decodes the outputs of detecting networks into boxes, before non-maximum suppression.

Each decoder takes the output for one photo. Boxes are kept only where their score exceeds a
threshold. The score of a box and a class is the box's objectness times the class's probability. As
in Darknet, a box is returned once for each class whose score exceeds the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gossamer.model.metadata import DetectionHead

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
    """Returns the boxes of one photo whose scores exceed the threshold.

    head: how the output encodes boxes.
    output: the head's output for the photo.
    """
    if output.dtype == np.float16:
        # scores are as precise as the head's numbers
        output = output.astype(np.float32)
    # boxes with NaN or infinite edges are left out below, so that NumPy's warnings are of no use
    with np.errstate(all="ignore"):
        centres, sizes, objectness, probabilities = _DECODERS[head.kind](head, output, grid,
                                                                         threshold)
        scores = objectness[:, None] * probabilities
        boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
        box, class_index = np.nonzero((scores > threshold)
                                      & np.isfinite(boxes).all(axis=1, keepdims=True))
    return Candidates(boxes[box], scores[box, class_index], class_index)


def join(parts: list[Candidates]) -> Candidates:
    """Returns the boxes of several outputs as one object."""
    return Candidates(np.concatenate([part.boxes for part in parts]),
                      np.concatenate([part.scores for part in parts]),
                      np.concatenate([part.classes for part in parts]))


def cells(size: tuple[int, int], strides: tuple[int, ...]) -> int:
    """Returns the number of cells of all grids together. size: height and width of the network's
    input. strides: stride of each grid."""
    return sum(math.prod(length // stride for length in size) for stride in strides)


_Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Four arrays for K boxes: centres (K, 2) and sizes (K, 2) in pixels of the input, objectness (K,),
and probabilities of the classes (K, classes)."""


def _darknet(head: DetectionHead, output: np.ndarray, grid: Grid, threshold: float) -> _Parts:
    """Decodes a raw head of Darknet, (anchors * (5 + classes), H, W)."""
    height, width = output.shape[1:]
    numbers = output.reshape(len(head.mask), 5 + grid.classes, height, width)
    plain = head.kind == "yolo" and head.new_coords
    objectness = numbers[:, 4] if plain else _sigmoid(numbers[:, 4])
    anchor, row, column = np.nonzero(objectness > threshold)
    chosen = numbers[anchor, :, row, column].astype(np.float64)
    objectness = objectness[anchor, row, column].astype(np.float64)
    classes, offsets = chosen[:, 5:], chosen[:, :2]
    if head.kind == "region" and head.softmax:
        classes = np.exp(classes - classes.max(axis=1, keepdims=True, initial=-np.inf))
        classes /= classes.sum(axis=1, keepdims=True)
    elif not plain:
        classes = _sigmoid(classes)
    offsets = offsets if plain else _sigmoid(offsets)
    offsets = offsets * head.scale_x_y - (head.scale_x_y - 1) / 2
    sizes = (2 * chosen[:, 2:4]) ** 2 if plain else np.exp(chosen[:, 2:4])
    cell = np.array([grid.size[1] / width, grid.size[0] / height])
    centres = (np.stack([column, row], axis=1) + offsets) * cell
    return centres, sizes * grid.anchors[anchor], objectness, classes


def _yolox(head: DetectionHead, output: np.ndarray, grid: Grid, threshold: float) -> _Parts:
    """Decodes an output of YOLOX or YOLOv5, (boxes, 5 + classes). The network itself has applied
    the sigmoid to objectness and probabilities."""
    chosen = np.flatnonzero(output[:, 4] > threshold)
    numbers = output[chosen].astype(np.float64)
    centres, sizes = numbers[:, :2], numbers[:, 2:4]
    if head.kind == "yolox":
        corners, strides = _cells(grid.size, len(output))
        centres = (centres + corners[chosen]) * strides[chosen]
        sizes = np.exp(sizes) * strides[chosen]
    return centres, sizes, numbers[:, 4], numbers[:, 5:]


def _yolov8(head: DetectionHead, output: np.ndarray, grid: Grid, threshold: float) -> _Parts:
    """Decodes an output of YOLOv8, (4 + classes, cells), with boxes in pixels. There is no
    objectness."""
    chosen = np.flatnonzero((output[4:] > threshold).any(axis=0))
    numbers = output[:, chosen].T.astype(np.float64)
    return numbers[:, :2], numbers[:, 2:4], np.ones(len(numbers)), numbers[:, 4:]


_DECODERS: dict[str, Callable[[DetectionHead, np.ndarray, Grid, float], _Parts]] = {
    "yolo": _darknet, "region": _darknet, "yolox": _yolox, "yolox_decoded": _yolox,
    "yolov5": _yolox, "yolov8": _yolov8,
}


def _cells(size: tuple[int, int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the column and row of each cell, (cells, 2), and the stride of its grid, (cells, 1).
    The cells are in order, grid by grid and row by row; `count` is their number."""
    strides = next(strides for strides in STRIDES if cells(size, strides) == count)
    corners, steps = [], []
    for stride in strides:
        rows, columns = np.mgrid[:size[0] // stride, :size[1] // stride]
        corners.append(np.stack([columns.ravel(), rows.ravel()], axis=1))
        steps.append(np.full((rows.size, 1), stride))
    return np.concatenate(corners), np.concatenate(steps)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
