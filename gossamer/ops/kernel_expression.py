"""Rewrite expressions for kernels.

Float expressions keep their results, but use operations that are fast on GPUs. Divisions by
constants are replaced by multiplications. The compiler's code for a correctly rounded division
calls a function for some operands, and a kernel would have to spill its accumulators before each
call. Numbers that were clipped to a narrow range are rounded by additions. The instruction that
rounds to an integer has a lower throughput than additions.

In integer expressions, divisions are replaced by divisions that never trap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from gossamer.expression import Expression, ExpressionStep

_MOST_DIVISOR = 2.0**100
"""Maximum magnitude of divisors that are replaced. The minimum magnitude is the inverse of this
number. Within this range, reciprocals are normal floats of full precision."""
_MOST_ROUNDED = 2.0**22
"""Maximum magnitude of numbers that are rounded by additions."""
_INTEGERS = 1.5 * 2.0**23
"""Adding this float to a number, and subtracting it again, rounds the number to an integer. For
magnitudes up to _MOST_ROUNDED the sum is between 2^23 and 2^24, where all floats are integers."""


class _Steps:
    """The steps of an expression under construction."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.steps: list[ExpressionStep] = []

    def add(self, function: str, *arguments: int, constants: tuple[float, ...] = ()) -> int:
        """Append a step, and return the index of its result."""
        self.steps.append(ExpressionStep(function, arguments, constants))
        return self.inputs + len(self.steps) - 1

    def constant(self, number: float) -> int:
        return self.add("constant", constants=(number,))


_Replacement = Callable[[_Steps, Expression, ExpressionStep, list[int]], int | None]
"""A function that may replace a step of an expression. The function receives the indices of the
step's arguments among the new expression's values, appends the new steps, and returns the index of
their result. It returns None if the step is to be kept."""


@functools.lru_cache(maxsize=1024)
def floats_in_kernels(expression: Expression) -> Expression:
    """Return an equivalent float expression that is faster in kernels.

    The sign of zeros, and the last bit of quotients below 2^-100, may differ.
    """
    return _rewritten(expression, _float_steps)


def integers_in_kernels(expression: Expression) -> Expression:
    """Return an integer expression without divisions that trap.

    A division by 0 returns the dividend. A division by -1, which can overflow, becomes a negation.
    """
    return _rewritten(expression, _integer_steps)


def _rewritten(expression: Expression, replacement: _Replacement) -> Expression:
    """Return an expression with some of its steps replaced."""
    written = _Steps(expression.inputs)
    values = list(range(expression.inputs))
    for step in expression.steps:
        arguments = [values[argument] for argument in step.arguments]
        value = replacement(written, expression, step, arguments)
        values.append(written.add(step.function, *arguments, constants=step.constants)
                      if value is None else value)
    return Expression(expression.inputs, tuple(written.steps),
                      tuple(values[output] for output in expression.outputs))


def _float_steps(written: _Steps, expression: Expression, step: ExpressionStep,
                 arguments: list[int]) -> int | None:
    if step.function == "div" and (divisor := _divisor(expression, step)) is not None:
        return _quotient(written, arguments[0], divisor)
    if step.function == "round" and _is_narrow(expression, step.arguments[0]):
        integers = written.constant(_INTEGERS)
        return written.add("sub", written.add("add", arguments[0], integers), integers)
    return None


def _integer_steps(written: _Steps, expression: Expression, step: ExpressionStep,
                   arguments: list[int]) -> int | None:
    if step.function != "div":
        return None
    dividend, divisor = arguments
    one, minus_one = written.constant(1.0), written.constant(-1.0)
    is_minus_one = written.add("equal", divisor, minus_one)
    safe = written.add("where", is_minus_one, one, written.add("where", divisor, divisor, one))
    quotient = written.add("div", dividend, safe)
    return written.add("where", is_minus_one, written.add("neg", dividend), quotient)


def _quotient(written: _Steps, dividend: int, divisor: float) -> int:
    """Append steps that compute a correctly rounded quotient.

    The dividend times the reciprocal is an estimate of the quotient. The estimate is corrected
    twice with its remainder, which a fused multiply-add computes exactly (P. Markstein, Computation
    of elementary functions on the IBM RISC System/6000 processor, 1990).
    """
    reciprocal = written.constant(float(np.float32(1) / np.float32(divisor)))
    quotient = estimate = written.add("mul", dividend, reciprocal)
    if abs(np.frexp(divisor)[0]) == 0.5:
        # the reciprocal of a power of two is exact
        return estimate
    opposite = written.constant(-divisor)
    for _ in range(2):
        remainder = written.add("fma", quotient, opposite, dividend)
        quotient = written.add("fma", remainder, reciprocal, quotient)
    # the remainder of an infinite estimate is NaN, so an infinite estimate is not corrected
    is_finite = written.add("less", written.add("abs", estimate), written.constant(float("inf")))
    return written.add("where", is_finite, quotient, estimate)


def _step_of(expression: Expression, value: int) -> ExpressionStep | None:
    """Return the step that computes a value; None for an input."""
    return None if value < expression.inputs else expression.steps[value - expression.inputs]


def _divisor(expression: Expression, division: ExpressionStep) -> float | None:
    """Return the constant by which a step divides.

    Returns None if the divisor is not a constant, or if it is too large or too small for a precise
    reciprocal.
    """
    step = _step_of(expression, division.arguments[1])
    if step is None or step.function != "constant":
        return None
    divisor = float(np.float32(step.constants[0]))
    return divisor if 1 / _MOST_DIVISOR <= abs(divisor) <= _MOST_DIVISOR else None


def _is_narrow(expression: Expression, value: int) -> bool:
    """Return whether a value was clipped to the range in which numbers are rounded by additions."""
    step = _step_of(expression, value)
    return (step is not None and step.function == "clip"
            and all(abs(bound) <= _MOST_ROUNDED for bound in step.constants))
