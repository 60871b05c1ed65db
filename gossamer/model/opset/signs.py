"""Recognises expressions that take the sign of a number that is never 0.

For example, a sum of an odd number of terms that are 1 or -1 is odd, so it is not 0. A sum of
integers never equals a threshold between two integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gossamer.expression import FUNCTIONS, Expression
from gossamer.facts import PLUS_MINUS_ONE, TERNARY, ValueFacts

_MOST_PRODUCTS = 2**16
"""Maximum number of products in a sum for which all possible values of the sum are enumerated."""
_AT_ONCE = 2**16
"""Number of sums that are tested at once: few enough to stay in the CPU's cache."""
_ROUNDING, _ROUNDING_OF_SUMS, _SMALLEST = 2.0**-20, 2.0**-23, 2.0**-126
"""Three bounds, in this order: the relative rounding error of one float32 function, with a margin
for devices that approximate functions; the relative rounding error of one addition; the magnitude
below which devices may flush numbers to 0."""

_Interval = tuple[np.ndarray, np.ndarray]
"""The lowest and the highest value of numbers with rounding errors."""


def is_never_zero(expression: Expression, values: ValueFacts, weight: np.ndarray,
                  operands: Sequence[np.ndarray | None], *, exact: bool) -> bool:
    """Return whether an expression ends in the sign of a number that is never 0.

    The expression is applied to sums of products; the number before the sign must differ from 0 for
    all possible sums. Returns False if this cannot be proved. A proof is attempted only if `values`
    are -1 and 1, or -1, 0 and 1, and if the weights of each channel have one magnitude.

    values: facts of the values that are multiplied by the weights.
    weight: the weights (M, ...).
    operands: for each further input of the expression, an array with one value per channel; None
    for an input that is known at run time only.
    exact: whether the sums have no rounding error, whatever the order of addition.
    """
    rows = np.abs(weight.reshape(len(weight), -1).astype(np.float64))
    depth = rows.shape[1]
    if values not in (PLUS_MINUS_ONE, TERNARY) or not 0 < depth <= _MOST_PRODUCTS:
        return False
    if not _ends_in_sign(expression) or any(operand is None for operand in operands):
        return False
    if not (rows == rows[:, :1]).all() or not np.isfinite(rows[:, 0]).all():
        return False
    counts = np.arange(-depth, depth + 1, int(values.step), dtype=np.float64)[:, None]
    error = 0.0 if exact else depth * depth * _ROUNDING_OF_SUMS
    step = max(1, _AT_ONCE // len(counts))
    for first in range(0, len(rows), step):
        alphas = rows[first:first + step, 0]
        constants = [np.asarray(operand, np.float64).reshape(-1)[first:first + step]
                     for operand in operands if operand is not None]
        decisive = _before_sign(expression, (alphas * (counts - error), alphas * (counts + error)),
                                [(constant, constant) for constant in constants])
        if decisive is None or not ((decisive[0] > 0) | (decisive[1] < 0)).all():
            return False
    return True


def _ends_in_sign(expression: Expression) -> bool:
    last = expression.inputs + len(expression.steps) - 1
    return bool(expression.steps) and expression.steps[-1].function == "sign" and (
        expression.outputs == (last,))


def _before_sign(expression: Expression, sums: _Interval,
                 operands: Sequence[_Interval]) -> _Interval | None:
    """Return the interval of the number before the sign in the last step.

    Returns None if the function of an earlier step is not in _FUNCTIONS.
    """
    known = [sums, *operands]
    with np.errstate(all="ignore"):
        for step in expression.steps[:-1]:
            function = _FUNCTIONS.get(step.function)
            if function is None:
                return None
            arguments = [known[index] for index in step.arguments]
            known.append(_rounded(function(*arguments, *step.constants)))
    return known[expression.steps[-1].arguments[0]]


def _rounded(exact: _Interval) -> _Interval:
    low, high = exact
    return (low - np.abs(low) * _ROUNDING - _SMALLEST, high + np.abs(high) * _ROUNDING + _SMALLEST)


def _mul(x: _Interval, y: _Interval) -> _Interval:
    corners = [a * b for a in x for b in y]
    return np.minimum.reduce(corners), np.maximum.reduce(corners)


def _div(x: _Interval, y: _Interval) -> _Interval:
    """Return the interval of a quotient.

    If the divisor's interval includes 0, the quotient may be any number; its infinite bounds may
    become NaN in later steps.
    """
    corners = [a / b for a in x for b in y]
    around_zero = (y[0] <= 0) & (y[1] >= 0)
    return (np.where(around_zero, -np.inf, np.minimum.reduce(corners)),
            np.where(around_zero, np.inf, np.maximum.reduce(corners)))


def _prelu(x: _Interval, slope: _Interval) -> _Interval:
    below = _mul((np.minimum(x[0], 0), np.minimum(x[1], 0)), slope)
    return np.maximum(x[0], 0) + below[0], np.maximum(x[1], 0) + below[1]


def _point(value: float) -> _Interval:
    return np.asarray(value, np.float64), np.asarray(value, np.float64)


def _nondecreasing(function: str, x: _Interval, *constants: float) -> _Interval:
    """Return the interval of the results of a monotonically nondecreasing function."""
    low, high = (FUNCTIONS[function].numpy(bound, *constants) for bound in x)
    return low, high


_FUNCTIONS: dict[str, Callable[..., _Interval]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _mul, "div": _div, "neg": lambda x: (-x[1], -x[0]), "constant": _point,
    "min": lambda x, y: (np.minimum(x[0], y[0]), np.minimum(x[1], y[1])),
    "max": lambda x, y: (np.maximum(x[0], y[0]), np.maximum(x[1], y[1])),
    "prelu": _prelu, "leaky_relu": lambda x, slope: _prelu(x, _point(slope)),
    **{name: partial(_nondecreasing, name) for name in ("relu", "clip", "sign")}}
"""For each function, the rule that computes the interval of its results from the intervals of its
arguments and from its constants."""
