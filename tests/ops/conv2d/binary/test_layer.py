"""Tests which layers bits compute, and of thresholds in place of epilogues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.host import host_array
from gossamer.device.registry import find
from gossamer.expression import Expression, apply
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts, integers
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.binary import thresholds as module
from gossamer.ops.conv2d.binary.layer import BinaryLayer, binary_form, reason_not_binary
from gossamer.ops.conv2d.binary.tensor_core.tables import Tables
from gossamer.ops.conv2d.binary.thresholds import (
    Thresholds,
    find_thresholds,
    packed_thresholds,
)
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.packed import result_dtype
from gossamer.ops.weights import Weights, WeightsInfo
from gossamer.plan.lower.state import _weights_info
from tests.ops.conv2d.binary.signs import (
    ABOVE,
    BAND_SIGN,
    BATCH_NORM_BITS,
    BATCH_NORM_SIGN,
    RESIDUAL_BITS,
    SCALED,
    known_inputs,
)


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
    (WeightsInfo(), "different magnitudes within a channel"),
    (WeightsInfo(0.5, "mask"), "some of its weights are 0")])
def test_other_weights_are_refused(info: WeightsInfo, words: str) -> None:
    assert words in reason_not_binary(replace(known_inputs(TERNARY), weights_info=info))


@pytest.mark.parametrize(("weight", "scaled"), [
    ([[1, -1, 1], [-1, -1, 1]], True), ([[0.5, -0.5, 0.5], [2, 2, -2]], True),
    ([[1, -1, 1], [1, 2, 1]], False), ([[1, -1, 1], [0, 0, 0]], False),
    ([[1, -1, 0], [1, 1, 1]], False), ([[np.inf, np.inf, np.inf], [1, 1, 1]], False),
    ([[1, np.nan, 1], [1, 1, 1]], False), (np.zeros((0, 3)), False)])
def test_weights_of_one_magnitude_a_channel_are_recognised(weight, scaled: bool) -> None:
    assert _weights_info(np.float32(weight), REAL).scaled_signs == scaled


@pytest.mark.parametrize(("expression", "dtype"), [
    (apply("sign"), "trits"), (BATCH_NORM_SIGN.expression, "trits"),
    (BATCH_NORM_BITS.expression, "bits"), (ABOVE, "bits"),
    (apply("greater"), "trits"), (apply("sign").then(apply("add")), None), (apply("relu"), None),
    (Expression(1), None), (apply("round"), None)])
def test_results_that_can_be_packed(expression: Expression, dtype: str | None) -> None:
    assert result_dtype(expression) == dtype


def test_what_is_known_of_weights_is_part_of_the_problem() -> None:
    assert known_inputs(TERNARY) != replace(known_inputs(TERNARY), weights_info=WeightsInfo())
    assert known_inputs(TERNARY).weights_info == SCALED


numbers = st.floats(-40, 40, width=32)


@given(scales=st.lists(numbers, min_size=1, max_size=6), data=st.data(),
       bound=st.sampled_from([1, 9, 100]),
       epilogue=st.sampled_from([BATCH_NORM_SIGN, BATCH_NORM_BITS]))
@settings(max_examples=80)
def test_thresholds_are_the_epilogue_for_every_sum(scales, data, bound, epilogue) -> None:
    shifts = data.draw(st.lists(numbers, min_size=len(scales), max_size=len(scales)))
    alphas = np.float32(data.draw(st.lists(st.floats(0.125, 8, width=32), min_size=len(scales),
                                           max_size=len(scales))))
    arrays = {"operand0": np.float32(scales), "operand1": np.float32(shifts)}
    thresholds = find_thresholds(epilogue, arrays, alphas, bound)
    sums = np.arange(-bound, bound + 1)
    for m, alpha in enumerate(alphas.astype(np.float64)):
        before = sums * alpha * float(scales[m]) + float(shifts[m])
        expected = np.sign(before) if epilogue is BATCH_NORM_SIGN else np.where(before >= 0, 1, -1)
        actual = results_of(thresholds, sums)[:, m]
        np.testing.assert_array_equal(actual, expected)


def results_of(thresholds: Thresholds | None, sums: np.ndarray) -> np.ndarray:
    """Returns the result of each channel for each of the sums, (sums, channels)."""
    assert thresholds is not None
    above = [sums[:, None] >= each for each in (thresholds.lower, thresholds.upper)]
    return thresholds.direction * (above[0].astype(int) + above[1] - 1)


def test_scales_of_each_sign() -> None:
    arrays = {"operand0": np.float32([2, -2, 0, 0, 0]), "operand1": np.float32([-6, -6, 1, 0, -1])}
    thresholds = find_thresholds(BATCH_NORM_SIGN, arrays, np.ones(5, np.float32), 9)
    results = results_of(thresholds, np.arange(-9, 10))
    assert results[:, 0].tolist() == [-1] * 12 + [0] + [1] * 6
    assert results[:, 1].tolist() == [1] * 6 + [0] + [-1] * 12
    assert [set(results[:, m]) for m in (2, 3, 4)] == [{1}, {0}, {-1}]


@pytest.mark.parametrize("epilogue", [BAND_SIGN, RESIDUAL_BITS, Epilogue(),
                                      Epilogue(apply("relu"))])
def test_other_epilogues_have_none(epilogue: Epilogue) -> None:
    assert find_thresholds(epilogue, {}, np.ones(3, np.float32), 9) is None


def test_a_nan_has_no_threshold() -> None:
    arrays = {"operand0": np.float32([1, np.nan]), "operand1": np.float32([0, 0])}
    assert find_thresholds(BATCH_NORM_SIGN, arrays, np.ones(2, np.float32), 5) is None


def test_epilogues_of_the_same_weights_have_their_own() -> None:
    arrays = {"weight": np.ones((2, 1, 3, 3), np.float32), "operand0": np.float32([1, 2]),
              "operand1": np.float32([0, 3])}
    weights = Weights(arrays, find("host"))
    sign = packed_thresholds(weights, BATCH_NORM_SIGN, 9)
    bits = packed_thresholds(weights, BATCH_NORM_BITS, 9)
    assert sign is not None and bits is not None
    assert packed_thresholds(weights, Epilogue(apply("relu")), 9) is None
    tables = [host_array(table, (3, 2), np.int32).tolist() for table in (sign, bits)]
    assert tables == [[[0, -1], [1, -1], [1, 1]], [[0, -1], [0, -1], [1, 1]]]


def test_all_tables_of_a_layer_are_made_of_thresholds_found_once(
        monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []

    def find_and_count(*arguments: Any) -> Thresholds | None:
        searches.append(arguments)
        return find_thresholds(*arguments)

    monkeypatch.setattr(module, "find_thresholds", find_and_count)
    arrays = {"weight": np.ones((2, 1, 3, 3), np.float32), "operand0": np.float32([1.25, 2]),
              "operand1": np.float32([0, 3.75])}
    problem = Conv2dProblem(1, 1, 5, 5, 2, (3, 3), epilogue=BATCH_NORM_SIGN, weights_info=SCALED,
                            facts=(PLUS_MINUS_ONE,))
    weights = Weights(arrays, find("host"))
    table = packed_thresholds(weights, BATCH_NORM_SIGN, problem.depth)
    constants = [Tables(BinaryLayer(problem), 64, unit, 1, 1, 1, False).constants(weights, True)
                 for unit in (64, 128)]
    assert table is not None and len(constants) == 2 and len(searches) == 1
    # other biases have thresholds of their own
    others = Weights({**arrays, "operand1": np.float32([1, 2])}, find("host"))
    assert packed_thresholds(others, BATCH_NORM_SIGN, problem.depth) is not None
    assert len(searches) == 2
