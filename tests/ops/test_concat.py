from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.tensor import default_spec
from tests.ops.harness import check


@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=5), data=st.data())
@settings(max_examples=15)
def test_any_axis_and_layout(device: Device, shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    lengths = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))
    parts = tuple(default_spec((*shape[:axis], length, *shape[axis + 1:])) for length in lengths)
    check(ConcatProblem(parts, axis), device)


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_dtypes(device: Device, dtype: str) -> None:
    parts = (default_spec((2, 8, 3), dtype), default_spec((2, 4, 3), dtype))
    check(ConcatProblem(parts, 1), device)


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="does not continue"):
        ConcatProblem((default_spec((2, 3)), default_spec((3, 3))), 1)
