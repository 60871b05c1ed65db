"""Boxes of the outputs of detecting networks, before suppression.

Each function takes the output for one photo, and gives only boxes whose score exceeds a threshold.
The score of a box is its objectness times the class's probability; a box that several classes claim
is given for each of them, as Darknet does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gossamer.model.detector_metadata import DetectionHead

STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
"""Strides of the grids of networks whose grids share one output: the pixels of the input, along an
axis, for each cell of a grid."""


@dataclass(frozen=True)
class Candidates:
    """Boxes of one photo.

    boxes: (K, 4) float64, left, top, right and bottom in pixels of the input.
    scores: (K,) float64.
    classes: (K,) numbers of the classes.
    """

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class Grid:
    """The units in which the boxes of an output are counted.

    size: height and width of the network's input.
    anchors: width and height, in pixels of the input, of the anchors of the head.
    classes: number of classes.
    """

    size: tuple[int, int]
    anchors: np.ndarray
    classes: int


def decode(head: DetectionHead, output: np.ndarray, grid: Grid, threshold: float) -> Candidates:
    """Returns the boxes that an output tells for one photo."""
    # numbers that overflow or are not numbers make boxes that are left out
    with np.errstate(all="ignore"):
        centres, sizes, objectness, probabilities = _DECODERS[head.kind](head, output, grid,
                                                                         threshold)
        scores = objectness[:, None] * probabilities
        boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
        box, class_index = np.nonzero((scores > threshold)
                                      & np.isfinite(boxes).all(axis=1, keepdims=True))
    return Candidates(boxes[box], scores[box, class_index], class_index)


def join(parts: list[Candidates]) -> Candidates:
    """Returns the boxes of several outputs together."""
    return Candidates(np.concatenate([part.boxes for part in parts]),
                      np.concatenate([part.scores for part in parts]),
                      np.concatenate([part.classes for part in parts]))


def cells(size: tuple[int, int], strides: tuple[int, ...]) -> int:
    """Returns the number of cells of all grids together."""
    return sum(math.prod(length // stride for length in size) for stride in strides)


_Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Centres (K, 2) and sizes (K, 2) in pixels of the input, objectness (K,), and probabilities
(K, classes)."""


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
    """Decodes an output of YOLOX or YOLOv5, (boxes, 5 + classes), whose scores went through their
    sigmoid."""
    chosen = np.flatnonzero(output[:, 4] > threshold)
    numbers = output[chosen].astype(np.float64)
    centres, sizes = numbers[:, :2], numbers[:, 2:4]
    if head.kind == "yolox":
        corners, strides = _cells(grid.size, len(output))
        centres = (centres + corners[chosen]) * strides[chosen]
        sizes = np.exp(sizes) * strides[chosen]
    return centres, sizes, numbers[:, 4], numbers[:, 5:]


def _yolov8(head: DetectionHead, output: np.ndarray, grid: Grid, threshold: float) -> _Parts:
    """Decodes an output of YOLOv8, (4 + classes, cells), with boxes in pixels."""
    chosen = np.flatnonzero((output[4:] > threshold).any(axis=0))
    numbers = output[:, chosen].T.astype(np.float64)
    return numbers[:, :2], numbers[:, 2:4], np.ones(len(numbers)), numbers[:, 4:]


_DECODERS: dict[str, Callable[[DetectionHead, np.ndarray, Grid, float], _Parts]] = {
    "yolo": _darknet, "region": _darknet, "yolox": _yolox, "yolox_decoded": _yolox,
    "yolov5": _yolox, "yolov8": _yolov8,
}


def _cells(size: tuple[int, int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns column and row of each cell of all grids, row by row, and its stride, (cells, 1)."""
    strides = next(strides for strides in STRIDES if cells(size, strides) == count)
    corners, steps = [], []
    for stride in strides:
        rows, columns = np.mgrid[:size[0] // stride, :size[1] // stride]
        corners.append(np.stack([columns.ravel(), rows.ravel()], axis=1))
        steps.append(np.full((rows.size, 1), stride))
    return np.concatenate(corners), np.concatenate(steps)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
