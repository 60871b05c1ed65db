"""Non-maximum suppression: where boxes of a class overlap, only the box of highest score stays."""

from __future__ import annotations

import numpy as np

from gossamer.detect.decoding import Candidates

_BLOCK = 64
"""The number of boxes of highest score that are compared with all boxes of lower score in one
step."""


def suppress(candidates: Candidates, limit: float, kind: str = "greedynms",
             beta: float = 0.6) -> np.ndarray:
    """Returns the indices of the boxes that stay, in descending order of score.

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
    numbers = np.array(kept, np.int64)
    return numbers[np.argsort(-candidates.scores[numbers], kind="stable")]


def overlap(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Returns the intersection over union of one box (4,), or of each of several boxes (M, 1, 4),
    with other boxes (K, 4); 0 for two empty boxes."""
    low, high = np.maximum(box[..., :2], boxes[:, :2]), np.minimum(box[..., 2:], boxes[:, 2:])
    sides = np.maximum(high - low, 0)
    common = sides[..., 0] * sides[..., 1]
    union = _area(box) + _area(boxes) - common
    return np.divide(common, union, out=np.zeros(union.shape), where=union > 0)


def _distance(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Returns the squared distance of the centres, divided by the squared diagonal of the smallest
    box around both boxes. The arguments have the shapes that overlap() takes."""
    around = np.maximum(box[..., 2:], boxes[:, 2:]) - np.minimum(box[..., :2], boxes[:, :2])
    diagonal = (around**2).sum(axis=-1)
    twice_between = (box[..., :2] + box[..., 2:]) - (boxes[:, :2] + boxes[:, 2:])
    between = (twice_between**2).sum(axis=-1) / 4
    return np.divide(between, diagonal, out=np.zeros(diagonal.shape), where=diagonal > 0)


def _area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[..., 2:] - boxes[..., :2]).prod(axis=-1)
