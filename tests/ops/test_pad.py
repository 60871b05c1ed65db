from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.device.host import HostDevice
from gossamer.facts import PLUS_MINUS_ONE, TERNARY, ValueFacts
from gossamer.ops.pad import PackedPad
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


@st.composite
def packed_problems(draw: st.DrawFn) -> PadProblem:
    """Rows and columns of -1, 0 or 1 around packed values, or less of these."""
    facts = draw(st.sampled_from([PLUS_MINUS_ONE, TERNARY]))
    sizes = st.sampled_from([-2, -1, 0, 1, 2])
    low, high = draw(st.tuples(sizes, sizes)), draw(st.tuples(sizes, sizes))
    shape = (draw(st.integers(0, 2)), draw(st.integers(1, 130)), draw(st.integers(4, 6)),
             draw(st.integers(4, 6)))
    return PadProblem(default_spec(shape), (0, 0, *low, 0, 0, *high), "constant",
                      draw(st.sampled_from([-1, 0, 1])), (facts,))


@given(problem=packed_problems())
@settings(max_examples=15)
def test_packed_values(device: Device, problem: PadProblem) -> None:
    ran = [name.split()[0] for name in check(problem, device)]
    assert ran.count("packed") == 2


@pytest.mark.parametrize(("pads", "mode", "value", "facts", "reason"), [
    ((0, 1, 0, 0, 0, 0, 0, 0), "constant", 1, (PLUS_MINUS_ONE,), "rows and columns"),
    ((0, 0, 1, 1) * 2, "reflect", 0, (PLUS_MINUS_ONE,), "only with a constant"),
    ((0, 0, 1, 1) * 2, "constant", 2, (PLUS_MINUS_ONE,), "known to be -1, 0 or 1"),
    ((0, 0, 1, 1) * 2, "constant", math.nan, (PLUS_MINUS_ONE,), "known to be -1, 0 or 1"),
    ((0, 0, 1, 1) * 2, "constant", 0, (), "known to be -1, 0 or 1")])
def test_what_words_cannot_pad_has_a_reason(pads: tuple[int, ...], mode: str, value: float,
                                            facts: tuple[ValueFacts, ...], reason: str) -> None:
    problem = PadProblem(default_spec((1, 32, 4, 4)), pads, mode, value, facts)
    assert reason in (PackedPad().supports(problem, HostDevice()) or "")


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
