"""Value facts: no value that float32 arithmetic gives may contradict what is derived."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from gossamer.facts import (
    NONNEGATIVE,
    PLUS_MINUS_ONE,
    REAL,
    TERNARY,
    ValueFacts,
    integers,
    of_array,
    point,
)

floats = st.floats(width=32, allow_nan=False, allow_subnormal=False)
bounded = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)


@st.composite
def grids(draw: st.DrawFn) -> ValueFacts:
    """Few values from low on, in steps that are a multiple of a power of two."""
    power = 2.0 ** draw(st.integers(-6, 6))
    low, step = draw(st.integers(-40, 40)), draw(st.integers(1, 9))
    return ValueFacts(low * power, (low + step * draw(st.integers(1, 30))) * power, step * power)


@st.composite
def ranges(draw: st.DrawFn) -> ValueFacts:
    return ValueFacts(*sorted((draw(floats), draw(floats))))


facts = st.one_of(grids(), ranges(), st.builds(point, floats), st.sampled_from(
    [REAL, NONNEGATIVE, point(0.0), PLUS_MINUS_ONE, TERNARY, integers(0, 1), integers(-3, 12),
     ValueFacts(2.0, math.inf, 1.0), ValueFacts(-0.3125, 0.3125, 0.625)]))


def values(known: ValueFacts, rng: np.random.Generator) -> np.ndarray:
    """Returns values in float32 that the facts allow, those at the bounds among them."""
    if known.count is not None:
        return np.append(known.draw(rng, (20,)), np.float32([known.low, known.high]))
    if known.step:
        return np.float32(known.low + known.step * np.arange(20))
    some = np.float32([known.low, known.high, 0.0, -0.0, 1.0, -1.0, 0.5, -2.75, 1e-3, 7.0, 3e38])
    return some[(some >= known.low) & (some <= known.high)]


@given(st.lists(bounded | st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, math.nan]),
                max_size=9))
def test_facts_of_an_array_hold_for_it(numbers: list[float]) -> None:
    assert of_array(np.float32(numbers)).holds(np.float32(numbers))


@given(grids(), st.integers(0, 99))
def test_facts_of_an_array_find_its_grid(known: ValueFacts, seed: int) -> None:
    array = values(known, np.random.default_rng(seed))
    found = of_array(array)
    assert (found.low, found.high) == (known.low, known.high) and found.holds(array)
    assert known.count is not None and found.count is not None and found.count <= known.count


@pytest.mark.parametrize(("array", "expected"), [
    (np.float32([1, -1, 1]), PLUS_MINUS_ONE), (np.float32([1, 0, -1]), TERNARY),
    (np.float32([[0.1, -0.1]]), ValueFacts(-np.float32(0.1), np.float32(0.1), 2 * np.float32(0.1))),
    (np.int64([3, 9, 27]), ValueFacts(3, 27, 6)), (np.array([True, False]), integers(0, 1)),
    (np.float32([2.5, math.nan]), point(2.5)), (np.float32([]), point(0)),
    (np.int64([0, 2**24 + 1]), ValueFacts(0, np.nextafter(np.float32(2**24), np.float32(2**25)))),
    (np.float32([0.1, 0.2, 0.5]), ValueFacts(np.float32(0.1), 0.5)),
    (np.float32([-math.inf, 1]), ValueFacts(-math.inf, 1)),
], ids=str)
def test_facts_of_arrays(array: np.ndarray, expected: ValueFacts) -> None:
    assert of_array(array) == expected


def test_a_large_array_is_read_to_its_end() -> None:
    array = np.tile(np.float32([1, -1]), 5000)
    assert of_array(array) == PLUS_MINUS_ONE
    array[-1] = 0.5
    assert of_array(array) == ValueFacts(-1, 1, 0.5)
    array[-1] = 0.1
    assert not of_array(array).step


@given(facts, st.lists(bounded, min_size=1, max_size=4, unique=True), st.integers(0, 99))
def test_parts_hold_all_values_between_them(known: ValueFacts, limits: list[float],
                                            seed: int) -> None:
    limits = sorted(set(map(float, np.float32(limits) + np.float32(0))))
    parts = known.parted(limits)
    array = values(known, np.random.default_rng(seed))
    array = np.append(array, [limit for limit in limits if known.holds(np.float64(limit))])
    for value in array:
        (part,) = [part for part in parts if part.holds(value)]
        assert np.isin(value, limits) == (part.low == part.high and part.low in limits)


@pytest.mark.parametrize(("known", "expected"), [
    (integers(-2, 3), [integers(-2, -1), point(0), integers(1, 3)]),
    (PLUS_MINUS_ONE, [point(-1), point(1)]), (point(0), [point(0)]),
    (ValueFacts(-0.5, 1.5, 1.0), [point(-0.5), ValueFacts(0.5, 1.5, 1.0)]),
])
def test_parts_of_grids(known: ValueFacts, expected: list[ValueFacts]) -> None:
    assert known.parted([0.0]) == expected


ONE = {"neg": np.negative, "abs": np.abs, "relu": lambda x: np.maximum(x, 0), "sign": np.sign,
       "floor": np.floor, "round": np.rint, "truncate": np.trunc,
       "clip": lambda x: np.clip(x, np.float32(-1.5), np.float32(6))}
TWO = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "minimum": np.minimum,
       "maximum": np.maximum, "join": lambda x, y: np.where(x > y, x, y)}


@pytest.mark.parametrize("name", ONE)
@settings(max_examples=60)
@given(known=facts, seed=st.integers(0, 99))
def test_functions_of_one_value(name: str, known: ValueFacts, seed: int) -> None:
    x = values(known, np.random.default_rng(seed))
    constants = (-1.5, 6.0) if name == "clip" else ()
    assert known.holds(x)
    assert getattr(known, name)(*constants).holds(ONE[name](x))


@pytest.mark.parametrize("name", TWO)
@settings(max_examples=100)
@given(known=facts, other=facts, seed=st.integers(0, 99))
def test_functions_of_two_values(name: str, known: ValueFacts, other: ValueFacts,
                                 seed: int) -> None:
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        result = TWO[name](values(known, rng)[:, None], values(other, rng))
    assert getattr(known, name)(other).holds(result)


FEW = [point(0), point(1), point(-0.5), PLUS_MINUS_ONE, TERNARY, integers(0, 1), integers(-2, 3),
       integers(2, 5), integers(-5, -3), ValueFacts(-0.5, 0.5, 1.0), ValueFacts(-0.75, 1.25, 0.5),
       ValueFacts(1, 3, 2), ValueFacts(0, 4, 0.25)]


@pytest.mark.parametrize("name", [*ONE, *TWO, "sum_of"])
def test_no_more_is_allowed_than_few_values_give(name: str) -> None:
    every = {known: np.float32([known.low + known.step * index for index in range(
        known.count or 0)]) for known in FEW}
    for known, x in every.items():
        if name in ONE:
            constants = (-1.5, 6.0) if name == "clip" else ()
            assert getattr(known, name)(*constants) == of_array(ONE[name](x))
        elif name == "sum_of":
            for count in range(1, 5):
                assert known.sum_of(count) == of_array(sum(np.ix_(*[x] * count)))
        else:
            for other, y in every.items():
                found = getattr(known, name)(other)
                expected = of_array(np.append(x, y) if name == "join" else TWO[name](
                    x[:, None], y))
                assert (found.low, found.high) == (expected.low, expected.high)
                assert found == expected or name == "maximum"


@settings(max_examples=60)
@given(known=facts, count=st.integers(1, 50), seed=st.integers(0, 99))
@example(known=point(0.0), count=3, seed=0)
@example(known=point(1.0), count=3, seed=0)
def test_sums(known: ValueFacts, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    terms = rng.choice(values(known, rng), (40, count))
    with np.errstate(all="ignore"):
        result = np.add.accumulate(terms, axis=1)[:, -1]
    assert known.sum_of(count).holds(result)


def test_what_is_known_of_plus_or_minus_one() -> None:
    assert PLUS_MINUS_ONE.is_binary and PLUS_MINUS_ONE.is_integer and PLUS_MINUS_ONE.few_values
    assert TERNARY.is_ternary and TERNARY.is_integer and not TERNARY.is_binary
    assert PLUS_MINUS_ONE.mul(PLUS_MINUS_ONE) == PLUS_MINUS_ONE
    assert PLUS_MINUS_ONE.sum_of(9) == ValueFacts(-9, 9, 2)
    assert PLUS_MINUS_ONE.add(point(1)) == ValueFacts(0, 2, 2)
    assert PLUS_MINUS_ONE.join(point(0)) == TERNARY
    assert PLUS_MINUS_ONE.abs() == point(1) and PLUS_MINUS_ONE.sign() == PLUS_MINUS_ONE
    assert PLUS_MINUS_ONE.relu() == integers(0, 1)
    assert point(1).join(point(-1)) == PLUS_MINUS_ONE and NONNEGATIVE.sign() == integers(0, 1)
    assert REAL.sign() == TERNARY and REAL.clip(0, 6) == ValueFacts(0, 6)
    assert ValueFacts(0, 5).round() == integers(0, 5) and str(PLUS_MINUS_ONE) == "-1 or 1"
    assert point(2).is_integer and not point(0.5).is_integer and not REAL.is_integer
    assert NONNEGATIVE.same_sign() == NONNEGATIVE and PLUS_MINUS_ONE.same_sign() == REAL
    assert ValueFacts(-2, 0).same_sign() == ValueFacts(-math.inf, 0)
    assert TERNARY.few_values and not point(0).few_values and not REAL.few_values
    assert str(point(-0.0)) == "0" and str(integers(0, 9)) == "0 to 9 in steps of 1"


def test_what_float32_rounds_is_on_no_grid() -> None:
    large = integers(0, 2**23)
    assert large.add(large).step == 1 and not large.add(large).add(large).step
    assert integers(0, 2**13).mul(integers(0, 2**13)) == ValueFacts(0, 2**26)
    assert integers(0, 2**20).sum_of(17) == REAL
    assert not integers(0, 2**25).step and not integers(0, 2**16).few_values


@pytest.mark.parametrize("numbers", [(1, 0, 0), (0, 1, 2), (0, 1, -1), (-math.inf, 0, 1),
                                     (0, 2**25, 1), (math.nan, 0, 0), (0.1, 1, 0.3), (1, 1, 1)])
def test_facts_that_cannot_be_are_refused(numbers: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"values from .* in steps of"):
        ValueFacts(*numbers)


def test_real_numbers_are_not_drawn() -> None:
    with pytest.raises(ValueError, match="expected finitely many"):
        NONNEGATIVE.draw(np.random.default_rng(0), (2,))
