from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts, integers
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.binary.form import binary_form, reason_not_binary
from gossamer.ops.packed import result_dtype
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.lower.state import _weights_info
from tests.ops.conv2d.binary.signs import BATCH_NORM_BITS, BATCH_NORM_SIGN, SCALED, known_inputs


@pytest.mark.parametrize(("known", "dtype"), [
    (PLUS_MINUS_ONE, "bits"), (TERNARY, "trits"), (integers(0, 1), "trits")])
def test_inputs_take_one_bit_or_two(known: ValueFacts, dtype: str) -> None:
    problem = known_inputs(known)
    assert reason_not_binary(problem) is None
    assert binary_form(problem).input == dtype


@pytest.mark.parametrize(("epilogue", "result", "dtype"), [
    (Epilogue(apply("sign")), REAL, "trits"), (Epilogue(apply("sign")), PLUS_MINUS_ONE, "bits"),
    (Epilogue(apply("round")), REAL, None), (Epilogue(apply("round")), TERNARY, "trits")])
def test_what_is_known_of_results_saves_a_bit(epilogue: Epilogue, result: ValueFacts,
                                              dtype: str | None) -> None:
    problem = replace(known_inputs(TERNARY), epilogue=epilogue, result=result)
    assert binary_form(problem).output == dtype


@pytest.mark.parametrize(("known", "words"), [
    (REAL, "any floats"), (integers(-2, 2), "-2 to 2"), (ValueFacts(-2, 2, 4), "-2 or 2")])
def test_other_inputs_are_refused(known: ValueFacts, words: str) -> None:
    assert words in reason_not_binary(known_inputs(known))
    assert "any floats" in reason_not_binary(replace(known_inputs(known), facts=()))


@pytest.mark.parametrize(("info", "words"), [
    (WeightsInfo(), "not plus or minus one number"),
    (WeightsInfo(0.5, "mask"), "some of its weights are 0")])
def test_other_weights_are_refused(info: WeightsInfo, words: str) -> None:
    assert words in reason_not_binary(replace(known_inputs(TERNARY), weights_info=info))


def test_sums_that_are_not_exact_are_refused() -> None:
    problem = replace(known_inputs(TERNARY), channels=2**21)
    assert "not exact" in reason_not_binary(problem)


@pytest.mark.parametrize(("weight", "scaled"), [
    ([[1, -1, 1], [-1, -1, 1]], True), ([[0.5, -0.5, 0.5], [2, 2, -2]], True),
    ([[1, -1, 1], [1, 2, 1]], False), ([[1, -1, 1], [0, 0, 0]], False),
    ([[1, -1, 0], [1, 1, 1]], False), ([[np.inf, np.inf, np.inf], [1, 1, 1]], False),
    ([[1, np.nan, 1], [1, 1, 1]], False), (np.zeros((0, 3)), False)])
def test_weights_of_one_magnitude_a_channel_are_recognised(weight, scaled: bool) -> None:
    assert _weights_info(np.float32(weight), REAL).scaled_signs == scaled


def _truth_times_two_minus_one() -> Expression:
    return Expression(2, (
        ExpressionStep("greater_equal", (0, 1)), ExpressionStep("constant", (), (2.0,)),
        ExpressionStep("mul", (2, 3)), ExpressionStep("constant", (), (1.0,)),
        ExpressionStep("sub", (4, 5))))


@pytest.mark.parametrize(("expression", "dtype"), [
    (apply("sign"), "trits"), (BATCH_NORM_SIGN.expression, "trits"),
    (BATCH_NORM_BITS.expression, "bits"), (_truth_times_two_minus_one(), "bits"),
    (apply("greater"), "trits"), (apply("sign").then(apply("add")), None), (apply("relu"), None),
    (Expression(1), None), (apply("round"), None)])
def test_results_that_can_be_packed(expression: Expression, dtype: str | None) -> None:
    assert result_dtype(expression) == dtype


def test_what_is_known_of_weights_is_part_of_the_problem() -> None:
    assert known_inputs(TERNARY) != replace(known_inputs(TERNARY), weights_info=WeightsInfo())
    assert known_inputs(TERNARY).weights_info == SCALED
