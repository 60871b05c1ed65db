from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.host import host_array
from gossamer.device.registry import find
from gossamer.expression import apply
from gossamer.facts import PLUS_MINUS_ONE
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.binary import thresholds as module
from gossamer.ops.conv2d.binary.layer import BinaryLayer
from gossamer.ops.conv2d.binary.tensor_core.tables import Tables
from gossamer.ops.conv2d.binary.thresholds import (
    Thresholds,
    find_thresholds,
    packed_thresholds,
)
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.ops.conv2d.binary.signs import (
    BAND_SIGN,
    BATCH_NORM_BITS,
    BATCH_NORM_SIGN,
    RESIDUAL_BITS,
    SCALED,
)

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
        actual = thresholds.apply(np.broadcast_to(sums[:, None], (len(sums), len(alphas))))[:, m]
        np.testing.assert_array_equal(actual, expected)


def test_scales_of_each_sign() -> None:
    arrays = {"operand0": np.float32([2, -2, 0, 0, 0]), "operand1": np.float32([-6, -6, 1, 0, -1])}
    thresholds = find_thresholds(BATCH_NORM_SIGN, arrays, np.ones(5, np.float32), 9)
    results = thresholds.apply(np.repeat(np.arange(-9, 10)[:, None], 5, axis=1))
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
