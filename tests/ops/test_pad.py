from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.pad.problem import PadProblem
from gossamer.tensor import default_spec
from tests.ops.harness import check, op_of


@given(shape=st.lists(st.integers(2, 5), min_size=1, max_size=5), data=st.data())
@settings(max_examples=30)
def test_any_pads(device: Device, shape: list[int], data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(["constant", "reflect", "edge"]))
    pads = data.draw(st.lists(st.sampled_from([0, 0, 1, -1]), min_size=2 * len(shape),
                              max_size=2 * len(shape)))
    dtype, value = data.draw(st.sampled_from([("float32", 1.5), ("int64", 1), ("bool", 1)]))
    check(PadProblem(default_spec(tuple(shape), dtype), tuple(pads), mode, value), device)


def test_reflections(device: Device) -> None:
    problem = PadProblem(default_spec((1, 2, 3, 4)), (0, 0, 2, 1, 0, 0, 1, 3), "reflect")
    check(problem, device)
    x = np.arange(3, dtype=np.float32)
    line = PadProblem(default_spec((3,)), (2, 1), "reflect")
    assert op_of(line).reference(line, [x], {})[0].tolist() == [2, 1, 0, 1, 2, 1]


def test_empty_input_and_empty_output(device: Device) -> None:
    check(PadProblem(default_spec((0, 3)), (1, 0, 1, 0)), device)
    check(PadProblem(default_spec((2, 3)), (-2, 0, 0, 0)), device)
    check(PadProblem(default_spec((0, 3, 4, 4)), (0, 0, 1, 1, 0, 0, 1, 1), "reflect"), device)


@pytest.mark.parametrize(("pads", "mode"), [((-2, -2), "constant"), ((3, 0), "reflect"),
                                            ((1,), "edge"), ((1, 1), "wrap")])
def test_impossible_pads_are_refused(pads: tuple[int, ...], mode: str) -> None:
    with pytest.raises(ValueError, match="pad"):
        PadProblem(default_spec((3,)), pads, mode)
