"""Decoding of outputs into boxes, and non-maximum suppression."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.detect.decoding import Candidates, Grid, cells, decode, join, overlap, suppress
from gossamer.model.metadata import DetectionHead

SIZE = (64, 96)
CLASSES = 3
ANCHORS = np.array([[10.0, 14], [23, 27], [37, 58]])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def as_set(found: Candidates) -> list[tuple[float, ...]]:
    rows = zip(found.boxes, found.scores, found.classes, strict=True)
    return sorted((int(c), *np.round(box, 6), round(float(s), 6)) for box, s, c in rows)


def close(found: Candidates, expected: list[tuple[float, ...]]) -> bool:
    rows = as_set(found)
    return len(rows) == len(expected) and np.allclose(rows, sorted(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", [
    DetectionHead("yolo", (0, 1, 2)), DetectionHead("yolo", (0, 2), scale_x_y=1.2),
    DetectionHead("yolo", (1,), scale_x_y=2.0, new_coords=True),
    DetectionHead("region", (0, 1, 2), softmax=True), DetectionHead("region", (0, 1))],
    ids=str)
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_darknets_heads(head: DetectionHead, threshold: float, dtype: str) -> None:
    height, width = 2, 3
    anchors = ANCHORS[list(head.mask)]
    random = np.random.default_rng(0)
    output = random.standard_normal((len(head.mask) * (5 + CLASSES), height, width))
    if head.new_coords:
        output = 1 / (1 + np.exp(-output))
    output = output.astype(dtype)
    expected = []
    for n, (anchor_width, anchor_height) in enumerate(anchors):
        for row in range(height):
            for column in range(width):
                x = output[n * (5 + CLASSES):(n + 1) * (5 + CLASSES), row, column].astype(float)
                plain = float if head.new_coords else sigmoid
                objectness = plain(x[4])
                if head.softmax:
                    powers = np.exp(x[5:])
                    classes = powers / powers.sum()
                else:
                    classes = [plain(value) for value in x[5:]]
                dx, dy = (plain(value) * head.scale_x_y - (head.scale_x_y - 1) / 2
                          for value in x[:2])
                if head.new_coords:
                    w, h = x[2] * x[2] * 4 * anchor_width, x[3] * x[3] * 4 * anchor_height
                else:
                    w, h = math.exp(x[2]) * anchor_width, math.exp(x[3]) * anchor_height
                x, y = (column + dx) * SIZE[1] / width, (row + dy) * SIZE[0] / height
                expected += [(index, x - w / 2, y - h / 2, x + w / 2, y + h / 2, objectness * share)
                             for index, share in enumerate(classes)
                             if objectness * share > threshold]
    assert close(decode(head, output, Grid(SIZE, anchors, CLASSES), threshold), expected)
    assert (not expected) == (threshold == 0.99)


@pytest.mark.parametrize("strides", [(8, 16, 32), (8, 16, 32, 64)])
@pytest.mark.parametrize("decoded", [False, True])
def test_yolox(strides: tuple[int, ...], decoded: bool) -> None:
    size = (64, 128)
    count = cells(size, strides)
    output = np.random.default_rng(1).random((count, 5 + CLASSES)).astype(np.float32)
    grids = [(column, row, stride) for stride in strides for row in range(size[0] // stride)
             for column in range(size[1] // stride)]
    expected = []
    for (column, row, stride), numbers in zip(grids, output.astype(float), strict=True):
        x, y, w, h = numbers[:4]
        if not decoded:
            x, y = (x + column) * stride, (y + row) * stride
            w, h = math.exp(w) * stride, math.exp(h) * stride
        expected += [(index, x - w / 2, y - h / 2, x + w / 2, y + h / 2, numbers[4] * share)
                     for index, share in enumerate(numbers[5:]) if numbers[4] * share > 0.5]
    head = DetectionHead("yolox_decoded" if decoded else "yolox")
    grid = Grid(size, np.zeros((0, 2)), CLASSES)
    assert expected and close(decode(head, output, grid, 0.5), expected)


def test_yolov8() -> None:
    output = np.random.default_rng(2).random((4 + CLASSES, 84)).astype(np.float32)
    expected = [(index, x - w / 2, y - h / 2, x + w / 2, y + h / 2, score)
                for x, y, w, h, *scores in output.T.astype(float)
                for index, score in enumerate(scores) if score > 0.7]
    grid = Grid((64, 64), np.zeros((0, 2)), CLASSES)
    assert expected and close(decode(DetectionHead("yolov8"), output, grid, 0.7), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_numbers_that_are_none_make_no_boxes(value: float) -> None:
    output = np.full((8, 1, 2), 5, np.float32)
    output[2, 0, 0] = value
    for kind in ("yolo", "region"):
        head = DetectionHead(kind, (0,))
        found = decode(head, output, Grid(SIZE, ANCHORS[:1], CLASSES), 0.1)
        assert len(found.boxes) == CLASSES and np.isfinite(found.boxes).all()
        assert len(join([found, found]).scores) == 2 * CLASSES


def test_an_output_without_boxes() -> None:
    output = np.full((8, 1, 2), -50, np.float32)
    for head in (DetectionHead("yolo", (0,)), DetectionHead("region", (0,), softmax=True)):
        found = decode(head, output, Grid(SIZE, ANCHORS[:1], CLASSES), 0.25)
        assert found.boxes.shape == (0, 4) and found.scores.shape == found.classes.shape == (0,)


def plain_overlap(a: np.ndarray, b: np.ndarray, kind: str, beta: float) -> float:
    """Return the overlap by the formulas of Darknet's box.c, whose boxes have centres and
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
    """Return the boxes that stay after do_nms_sort() or diounms_sort()."""
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
