"""Derives the value facts of an expression's results from the facts of its operands."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gossamer.expression import FUNCTIONS, Expression, ExpressionStep
from gossamer.facts import NONNEGATIVE, REAL, ValueFacts, integers, point

_TRUTH = integers(0, 1)
_ZERO, _ONE, _MINUS_ONE = point(0.0), point(1.0), point(-1.0)
_COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal"})
_TRUTHS = _COMPARISONS | {"and", "or", "not"}
_KEEPING = frozenset({
    "where", "constant", "neg", "abs", "relu", "clip", "min", "max", "sign", "floor", "round",
    "to_float16", "to_bfloat16", "exp", "sigmoid", "tanh", "atan", "erf"})
"""Functions whose result is NaN only if an argument is NaN."""
_OF_FINITE = frozenset({"add", "sub", "mul", "fma", "leaky_relu", "prelu", "hard_sigmoid", "sin",
                        "cos", "tan"})
"""Functions whose result is NaN only if an argument is NaN or infinite."""
_MOST_LIMITS, _MOST_COMPARED = 8, 4
"""Limits on the time to derive facts. Cases are distinguished for at most _MOST_COMPARED values of
an expression, and only for values that are compared with at most _MOST_LIMITS numbers."""


def expression_facts(expression: Expression, operands: Sequence[ValueFacts], *,
                     integer: bool = False) -> list[ValueFacts]:
    """Return the facts of an expression's outputs.

    integer: whether the arithmetic is on integers, so that results wrap around and quotients are
    truncated. In this case, only values that float32 represents exactly have facts.
    """
    values = _values(expression, operands, integer=integer)
    results = [values[index] for index in expression.outputs]
    if all(result.count is not None and result.count < 3 for result in results):
        return results
    for index, limits in _compared(expression, values):
        cases = [_values(expression, operands, integer=integer, given=(index, case))
                 for case in values[index].parted(limits)]
        joined = [functools.reduce(ValueFacts.join, [case[output] for case in cases])
                  for output in expression.outputs]
        results = [_narrower(one, other) for one, other in zip(results, joined, strict=True)]
    return results


def may_be_nan(expression: Expression, operands: Sequence[ValueFacts],
               nan: Sequence[bool]) -> list[bool]:
    """Return whether each output of an expression of floats may be NaN.

    nan: whether each operand may be NaN.
    """
    known = list(nan)
    values = _values(expression, operands, integer=False)
    for step in expression.steps:
        given = step.arguments[1:] if step.function == "where" else step.arguments
        known.append(step.function not in _TRUTHS and (
            any(known[value] for value in given) or any(np.isnan(step.constants))
            or (step.function not in _KEEPING and not (
                step.function in _OF_FINITE
                and all(math.isfinite(values[value].largest) for value in given)))))
    return [known[output] for output in expression.outputs]


def _values(expression: Expression, operands: Sequence[ValueFacts], *, integer: bool,
            given: tuple[int, ValueFacts] | None = None) -> list[ValueFacts]:
    """Return the facts of the operands and of each step's result.

    given: the index of a value, and the facts assumed of it.
    """
    values: list[ValueFacts] = []
    for index in range(expression.inputs + len(expression.steps)):
        if given is not None and index == given[0]:
            values.append(given[1])
        elif index < expression.inputs:
            values.append(operands[index])
        else:
            step = expression.steps[index - expression.inputs]
            facts = _step(step, [values[argument] for argument in step.arguments])
            rounds = any(not point(c).is_integer or point(c).low != c for c in step.constants)
            values.append(REAL if integer and (rounds or facts.count is None) else facts)
    return values


def _compared(expression: Expression,
              values: Sequence[ValueFacts]) -> list[tuple[int, list[float]]]:
    """Return the values that are compared with numbers, and these numbers.

    Each entry has the index of a value and a list of numbers. Taking the sign of a value counts as
    a comparison with 0. The facts of results are narrower under the assumption that a value is
    below, at or above one of its numbers. The last step is skipped if its result is the only
    output: a case distinction on its operand would narrow only this result, and joining the cases
    would widen it again.
    """
    limits: dict[int, set[float]] = {}
    last = expression.inputs + len(expression.steps) - 1
    for step in expression.steps[:-1] if expression.outputs == (last,) else expression.steps:
        if step.function == "sign":
            limits.setdefault(step.arguments[0], set()).add(0.0)
        elif step.function in _COMPARISONS:
            for one, other in (step.arguments, step.arguments[::-1]):
                if values[other].count == 1:
                    limits.setdefault(one, set()).add(values[other].low)
    compared = [(index, sorted(numbers)) for index, numbers in limits.items()
                if values[index].count != 1 and len(numbers) <= _MOST_LIMITS]
    return compared[:_MOST_COMPARED]


def _narrower(one: ValueFacts, other: ValueFacts) -> ValueFacts:
    """Return the facts that allow fewer values; `one` if both allow infinitely many."""
    is_narrower = other.count is not None and (one.count is None or other.count < one.count)
    return other if is_narrower else one


def _step(step: ExpressionStep, arguments: Sequence[ValueFacts]) -> ValueFacts:
    if any(np.isnan(step.constants)):
        return REAL
    return _FUNCTIONS[step.function](*arguments, *step.constants)


def _div(x: ValueFacts, y: ValueFacts) -> ValueFacts:
    """Return the facts of a quotient.

    Devices may round quotients differently, and a divisor of 0 may be -0.0.
    """
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


def _is_less(x: ValueFacts, y: ValueFacts) -> ValueFacts:
    if x.high < y.low:
        return _ONE
    return _ZERO if x.low >= y.high else _TRUTH


def _is_equal(x: ValueFacts, y: ValueFacts) -> ValueFacts:
    if x.low > y.high or x.high < y.low:
        return _ZERO
    return _ONE if x.count == y.count == 1 else _TRUTH


def _is_true(x: ValueFacts) -> ValueFacts:
    """Return the facts of a number's truth value: 0 if the number is 0, else 1."""
    return _opposite(_is_equal(x, _ZERO))


def _opposite(x: ValueFacts) -> ValueFacts:
    return _is_equal(x, _ZERO)


def _where(condition: ValueFacts, x: ValueFacts, y: ValueFacts) -> ValueFacts:
    truth = _is_true(condition)
    if truth == _TRUTH:
        return x.join(y)
    return x if truth == _ONE else y


def _to_float(x: ValueFacts, most: int) -> ValueFacts:
    """Return the facts of numbers that are rounded to a float format.

    most: the format represents all integers up to this one.
    """
    return x if x.is_integer and -most <= x.low <= x.high <= most else x.same_sign()


_FUNCTIONS: dict[str, Callable[..., ValueFacts]] = {
    "add": ValueFacts.add, "sub": ValueFacts.sub, "mul": ValueFacts.mul, "div": _div, "pow": _pow,
    "min": ValueFacts.minimum, "max": ValueFacts.maximum,
    "less": _is_less, "less_equal": lambda x, y: _opposite(_is_less(y, x)),
    "greater": lambda x, y: _is_less(y, x), "greater_equal": lambda x, y: _opposite(_is_less(x, y)),
    "equal": _is_equal, "not": _opposite, "where": _where,
    "and": lambda x, y: _is_true(x).minimum(_is_true(y)),
    "or": lambda x, y: _is_true(x).maximum(_is_true(y)),
    "neg": ValueFacts.neg, "abs": ValueFacts.abs, "relu": ValueFacts.relu,
    "clip": ValueFacts.clip, "sign": ValueFacts.sign, "floor": ValueFacts.floor,
    "round": ValueFacts.round, "constant": point,
    "to_float16": partial(_to_float, most=2**11), "to_bfloat16": partial(_to_float, most=2**8),
    "leaky_relu": lambda x, slope: _leaky(x, point(slope)), "prelu": _leaky,
    "hard_sigmoid": lambda x, alpha, beta: x.mul(point(alpha)).add(point(beta)).clip(0.0, 1.0),
    # devices round the results of the functions below differently
    **dict.fromkeys(("exp", "sigmoid", "sqrt"), lambda x: NONNEGATIVE),
    **dict.fromkeys(("log", "sin", "cos", "tan", "fmod"), lambda *arguments: REAL),
    "fma": lambda x, y, z: x.mul(y).add(z),
    "atan": ValueFacts.same_sign, "tanh": ValueFacts.same_sign, "erf": ValueFacts.same_sign,
}
if FUNCTIONS.keys() != _FUNCTIONS.keys():
    raise TypeError("functions of expressions without value facts, or with facts only: "
                    f"{', '.join(sorted(FUNCTIONS.keys() ^ _FUNCTIONS.keys()))}")
