from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.top_k.problem import TopKProblem
from gossamer.ops.top_k.rounds import MOST_ELEMENTS, RoundsTopK
from gossamer.tensor import default_spec
from tests.fixtures import is_slow
from tests.ops.harness import check


@given(shape=st.lists(st.integers(0, 7), min_size=1, max_size=5), data=st.data())
@settings(max_examples=15)
def test_any_axis(device: Device, shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    spec = default_spec(tuple(shape), data.draw(st.sampled_from(["float32", "int32", "int64"])))
    check(TopKProblem(spec, axis, data.draw(st.integers(0, shape[axis])), data.draw(st.booleans()),
                      data.draw(st.booleans())), device)


@pytest.mark.parametrize("count", [1, MOST_ELEMENTS])
def test_classes_and_pixels(device: Device, count: int) -> None:
    classes = 90 if is_slow(device) else 1000
    check(TopKProblem(default_spec((3, classes)), 1, count), device)
    check(TopKProblem(default_spec((2, 70, 4, 7)), 1, count, largest=False), device)


@pytest.mark.parametrize("largest", [False, True])
def test_lower_places_come_first_and_nan_last(device: Device, largest: bool) -> None:
    nan, inf = float("nan"), float("inf")
    x = np.array([[1, 2, 2, -1, -1, 1], [nan, inf, -inf, nan, 0, -0.0], [nan] * 6], np.float32)
    for count in (1, 6):
        check(TopKProblem(default_spec(x.shape), 1, count, largest), device, inputs=[x])


def test_extreme_integers_keep_their_order(device: Device) -> None:
    for dtype in ("int32", "int64"):
        limits = np.iinfo(dtype)
        x = np.array([[limits.min, limits.max, -1, 0, limits.min + 1]], dtype)
        for largest in (False, True):
            check(TopKProblem(default_spec(x.shape, dtype), 1, 5, largest), device, inputs=[x])


def test_more_elements_than_rounds_pay_for_are_left_to_the_host(compiled_device: Device) -> None:
    problem = TopKProblem(default_spec((2, 100)), 1, MOST_ELEMENTS + 1)
    assert RoundsTopK().supports(problem, compiled_device) == "takes 65 elements, of at most 64"


@pytest.mark.parametrize(("arguments", "message"), [
    ((default_spec((3, 4)), 2, 1), "axis 2"), ((default_spec((3, 4)), 1, 5), "cannot take 5"),
    ((default_spec((3, 4), "uint8"), 1, 1), "not uint8")])
def test_impossible_problems_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TopKProblem(*arguments)
