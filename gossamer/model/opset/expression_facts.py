"""Derives what is known of the results of an expression from what is known of its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gossamer.expression import FUNCTIONS, Expression, ExpressionStep
from gossamer.facts import NONNEGATIVE, REAL, ValueFacts, integers, point

_TRUTH = integers(0, 1)
_ONE, _MINUS_ONE = point(1.0), point(-1.0)


def expression_facts(expression: Expression, operands: Sequence[ValueFacts], *,
                     integer: bool = False) -> list[ValueFacts]:
    """Returns the facts of an expression's outputs.

    integer: whether the arithmetic is that of integers, which wraps round and truncates: only what
    stays exact in float32 is known then.
    """
    values = list(operands)
    for step in expression.steps:
        facts = _step(step, [values[index] for index in step.arguments])
        rounds = any(not point(c).is_integer or point(c).low != c for c in step.constants)
        values.append(REAL if integer and (rounds or facts.count is None) else facts)
    return [values[index] for index in expression.outputs]


def _step(step: ExpressionStep, arguments: Sequence[ValueFacts]) -> ValueFacts:
    if any(np.isnan(step.constants)):
        return REAL
    return _FUNCTIONS[step.function](*arguments, *step.constants)


def _div(x: ValueFacts, y: ValueFacts) -> ValueFacts:
    """Devices may round quotients in several ways, and a divisor of 0 may be -0.0."""
    if y == _ONE:
        return x
    if y == _MINUS_ONE:
        return x.neg()
    if y.low > 0:
        return x.same_sign()
    return x.neg().same_sign() if y.high < 0 else REAL


def _pow(x: ValueFacts, y: ValueFacts) -> ValueFacts:
    positive = x.low > 0 or (x.low == 0 and y.low > 0)
    return NONNEGATIVE if positive else REAL


def _leaky(x: ValueFacts, slope: ValueFacts) -> ValueFacts:
    if x.low >= 0:
        return x
    return x.relu().join(x.minimum(point(0.0)).mul(slope))


def _positive(x: ValueFacts) -> ValueFacts:
    return NONNEGATIVE


def _nothing(*arguments: ValueFacts) -> ValueFacts:
    return REAL


def _truth(*arguments: ValueFacts) -> ValueFacts:
    return _TRUTH


def _hard_sigmoid(x: ValueFacts, alpha: float, beta: float) -> ValueFacts:
    return x.mul(point(alpha)).add(point(beta)).clip(0.0, 1.0)


_FUNCTIONS: dict[str, Callable[..., ValueFacts]] = {
    "add": ValueFacts.add, "sub": ValueFacts.sub, "mul": ValueFacts.mul, "div": _div, "pow": _pow,
    "min": ValueFacts.minimum, "max": ValueFacts.maximum,
    "less": _truth, "less_equal": _truth, "greater": _truth, "greater_equal": _truth,
    "equal": _truth, "and": _truth, "or": _truth, "not": _truth,
    "where": lambda condition, x, y: x.join(y),
    "neg": ValueFacts.neg, "abs": ValueFacts.abs, "relu": ValueFacts.relu,
    "clip": ValueFacts.clip, "sign": ValueFacts.sign, "floor": ValueFacts.floor,
    "round": ValueFacts.round, "constant": point,
    "leaky_relu": lambda x, slope: _leaky(x, point(slope)), "prelu": _leaky,
    "hard_sigmoid": _hard_sigmoid,
    # devices round these in several ways
    "exp": _positive, "sigmoid": _positive, "sqrt": _positive, "log": _nothing,
    "tanh": ValueFacts.same_sign, "erf": ValueFacts.same_sign,
}
if FUNCTIONS.keys() != _FUNCTIONS.keys():
    raise TypeError("functions of expressions without value facts, or with facts only: "
                    f"{', '.join(sorted(FUNCTIONS.keys() ^ _FUNCTIONS.keys()))}")
