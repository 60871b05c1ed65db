"""Expressions as kernels compute them have the results of the expressions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.kernel_expression import floats_in_kernels
from gossamer.tensor import default_spec
from tests.ops.harness import check

_FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
_DIVISORS = st.floats(2.0**-100, 2.0**100, width=32)


def divided_by(divisor: float) -> Expression:
    return Expression(1, (ExpressionStep("constant", (), (divisor,)),
                          ExpressionStep("div", (0, 1), ())))


def quotients(divisor: float, x: np.ndarray) -> np.ndarray:
    (result,) = floats_in_kernels(divided_by(divisor)).evaluate(x)
    return result


def functions(expression: Expression) -> list[str]:
    return [step.function for step in expression.steps]


@given(divisor=_DIVISORS, x=_FINITE, is_negative=st.booleans())
@settings(max_examples=2000)
def test_quotients_are_rounded_correctly(divisor: float, x: float, is_negative: bool) -> None:
    divisor = -divisor if is_negative else divisor
    given_x = np.array([x], np.float32)
    with np.errstate(all="ignore"):
        exact = given_x / np.float32(divisor)
    if x == 0 or 2.0**-100 <= abs(exact[0]) <= 2.0**127:
        assert quotients(divisor, given_x) == exact


def test_neighbours_of_every_integer_of_8_bits_are_rounded_correctly() -> None:
    rng = np.random.default_rng(0)
    for divisor in rng.uniform(1e-3, 10, 200).astype(np.float32):
        halves = (np.arange(-510, 511, dtype=np.float32) / 2 * divisor).astype(np.float32)
        x = np.concatenate([halves, np.nextafter(halves, np.float32(np.inf)),
                            np.nextafter(halves, np.float32(-np.inf))])
        x = x[np.abs(x) > 1e-20]
        np.testing.assert_array_equal(quotients(float(divisor), x), x / divisor)


def test_infinity_and_nan_stay() -> None:
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(quotients(3.0, x), x)
    np.testing.assert_array_equal(quotients(-3.0, x), -x)


def test_powers_of_two_take_one_multiplication() -> None:
    assert functions(floats_in_kernels(divided_by(0.25))) == ["constant", "constant", "mul"]


@pytest.mark.parametrize("divisor", [0.0, np.inf, np.nan, 1e-38, 3e38])
def test_divisors_without_a_useful_reciprocal_stay(divisor: float) -> None:
    assert functions(floats_in_kernels(divided_by(divisor))) == ["constant", "div"]


def test_divisions_by_values_stay() -> None:
    assert floats_in_kernels(apply("div")) == apply("div")


def clipped_and_rounded(low: float, high: float) -> Expression:
    return apply("clip", low, high).then(apply("round"))


@given(x=st.floats(width=32), bounds=st.sampled_from([(0.0, 255.0), (-128.0, 127.0),
                                                      (-32768.0, 32767.0), (-4e6, 4e6)]))
@settings(max_examples=500)
def test_clipped_numbers_are_rounded_by_additions(x: float, bounds: tuple[float, float]) -> None:
    expression = clipped_and_rounded(*bounds)
    rounded = floats_in_kernels(expression)
    assert "round" not in functions(rounded)
    given_x = np.array([x], np.float32)
    np.testing.assert_array_equal(rounded.evaluate(given_x)[0], expression.evaluate(given_x)[0])


def test_ties_are_rounded_to_even() -> None:
    x = np.arange(-511, 512, dtype=np.float32) / 2
    expression = clipped_and_rounded(-300.0, 300.0)
    np.testing.assert_array_equal(floats_in_kernels(expression).evaluate(x)[0], np.rint(x))


@pytest.mark.parametrize("expression", [apply("round"), clipped_and_rounded(0.0, 1e9)], ids=str)
def test_numbers_of_a_wide_range_are_rounded_by_the_function(expression: Expression) -> None:
    assert floats_in_kernels(expression) == expression


def test_kernels_round_clipped_numbers(device: Device) -> None:
    x = np.arange(-600, 600, dtype=np.float32).reshape(3, 400) / 2
    problem = ElementwiseProblem((default_spec((3, 400)),), clipped_and_rounded(-128.0, 127.0))
    check(problem, device, inputs=[x])


def test_kernels_divide_by_constants(device: Device) -> None:
    problem = ElementwiseProblem((default_spec((3, 5, 7)),), divided_by(0.3))
    check(problem, device)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_are_divided_exactly(device: Device, dtype: str) -> None:
    """A division by 0 returns the dividend, so that a candidate whose drawn divisors include 0
    agrees with the reference."""
    limits = np.iinfo(dtype)
    a, b = (array.astype(dtype) for array in np.meshgrid(
        [7, -7, 6, 0, limits.max, limits.max - 1, limits.min + 1], [2, -2, 3, -3, 1, -1, 0]))
    problem = ElementwiseProblem((default_spec(a.shape, dtype),) * 2, apply("div"), (dtype,))
    check(problem, device, inputs=[a, b])
    (results,) = apply("div").evaluate(a, b)
    for dividend, divisor, quotient in zip(a.flat, b.flat, results.flat, strict=True):
        exact = abs(int(dividend)) // abs(int(divisor)) if divisor else abs(int(dividend))
        assert abs(int(quotient)) == exact
        assert quotient == 0 or (quotient < 0) == ((dividend < 0) != (divisor < 0))
