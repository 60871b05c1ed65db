"""Which batch goes next, and which batch sizes are used at all."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.plan.run import requests
from gossamer.plan.run.requests import Part, Request, chosen_size, joined, measured_times

TIMES = {1: 1.0, 2: 1.2, 4: 1.6, 8: 2.4}


@pytest.mark.parametrize(("rows", "left_s", "expected"), [
    ([1], math.inf, (1, 1)),
    ([1, 1], math.inf, (2, 2)),
    # three of four places are more images a second than two of two
    ([1, 1, 1], math.inf, (4, 3)),
    ([1] * 5, math.inf, (4, 4)),
    ([1] * 7, math.inf, (8, 7)),
    ([1] * 20, math.inf, (8, 8)),
    # the largest batch that ends in time
    ([1] * 20, 1.7, (4, 4)),
    ([1] * 20, 1.3, (2, 2)),
    # none ends in time: what computes most images a second
    ([1] * 20, 0.5, (8, 8)),
    ([1] * 20, -1.0, (8, 8)),
    # requests stay whole and in order
    ([3, 3, 3], math.inf, (8, 2)),
    ([5, 1], 2.0, (8, 2)),
    ([8, 1], math.inf, (8, 1)),
])
def test_the_batch_that_goes_next(rows: list[int], left_s: float,
                                  expected: tuple[int, int]) -> None:
    assert chosen_size(rows, left_s, TIMES) == expected


def test_sizes_that_gain_nothing_are_left_out() -> None:
    asked: list[int] = []

    def seconds_of(size: int) -> float:
        asked.append(size)
        return {1: 1.0, 2: 1.1, 4: 9.0, 8: 4.0, 16: 8.0, 32: 16.0}[size]

    # that of 4 was disturbed
    assert measured_times(seconds_of, [1, 2, 4, 8, 16, 32, 64]) == {1: 1.0, 2: 1.1, 8: 4.0}
    assert asked == [1, 2, 4, 8, 16, 32]
    assert measured_times(seconds_of, [1, 2, 4, 8], 1.05) == {1: 1.0}
    # the first is used however long it takes
    assert measured_times(seconds_of, [1, 2], 0.1) == {1: 1.0}


def test_the_parts_of_a_request_come_in_any_order() -> None:
    request = Request([np.zeros((5, 1))], 5, 0.0, math.inf)
    assert request.begin()
    request.add(3, 2, (np.array([3, 4]),))
    assert not request.result.done()
    request.add(0, 3, (np.array([0, 1, 2]),))
    assert request.result.result().tolist() == [0, 1, 2, 3, 4]


def test_a_request_fails_once() -> None:
    request = Request([np.zeros((2, 1))], 2, 0.0, math.inf)
    request.fail(ValueError("first"))
    request.fail(ValueError("second"))
    request.add(0, 2, (np.zeros(2),))
    with pytest.raises(ValueError, match="first"):
        request.result.result()
    assert not request.begin()


@pytest.mark.parametrize("width", [3, 2**18])
def test_a_batch_has_the_images_of_its_requests(width: int) -> None:
    rng = np.random.default_rng(0)
    given = [rng.integers(0, 200, (3, width), np.uint8),
             rng.integers(0, 200, (width, 2), np.uint8).T,
             rng.integers(0, 200, (1, width), np.uint8).astype(np.float32)]
    lane = SimpleNamespace(pinned=(np.zeros((8, width), np.float32),))
    lanes: Any = SimpleNamespace(take=lambda size: lane, begun=lambda lane, arrays: None)

    # two of three images of the first request
    starts = [1, 0, 0]
    joined([Part(Request([x], len(x), 0.0, math.inf), start, len(x) - start)
            for x, start in zip(given, starts, strict=True)], 8)(lanes)

    np.testing.assert_array_equal(lane.pinned[0][:5], np.concatenate(
        [given[0][1:], given[1], given[2]]))
    assert not lane.pinned[0][5:].any()


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 9)), max_size=9), st.booleans())
def test_each_image_is_computed_once_and_what_is_due_first_comes_first(
        drawn: list[tuple[int, int]], alone: bool) -> None:
    waiting: Any = requests.WaitingRequests({"one": {} if alone else TIMES})  # type: ignore
    made, done = [], []
    for number, (rows, due) in enumerate(drawn):
        made.append(Request([np.arange(rows) + 100.0 * number], rows, due, math.inf))
        made[-1].result.add_done_callback(lambda _, number=number: done.append(number))
        waiting.add(made[-1])
    lanes: Any = SimpleNamespace(
        take=lambda size: SimpleNamespace(pinned=[np.full(size, -1.0)]),
        begun=lambda lane, arrays: lambda: [np.repeat(arrays[0], 2)])
    while task := waiting.next_task("one"):
        task.result.set_result(task.begin(lanes)())
    assert waiting.rows == 0 and done == sorted(range(len(made)), key=lambda each: made[each].due)
    for request in made:
        np.testing.assert_array_equal(request.result.result(), np.repeat(request.arrays[0], 2))
