"""Expressions compute what Python computes of single numbers, alone and composed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from gossamer.expression import FUNCTIONS, Composer, Expression, ExpressionStep, apply
from tests.model.test_facts import CONSTANTS

SCALAR: dict[str, Callable[..., float]] = {
    "less": lambda a, b: a < b, "less_equal": lambda a, b: a <= b, "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b, "equal": lambda a, b: a == b,
    "and": lambda a, b: a != 0 and b != 0, "or": lambda a, b: a != 0 or b != 0,
    "not": lambda a: a == 0, "where": lambda a, b, c: b if a else c, "neg": lambda a: -a,
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    # a quotient of integers is rounded towards 0, and is the dividend where the divisor is 0
    "div": lambda a, b: (a / b if b else a * math.inf) if isinstance(a, float) else (
        int(a / b) if b else a),
    "min": min, "max": max, "abs": abs, "sign": lambda a: (a > 0) - (a < 0),
    "relu": lambda a: max(a, 0), "prelu": lambda a, slope: a * slope if a < 0 else a}
OF_FLOATS: dict[str, Callable[..., float]] = {
    "fma": lambda a, b, c: a * b + c, "fmod": lambda a, b: math.fmod(a, b) if b else math.nan,
    "floor": math.floor, "round": round, "to_float16": np.float16, "to_bfloat16": float,
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    "clip": lambda a: min(max(a, -1.5), 4.0), "leaky_relu": lambda a: a * 0.25 if a < 0 else a,
    "hard_sigmoid": lambda a: min(max(a * 0.2 + 0.5, 0), 1), "constant": lambda: 0.75}


@pytest.mark.parametrize("name", SCALAR | OF_FLOATS)
def test_functions_of_numbers(name: str) -> None:
    arity = FUNCTIONS[name].arity
    floats = (-7.0, -2.5, -1.5, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5, 3.0)
    for numbers, dtype in ((floats, "f4"), *([((-7, -2, -1, 0, 1, 2, 7), "i4")] * (
            name in SCALAR))):
        grid = list(itertools.product(numbers, repeat=arity))
        arrays = [np.array(each, dtype) for each in zip(*grid, strict=True)]
        (result,) = apply(name, *CONSTANTS.get(name, ())).evaluate(*arrays)
        assert result.dtype == (dtype if arity else "f8")
        np.testing.assert_allclose(np.broadcast_to(result, len(grid)), [
            float((SCALAR | OF_FLOATS)[name](*each)) for each in grid], 2e-6, 1e-7)


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    """Returns an expression of three inputs and a few exact steps."""
    steps: list[ExpressionStep] = []
    for count in range(3, 3 + draw(st.integers(0, 5))):
        name = draw(st.sampled_from(["add", "sub", "mul", "neg", "relu", "where", "constant"]))
        steps.append(ExpressionStep(name, tuple(draw(st.integers(0, count - 1)) for _ in range(
            FUNCTIONS[name].arity)), (-1.5,)[:FUNCTIONS[name].constants]))
    return Expression(3, tuple(steps), (draw(st.integers(0, 2 + len(steps))),))


@settings(max_examples=150)
@given(one=expressions(), other=expressions(), order=st.permutations(range(3)))
def test_composed_expressions(one: Expression, other: Expression, order: list[int]) -> None:
    values = [np.float64([2.0, -1.0]), np.float64([-3.0, 0.5]), np.float64([0.0, 7.0])]
    (middle,) = one.evaluate(*values)
    (expected,) = other.evaluate(middle, *values[:2])
    (result,) = one.then(other).evaluate(*values, *values[:2])
    np.testing.assert_array_equal(result, expected)
    (result,) = one.with_inputs(order).evaluate(*(values[place] for place in order))
    np.testing.assert_array_equal(result, middle)
    composer = Composer()
    inner = composer.inline(one, list(map(composer.operand, "abc")))
    outer = composer.inline(other, [
        *inner, composer.operand_or_constant("b", None),
        composer.operand_or_constant("three", np.array([[3.0]]))])
    names, built = composer.build(*outer, first="c")
    assert names[0] == "c" and len(names) == len(set(names)) == built.inputs
    assert len(set(built.steps)) == len(built.steps)
    (result,) = built.evaluate(*(values["abc".index(name)] for name in names))
    (expected,) = other.evaluate(middle, values[1], np.full(2, 3.0))
    np.testing.assert_array_equal(np.broadcast_to(result, 2), np.broadcast_to(expected, 2))
