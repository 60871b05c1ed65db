"""Suppression keeps what Darknet's loops keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.detect.decoding import Candidates
from gossamer.detect.suppression import overlap, suppress


def plain_overlap(a: np.ndarray, b: np.ndarray, kind: str, beta: float) -> float:
    """Returns the overlap by the formulas of Darknet's box.c, whose boxes have centres and
    sizes."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    common = width * height if width > 0 and height > 0 else 0.0
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    iou = common / union if union else 0.0
    if kind == "greedynms":
        return iou
    w, h = max(a[2], b[2]) - min(a[0], b[0]), max(a[3], b[3]) - min(a[1], b[1])
    c = w * w + h * h
    d = ((a[0] + a[2] - b[0] - b[2]) / 2) ** 2 + ((a[1] + a[3] - b[1] - b[3]) / 2) ** 2
    return iou - (d / c) ** beta if c else iou


def plain(found: Candidates, limit: float, kind: str, beta: float) -> list[int]:
    """Returns the boxes that stay after do_nms_sort() or diounms_sort()."""
    scores = found.scores.copy()
    order = sorted(range(len(scores)), key=lambda index: -found.scores[index])
    for position, i in enumerate(order):
        for j in order[position + 1:]:
            if (found.classes[i] == found.classes[j] and scores[i] and plain_overlap(
                    found.boxes[i], found.boxes[j], kind, beta) > limit):
                scores[j] = 0
    return [index for index in order if scores[index]]


@given(st.integers(0, 40), st.integers(0, 10**6), st.sampled_from(("greedynms", "diounms")),
       st.sampled_from((0.0, 0.3, 0.45, 1.0)))
def test_random_boxes(count: int, seed: int, kind: str, limit: float) -> None:
    random = np.random.default_rng(seed)
    low = random.integers(0, 6, (count, 2))
    boxes = np.concatenate([low, low + random.integers(0, 6, (count, 2))], axis=1).astype(float)
    found = Candidates(boxes, random.permutation(np.linspace(0.1, 1, count)),
                       random.integers(0, 3, count))
    assert suppress(found, limit, kind, 0.6).tolist() == plain(found, limit, kind, 0.6)


@pytest.mark.parametrize("kind", ["greedynms", "diounms"])
def test_more_boxes_than_are_compared_at_once(kind: str) -> None:
    random = np.random.default_rng(0)
    low = random.random((300, 2)) * 40
    found = Candidates(np.concatenate([low, low + random.random((300, 2)) * 9], axis=1),
                       random.random(300), random.integers(0, 2, 300))
    kept = suppress(found, 0.2, kind).tolist()
    assert 150 < len(kept) < 300
    assert kept == plain(found, 0.2, kind, 0.6)


def test_the_distance_of_centres_keeps_boxes_apart() -> None:
    found = Candidates(np.array([[0.0, 0, 10, 10], [3, 0, 13, 10]]), np.array([0.9, 0.8]),
                       np.array([0, 0]))
    assert suppress(found, 0.5, "greedynms").tolist() == [0]
    assert suppress(found, 0.5, "diounms").tolist() == [0, 1]


def test_boxes_of_other_classes_and_no_boxes() -> None:
    twice = np.array([[0.0, 0, 10, 10]] * 2)
    assert suppress(Candidates(twice, np.array([0.8, 0.9]), np.array([0, 1])), 0.45).tolist() == [
        1, 0]
    assert suppress(Candidates(twice[:0], np.zeros(0), np.zeros(0, int)), 0.45).tolist() == []


def test_overlap() -> None:
    box = np.array([0.0, 0, 2, 2])
    others = np.array([[0.0, 0, 2, 2], [1, 1, 3, 3], [2, 2, 3, 3], [5, 5, 6, 6], [0, 0, 0, 0]])
    assert overlap(box, others).tolist() == pytest.approx([1, 1 / 7, 0, 0, 0])
    assert overlap(others[4], others[4:]).tolist() == [0]
