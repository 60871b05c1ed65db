"""Boxes and labels that are drawn on photos."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gossamer.detect.drawing import Area, _ink, label_positions

BLACK, WHITE = (0, 0, 0), (255, 255, 255)


@pytest.mark.parametrize(("colour", "ink"), [
    ((129, 129, 129), BLACK), ((127, 127, 127), WHITE), (WHITE, BLACK), (BLACK, WHITE),
    ((0, 255, 0), BLACK), ((255, 0, 0), WHITE), ((0, 0, 255), WHITE)])
def test_text_is_black_on_light_colours(colour: tuple[int, int, int],
                                        ink: tuple[int, int, int]) -> None:
    assert _ink(colour) == ink


def _overlaps(labels: list[Area]) -> float:
    return sum(max(min(first.right, second.right) - max(first.left, second.left), 0)
               * max(min(first.bottom, second.bottom) - max(first.top, second.top), 0)
               for first, second in itertools.combinations(labels, 2))


def test_a_label_is_above_its_box() -> None:
    assert label_positions([Area(30, 40, 80, 90)], [(20, 5)], 100, 100) == [Area(30, 35, 50, 40)]


@pytest.mark.parametrize(("box", "label"), [
    (Area(90, 40, 99, 90), Area(80, 35, 100, 40)),   # moved in at the right
    (Area(30, 2, 80, 90), Area(30, 0, 50, 5)),       # and at the top
    (Area(0, 0, 99, 99), Area(0, 0, 20, 5))])
def test_a_label_stays_on_the_photo(box: Area, label: Area) -> None:
    assert label_positions([box], [(20, 5)], 100, 100) == [label]


def test_one_box_with_several_labels() -> None:
    box = Area(20, 20, 80, 80)
    labels = label_positions([box] * 8, [(20, 5)] * 8, 100, 100)
    assert labels[0] == Area(20, 15, 40, 20)
    assert _overlaps(labels) == 0
    # all eight are at corners of the box
    assert all(label.left in (20, 60) and label.top in (15, 20, 75, 80) for label in labels)


@pytest.mark.slow
def test_many_labels_in_one_place() -> None:
    labels = label_positions([Area(45, 45, 55, 55)] * 60, [(20, 5)] * 60, 100, 100)
    assert _overlaps(labels) == 0
    assert min(min(label.left, label.top) for label in labels) >= 0
    assert max(max(label.right, label.bottom) for label in labels) <= 100


def test_more_labels_than_there_is_room() -> None:
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 10, (9, 2))
    labels = label_positions([Area(x, y, x + 5, y + 5) for x, y in corners], [(12, 8)] * 9, 20, 20)
    assert len(labels) == 9 and all(label.right <= 20 for label in labels)


def test_a_label_that_is_larger_than_the_photo() -> None:
    assert label_positions([Area(1, 1, 2, 2)] * 2, [(30, 12)] * 2, 20, 10) == [
        Area(0, 0, 30, 12)] * 2
