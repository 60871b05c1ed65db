from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.tensor import default_spec
from tests.fixtures import is_slow
from tests.ops.harness import check


@given(shape=st.lists(st.integers(0, 7), min_size=1, max_size=5), data=st.data())
@settings(max_examples=15)
def test_any_axis(device: Device, shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    check(SoftmaxProblem(default_spec(tuple(shape)), axis, data.draw(st.booleans())), device)


@pytest.mark.parametrize("log", [False, True])
def test_classifiers_and_pixels(device: Device, log: bool) -> None:
    classes = 90 if is_slow(device) else 1000
    check(SoftmaxProblem(default_spec((3, classes)), 1, log), device)
    check(SoftmaxProblem(default_spec((2, 5, 4, 7)), 1, log), device)


def test_large_values_do_not_overflow(device: Device) -> None:
    x = np.array([[1e4, 1e4 - 1, -1e30], [-1e30, -1e30, -1e30], [88, 89, 90]], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # 16-bit floats become minus infinity
        for log in (False, True):
            check(SoftmaxProblem(default_spec(x.shape), 1, log), device, inputs=[x])


def test_an_impossible_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="axis 2"):
        SoftmaxProblem(default_spec((3, 4)), 2)
