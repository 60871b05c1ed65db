from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts
from gossamer.ops.pool import PackedPool
from gossamer.ops.pool.problem import PoolProblem
from gossamer.tensor import default_spec
from tests.fixtures import is_slow
from tests.ops.harness import check
from tests.ops.recording import RecordingDevice

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


def windows(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    """Draw kernel, stride, pads and dilation; ONNX requires pads smaller than the window."""
    kernel, stride, dilation = draw(pairs), draw(pairs), draw(st.tuples(*[st.integers(1, 2)] * 2))
    pads = tuple(draw(st.integers(0, kernel[i % 2] - 1)) for i in range(4))
    return kernel, stride, pads, dilation


@st.composite
def problems(draw: st.DrawFn) -> PoolProblem:
    shape = (draw(st.sampled_from([0, 1, 2, 3])), draw(st.sampled_from([1, 3, 4])),
             draw(st.integers(5, 8)), draw(st.integers(5, 8)))
    return PoolProblem(default_spec(shape), draw(st.sampled_from(["max", "average"])),
                       *windows(draw), draw(st.booleans()), draw(st.booleans()))


@given(problem=problems())
@settings(max_examples=50)
def test_any_window(device: Device, problem: PoolProblem) -> None:
    check(problem, device)


@pytest.mark.parametrize("kind", ["max", "average"])
def test_layers_of_real_networks(device: Device, kind: str) -> None:
    size = 9 if is_slow(device) else 55
    check(PoolProblem(default_spec((2, 8, size, size)), kind, (3, 3), (2, 2)), device)
    check(PoolProblem(default_spec((1, 12, size, size)), kind, (3, 3), (2, 2), (1, 1, 1, 1)),
          device)


@st.composite
def packed_problems(draw: st.DrawFn) -> PoolProblem:
    """Maxima of packed values, every window of which has a pixel of the input."""
    shape = (draw(st.integers(0, 2)), draw(st.integers(1, 70)), draw(st.integers(5, 8)),
             draw(st.integers(5, 8)))
    facts = draw(st.sampled_from([PLUS_MINUS_ONE, TERNARY]))
    return PoolProblem(default_spec(shape), "max", *windows(draw), draw(st.booleans()),
                       facts=(facts,))


@given(problem=packed_problems())
@settings(max_examples=12)
def test_packed_values(compiled_device: Device, problem: PoolProblem) -> None:
    ran = [name.split()[0] for name in check(problem, compiled_device)]
    assert ran.count("packed") == 2


@pytest.mark.parametrize("value", [-1, 0, 1])
def test_a_window_of_one_value_has_that_maximum(device: Device, value: int) -> None:
    problem = PoolProblem(default_spec((1, 33, 3, 3)), "max", (3, 3), (2, 2), (1, 1, 1, 1),
                          facts=(TERNARY,))
    check(problem, device, inputs=[np.full((1, 33, 3, 3), value, np.float32)])


@pytest.mark.parametrize(("facts", "reason"), [
    (PLUS_MINUS_ONE, None), (TERNARY, None), (ValueFacts(0.0, 1.0, 1.0), None),
    (REAL, "known to be"), (ValueFacts(0.0, 2.0, 1.0), "known to be")], ids=str)
def test_what_may_be_pooled_packed(facts: ValueFacts, reason: str | None) -> None:
    problem = PoolProblem(default_spec((1, 2, 4, 4)), "max", (2, 2), facts=(facts,))
    refusal = PackedPool().supports(problem, RecordingDevice())
    assert refusal is None if reason is None else reason in refusal


def test_other_windows_are_not_pooled_packed() -> None:
    spec = default_spec((1, 2, 4, 4))
    average = PoolProblem(spec, "average", (2, 2), facts=(PLUS_MINUS_ONE,))
    assert PackedPool().supports(average, RecordingDevice()) == "computes maxima only"
    separate = PoolProblem(spec, "max", (1, 1), (2, 2), (1, 1, 1, 1), count_include_pad=True,
                        facts=(PLUS_MINUS_ONE,))
    assert PackedPool().supports(separate, RecordingDevice()) == "a window lies in the padding"


def test_no_window_starts_in_the_padding_at_the_end() -> None:
    problem = PoolProblem(default_spec((1, 1, 2, 2)), "average", (1, 1), (2, 2),
                          (0, 0, 0, 0), ceil_mode=True)
    assert problem.outputs[0].shape == (1, 1, 1, 1)


def test_a_window_larger_than_the_input_is_refused() -> None:
    with pytest.raises(ValueError, match="smaller than the window"):
        PoolProblem(default_spec((1, 1, 2, 2)), "max", (4, 4))
