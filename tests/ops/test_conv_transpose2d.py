from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.tensor import default_spec
from tests.ops.harness import check

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def problems(draw: st.DrawFn) -> ConvTranspose2dProblem:
    groups = draw(st.integers(1, 2))
    shape = (draw(st.sampled_from([0, 1, 3])), groups * draw(st.integers(1, 3)),
             draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    stride = draw(pairs)
    output_padding = (draw(st.integers(0, stride[0] - 1)), draw(st.integers(0, stride[1] - 1)))
    pads = draw(st.tuples(*[st.integers(0, 2)] * 4))
    try:
        return ConvTranspose2dProblem(
            default_spec(shape), groups * draw(st.integers(1, 3)), draw(pairs), stride, pads,
            draw(st.tuples(*[st.integers(1, 2)] * 2)), output_padding, groups,
            draw(st.booleans()))
    except ValueError:
        assume(False)
        raise


@given(problem=problems())
@settings(max_examples=25)
def test_any_window(device: Device, problem: ConvTranspose2dProblem) -> None:
    check(problem, device)


def test_channels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="groups"):
        ConvTranspose2dProblem(default_spec((1, 3, 2, 2)), 4, (2, 2), groups=2)
    with pytest.raises(ValueError, match="larger than the result"):
        ConvTranspose2dProblem(default_spec((1, 1, 1, 1)), 1, (1, 1), pads=(1, 1, 1, 1))
