"""Float expressions as kernels compute them: the same results by operations that GPUs have many
units for. Divisions by constants become multiplications, and numbers that were clipped to a narrow
range are rounded by additions.

A compiler's code for a division of floats that has to round correctly calls a function for some
operands. Kernels that keep sums in registers would save the sums round each call. GPUs have
fewer units for the instruction that rounds to an integer than for additions.
"""

from __future__ import annotations

import numpy as np

from gossamer.expression import Expression, ExpressionStep

_MOST_DIVISOR = 2.0**100
"""The largest magnitude of divisors that are replaced. Divisors between its inverse and itself have
reciprocals that are as precise as other floats."""
_MOST_ROUNDED = 2.0**22
"""The largest magnitude of numbers that are rounded by additions."""
_INTEGERS = 1.5 * 2.0**23
"""The float whose sums with numbers up to _MOST_ROUNDED lie where floats are the integers."""


class _Steps:
    """The steps of an expression that is written anew."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.steps: list[ExpressionStep] = []

    def add(self, function: str, *arguments: int, constants: tuple[float, ...] = ()) -> int:
        """Adds a step, and returns the number of its value."""
        self.steps.append(ExpressionStep(function, arguments, constants))
        return self.inputs + len(self.steps) - 1

    def constant(self, number: float) -> int:
        return self.add("constant", constants=(number,))


def in_kernels(expression: Expression) -> Expression:
    """Returns a float expression with the same results, but for the sign of zeros and for quotients
    below 2^-100, which may differ by the last bit."""
    written = _Steps(expression.inputs)
    values = list(range(expression.inputs))
    for step in expression.steps:
        arguments = [values[argument] for argument in step.arguments]
        if step.function == "div" and (divisor := _divisor(expression, step)) is not None:
            values.append(_quotient(written, arguments[0], divisor))
        elif step.function == "round" and _is_narrow(expression, step.arguments[0]):
            integers = written.constant(_INTEGERS)
            values.append(written.add("sub", written.add("add", arguments[0], integers), integers))
        else:
            values.append(written.add(step.function, *arguments, constants=step.constants))
    return Expression(expression.inputs, tuple(written.steps),
                      tuple(values[output] for output in expression.outputs))


def _quotient(written: _Steps, dividend: int, divisor: float) -> int:
    """Adds a quotient that is rounded correctly: an estimate by the reciprocal is corrected twice
    by its remainder, which a fused multiply-add computes exactly (P. Markstein, Computation of
    elementary functions on the IBM RISC System/6000 processor, 1990)."""
    reciprocal = written.constant(float(np.float32(1) / np.float32(divisor)))
    quotient = estimate = written.add("mul", dividend, reciprocal)
    if abs(np.frexp(divisor)[0]) == 0.5:
        # the reciprocal of a power of two is exact
        return estimate
    opposite = written.constant(-divisor)
    for _ in range(2):
        remainder = written.add("fma", quotient, opposite, dividend)
        quotient = written.add("fma", remainder, reciprocal, quotient)
    # the remainder of an infinite estimate is not a number
    is_finite = written.add("less", written.add("abs", estimate), written.constant(float("inf")))
    return written.add("where", is_finite, quotient, estimate)


def _step_of(expression: Expression, value: int) -> ExpressionStep | None:
    """Returns the step that computes a value; None for an input."""
    return None if value < expression.inputs else expression.steps[value - expression.inputs]


def _divisor(expression: Expression, division: ExpressionStep) -> float | None:
    """Returns the constant by which a step divides; None where a value divides, or a constant that
    has no useful reciprocal."""
    step = _step_of(expression, division.arguments[1])
    if step is None or step.function != "constant":
        return None
    divisor = float(np.float32(step.constants[0]))
    return divisor if 1 / _MOST_DIVISOR <= abs(divisor) <= _MOST_DIVISOR else None


def _is_narrow(expression: Expression, value: int) -> bool:
    """Returns whether a value was clipped to numbers that additions round."""
    step = _step_of(expression, value)
    return (step is not None and step.function == "clip"
            and all(abs(bound) <= _MOST_ROUNDED for bound in step.constants))
