"""What is derived from a grid of facts and arrays stays as it was recorded."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np

from gossamer import facts
from gossamer.facts import NONNEGATIVE, PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts, integers, point
from tests.recorded import Recorded, as_text
from tests.recorded.outcomes import outcome

INF = math.inf
GRID = [
    REAL, NONNEGATIVE, ValueFacts(-INF, 0.0), PLUS_MINUS_ONE, TERNARY, point(0.0), point(1.0),
    point(-1.0), point(0.5), point(3.0), point(INF), ValueFacts(0.0, 1.0), ValueFacts(-1.0, 2.5),
    ValueFacts(0.25, 4.0), ValueFacts(-3.0, -0.5), integers(0, 1), integers(0, 255),
    integers(-128, 127), integers(-8, -3), integers(2, 5), ValueFacts(0.0, INF, 1.0),
    ValueFacts(-2.5, INF, 0.5), ValueFacts(1.0, 3.0, 2.0), ValueFacts(-0.5, 0.5, 1.0),
    ValueFacts(-0.75, 1.25, 0.5), integers(0, 2**24 - 1), integers(0, 2**24), ValueFacts(
        0.0, 2.0**-125, 2.0**-126), ValueFacts(0.0, 2.0**127, 2.0**126), ValueFacts(-INF, 3e38)]
"""Facts with and without bounds, a grid and a sign; the grids of one, two, three and many values,
some as fine or as far as float32 reaches."""


def shown(known: ValueFacts | None) -> str:
    return "none" if known is None else ":".join(
        f"{number:.10g}" for number in (known.low, known.high, known.step))


def test_properties_and_functions_of_one_value(recorded: Recorded) -> None:
    texts = {}
    for known in [*GRID, *(integers(0, count) for count in (2, 3, 65534, 65535, 65536))]:
        some = np.float32([-4, -3, -1, -0.75, -0.5, 0, 0.25, 0.5, 1, 2, 3, 256])
        properties = (str(known), known.count, known.largest, known.is_binary, known.is_ternary,
                      known.is_integer, known.few_values,
                      "".join(str(int(known.holds(value))) for value in some))
        rounded = [known.neg(), known.abs(), known.relu(), known.sign(), known.floor(),
                   known.round(), known.truncate(), known.same_sign()]
        clipped = [known.clip(*limits) for limits in ((-1, 1), (0, 6), (0.3, 0.6), (2, 2), (3, 5))]
        sums = [known.sum_of(count) for count in (0, 1, 2, 3, 9, 64, 65537, 2**24 - 1, 2**24,
                                                  2**24 + 1)]
        parted = [" ".join(map(shown, known.parted(limits))) for limits in (
            (), (0.0,), (1.0,), (-0.5,), (0.3,), (-1.0, 1.0), (0.0, 2.0, 3.0), (-3.0, -0.5),
            (255.0,), (254.0, 255.0, 256.0))]
        texts[shown(known)] = "; ".join([
            as_text(properties), *(" ".join(map(shown, each)) for each in (rounded, clipped, sums)),
            " | ".join(parted)])
    recorded("facts_of_one", texts)


def test_functions_of_two_values(recorded: Recorded) -> None:
    recorded("facts_of_two", {
        f"{name} {shown(one)}": " ".join(shown(getattr(one, name)(other)) for other in GRID)
        for name in ("join", "add", "sub", "mul", "minimum", "maximum") for one in GRID})


def made(low: float, high: float, step: float) -> str:
    return shown(ValueFacts(low, high, step))


def test_facts_that_are_refused(recorded: Recorded) -> None:
    numbers = (-INF, -1.0, 0.0, 1.0, 2.0**24, 2.0**24 + 2, INF)
    steps = (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 2.0**-126, 2.0**-127, INF)
    recorded("facts_refused", {
        f"{low:g} {high:g}": " / ".join(
            outcome(made, low, high, step, text=str) for step in steps)
        for low, high in itertools.product(numbers, numbers)})


def test_grids_at_the_bounds_of_float32(recorded: Recorded) -> None:
    texts = {}
    for power, near in itertools.product((-149, -127, -126, -125, -1, 0, 1, 103, 104, 105),
                                         (0, 1, 2, 3, 2**24)):
        step = Fraction(2) ** power
        found = [facts.grid(low * step, (low + count) * step, step * factor)
                 for low in (-near, 0, near) for factor in (1, 3)
                 for count in (factor, 3, 6, 2**24 - 1, 2**24, 2**24 + 1)]
        texts[f"{power} {near}"] = " ".join(map(shown, found))
    largest = int(np.finfo(np.float32).max)
    for number in (largest - 1, largest, largest + 1, largest + 2**103):
        texts[f"integers to {number}"] = " ".join(map(shown, (
            integers(0, number), integers(-number, 0), integers(-number, number),
            facts.grid(Fraction(0), Fraction(number), Fraction(number)))))
    for numbers in ((1,), (2, 3), (4, 6), (12, 18, 30), (1, 0), (0.5, 0.75), (3, 0.25)):
        fractions = tuple(map(Fraction, numbers))
        texts[f"divisors {numbers}"] = f"{facts.unit(*fractions)} {facts.common(*fractions)}"
    texts["divisors of nothing"] = str(facts.common(Fraction(0), Fraction(0)))
    recorded("facts_grids", texts)


def test_facts_of_arrays(recorded: Recorded) -> None:
    """Values at the places 63, 64, 4095 and 4096 decide whether the first ones are on a grid."""
    texts = {}
    for size, place, value in itertools.product(
            (1, 2, 63, 64, 65, 4095, 4096, 4097), (-1, 0, 63, 64, 4096),
            (0.0, 3.0, 0.5, 0.1, -7.0, math.nan, INF, -INF, 2.0**24, 2.0**25, 2.0**-130)):
        if place >= size:
            continue
        arrays = [np.full(size, 1.0), np.arange(size) % 2 * 2.0 - 1, np.arange(size) % 5 * 0.25]
        for array in arrays:
            array[place] = value
        texts[f"{size} {place} {value:g}"] = " ".join(
            shown(facts.of_array(array.astype(np.float32))) for array in arrays)
    for dtype in ("bool", "uint8", "int8", "int32", "int64", "float16", "float64"):
        numbers = [[], [0], [1], [0, 1], [0, 1, 1, 0], [0, 5, 100], [3, 9, 6]]
        if dtype in ("int32", "int64", "float64"):
            numbers += [[-1, 2**24 - 1], [0, 2**24], [0, 2**24 + 1], [-2**24, 0], [-2**24 - 1, 0]]
        texts[dtype] = " ".join(shown(facts.of_array(np.array(each, dtype))) for each in numbers)
    rng = np.random.default_rng(9)
    for case in range(80):
        power = int(rng.integers(-3, 4))
        array = np.float32(rng.integers(-16, 17, rng.integers(2, 7)) * 2.0**power)
        texts[f"drawn {case}"] = f"{array.tolist()} {shown(facts.of_array(array))}"
    recorded("facts_of_arrays", texts)


def drawn(known: ValueFacts) -> list[list[float]]:
    numbers: list[list[float]] = known.draw(np.random.default_rng(3), (2, 3)).tolist()
    return numbers


def test_draws_are_of_the_facts(recorded: Recorded) -> None:
    recorded("facts_drawn", {
        shown(known): outcome(drawn, known, text=str)
        for known in GRID})
