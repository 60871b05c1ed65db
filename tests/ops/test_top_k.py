from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.top_k import MOST_ELEMENTS, RoundsTopK
from gossamer.ops.top_k.problem import TopKProblem, reference
from gossamer.tensor import default_spec
from tests.fixtures import is_slow
from tests.ops.harness import check

VALUES = {"float32": [np.nan, np.inf, -np.inf, 0, -0.0, 1, -1],
          "int32": [-2**31, 1 - 2**31, 2**31 - 1, 0], "int64": [-2**63, 1 - 2**63, 2**63 - 1, 0]}


@given(shape=st.lists(st.integers(0, 7), min_size=1, max_size=5), data=st.data())
@settings(max_examples=40)
def test_any_order(device: Device, shape: list[int], data: st.DataObject) -> None:
    """NaN stands before or after the numbers; the first or last of equal elements is taken."""
    axis, dtype = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.sampled_from([*VALUES]))
    count = data.draw(st.integers(0, shape[axis]))
    largest, nan_first, last, places_only = (data.draw(st.booleans()) for _ in range(4))
    x = np.random.default_rng(count).choice(np.array(VALUES[dtype], dtype), shape)
    problem = TopKProblem(default_spec(x.shape, dtype), axis, count, largest, nan_first, last,
                          places_only)
    check(problem, device, inputs=[x])

    def first(row: np.ndarray) -> list[int]:
        return sorted(range(len(row)), key=lambda index: (
            np.isnan(row[index]) != nan_first, (-1 if largest else 1) * np.nan_to_num(
                row[index], nan=0, posinf=9, neginf=-9).item(), -index if last else index))[:count]

    if x.size:
        np.testing.assert_array_equal(reference(problem, [x], {})[-1],
                                      np.apply_along_axis(first, axis, x))


@pytest.mark.parametrize("count", [1, MOST_ELEMENTS])
def test_classes_and_pixels(device: Device, count: int) -> None:
    classes, images = (90, (1, 70, 4, 4)) if is_slow(device) else (1000, (2, 70, 4, 7))
    check(TopKProblem(default_spec((3, classes)), 1, count), device)
    check(TopKProblem(default_spec(images), 1, count, largest=False), device)


def test_more_elements_than_rounds_pay_for_are_left_to_the_host(compiled_device: Device) -> None:
    problem = TopKProblem(default_spec((2, 100)), 1, MOST_ELEMENTS + 1)
    assert RoundsTopK().supports(problem, compiled_device) == "finds at most 64 elements, not 65"


@pytest.mark.parametrize(("arguments", "message"), [
    ((default_spec((3, 4)), 2, 1), "axis 2"), ((default_spec((3, 4)), 1, 5), "cannot return 5"),
    ((default_spec((3, 4), "uint8"), 1, 1), "not uint8")])
def test_impossible_problems_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TopKProblem(*arguments)
