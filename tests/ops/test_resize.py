from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.resize.problem import COORDINATES, NEAREST_MODES, ResizeProblem
from gossamer.tensor import default_spec
from tests.ops.harness import check, op_of


@st.composite
def problems(draw: st.DrawFn) -> ResizeProblem:
    height, width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    size = (draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    shape = (draw(st.sampled_from([0, 1, 2, 3])), draw(st.sampled_from([3, 4])), height, width)
    return ResizeProblem(default_spec(shape), size, (size[0] / height, size[1] / width),
                         draw(st.sampled_from(["nearest", "linear"])),
                         draw(st.sampled_from(COORDINATES)), draw(st.sampled_from(NEAREST_MODES)))


@given(problem=problems())
@settings(max_examples=25)
def test_any_size_and_mode(device: Device, problem: ResizeProblem) -> None:
    check(problem, device)


def test_doubling_repeats_every_pixel(device: Device) -> None:
    problem = ResizeProblem(default_spec((2, 4, 3, 5)), (6, 10), (2.0, 2.0), "nearest",
                            "asymmetric", "floor")
    check(problem, device)
    x = np.arange(120, dtype=np.float32).reshape(2, 4, 3, 5)
    result = op_of(problem).reference(problem, [x], {})[0]
    np.testing.assert_array_equal(result, x.repeat(2, 2).repeat(2, 3))


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot resize"):
        ResizeProblem(default_spec((1, 1, 0, 2)), (2, 2), (1.0, 1.0))
    with pytest.raises(ValueError, match="coordinates"):
        ResizeProblem(default_spec((1, 1, 2, 2)), (2, 2), (1.0, 1.0), "linear", "middle")
