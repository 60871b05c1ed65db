"""Biases that are split off epilogues."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.fused.problem import without_bias
from tests.ops.fused.blocks import BIAS, BIAS_HARD_SWISH, BIAS_RELU, BIAS_RELU6

VALUE = np.array([-1.5, 0.25, 7.0], np.float32)
OPERAND = np.array([0.5, -2.0, 1.0], np.float32)


@pytest.mark.parametrize("epilogue", [BIAS, BIAS_RELU6, BIAS_RELU, BIAS_HARD_SWISH])
def test_a_bias_is_split_off(epilogue: Epilogue) -> None:
    bias, rest = without_bias(epilogue)
    assert bias == 0
    np.testing.assert_array_equal(epilogue.expression.evaluate(VALUE, OPERAND)[0],
                                  rest.expression.evaluate(VALUE + OPERAND, OPERAND)[0])


@pytest.mark.parametrize("epilogue", [
    Epilogue(),
    Epilogue(apply("mul").then(apply("relu")), ("channel",)),
    Epilogue(apply("add"), ("tensor",)),
    Epilogue(Expression(2, (ExpressionStep("add", (0, 1)), ExpressionStep("mul", (2, 0)))),
             ("channel",)),
    Epilogue(Expression(1, (ExpressionStep("add", (0, 0)),))),
])
def test_other_epilogues_stay_as_they_are(epilogue: Epilogue) -> None:
    assert without_bias(epilogue) == (None, epilogue)
