"""How a plan's results are judged beside ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import gossamer
from gossamer.errors import DeviceLostError, InputError, UnsupportedError
from tests.model.onnx_models import model, runtime
from tests.networks.compared import drawn_inputs, judged, outcome_of, results_of, session_of
from tests.tolerances import WHOLE_NETWORK


def subtracting(size: float) -> onnx.ModelProto:
    """Returns a network of two products whose results are nearly equal where the size is large."""
    w = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    return model([helper.make_node("MatMul", ["x", "a"], ["p"], "first"),
                  helper.make_node("MatMul", ["x", "b"], ["q"], "second"),
                  helper.make_node("Sub", ["p", "q"], ["y"], "difference")],
                 {"x": ("N", 64)}, {"y": 2}, {"a": size * w, "b": (size * w + w[::-1])})


@pytest.mark.parametrize("precision", WHOLE_NETWORK)
def test_right_results_are_allowed(precision: str) -> None:
    proto = subtracting(1)
    given = drawn_inputs(session_of(proto), 3)
    plan = gossamer.compile(proto, "host")
    error, allowed = judged(plan, given, results_of(plan, given), runtime(proto, given), precision)
    assert error <= allowed == WHOLE_NETWORK[precision]


@pytest.mark.parametrize(("size", "is_allowed"), [(1, False), (300, True)])
def test_float16_may_be_twice_as_far_from_float64_as_rounded_layers(size: float,
                                                                    is_allowed: bool) -> None:
    proto = subtracting(size)
    given = drawn_inputs(session_of(proto), 3)
    expected = runtime(proto, given)
    error, allowed = judged(gossamer.compile(proto, "host"), given, [1.05 * expected[0]], expected,
                            "fp16")
    assert error == pytest.approx(0.05, rel=0.1)
    assert (error <= allowed) == is_allowed


def test_wrong_results_of_float32_are_not_allowed() -> None:
    proto = subtracting(300)
    given = drawn_inputs(session_of(proto), 3)
    expected = runtime(proto, given)
    error, allowed = judged(gossamer.compile(proto, "host"), given, [1.05 * expected[0]], expected)
    assert error > allowed == WHOLE_NETWORK["fp32"]


@pytest.mark.parametrize(("error", "outcome"), [
    (UnsupportedError("Sin of x"), "refused: Sin of x"),
    (InputError("x has 3 rows"), "refused: x has 3 rows"),
    (DeviceLostError("cuda:0 failed"), "crashed: DeviceLostError: cuda:0 failed"),
    (ZeroDivisionError(), "crashed: ZeroDivisionError: ZeroDivisionError")])
def test_a_device_that_fails_is_a_crash(error: Exception, outcome: str) -> None:
    assert outcome_of(error) == outcome
