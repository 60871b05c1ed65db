"""Non-maximum suppression: of boxes of one class that overlap, the one of highest score stays."""

from __future__ import annotations

import numpy as np

from gossamer.detect.decoding import Candidates


def suppress(candidates: Candidates, limit: float, kind: str = "greedynms",
             beta: float = 0.6) -> np.ndarray:
    """Returns the numbers of the boxes that stay, those of highest score first.

    limit: overlap above which the lower of two boxes of a class is dropped. kind: "greedynms" takes
    the intersection over union; "diounms" subtracts from it the squared distance of the centres,
    divided by the squared diagonal of the box round both, to the power beta (Z. Zheng et al.,
    "Distance-IoU Loss: Faster and Better Learning for Bounding Box Regression", AAAI 2020; the
    power is Darknet's).
    """
    kept = []
    for class_index in np.unique(candidates.classes):
        members = np.flatnonzero(candidates.classes == class_index)
        left = members[np.argsort(-candidates.scores[members], kind="stable")]
        while left.size:
            best, left = left[0], left[1:]
            kept.append(best)
            overlaps = overlap(candidates.boxes[best], candidates.boxes[left])
            if kind == "diounms":
                overlaps -= _distance(candidates.boxes[best], candidates.boxes[left]) ** beta
            left = left[overlaps <= limit]
    numbers = np.array(kept, np.int64)
    return numbers[np.argsort(-candidates.scores[numbers], kind="stable")]


def overlap(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Returns the intersection over union of a box (4,) with others (K, 4); 0 where both are
    empty."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    common = np.clip(high - low, 0, None).prod(axis=1)
    union = _area(box[None]) + _area(boxes) - common
    return np.divide(common, union, out=np.zeros(len(boxes)), where=union > 0)


def _distance(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Returns the squared distance of the centres, in units of the squared diagonal of the box
    round both."""
    around = np.maximum(box[2:], boxes[:, 2:]) - np.minimum(box[:2], boxes[:, :2])
    diagonal = (around**2).sum(axis=1)
    between = (((box[:2] + box[2:]) - (boxes[:, :2] + boxes[:, 2:])) ** 2).sum(axis=1) / 4
    return np.divide(between, diagonal, out=np.zeros(len(boxes)), where=diagonal > 0)


def _area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
