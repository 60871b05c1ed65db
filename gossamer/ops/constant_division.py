"""Divisions by constants, which kernels compute by multiplications.

A compiler's code for a division of floats that has to round correctly calls a function for some
operands. Kernels that keep sums in registers would save the sums round each call.
"""

from __future__ import annotations

import numpy as np

from gossamer.expression import Expression, ExpressionStep

_MOST = 2.0**100
"""The largest magnitude of divisors that are replaced. Divisors between its inverse and itself have
reciprocals that are as precise as other floats."""


def multiplied(expression: Expression) -> Expression:
    """Returns a float expression with multiplications in place of the divisions by constants.

    The quotients are rounded correctly: an estimate by the reciprocal is corrected twice by its
    remainder, which a fused multiply-add computes exactly (P. Markstein, Computation of elementary
    functions on the IBM RISC System/6000 processor, 1990). Only quotients below 2^-100 may differ
    by the last bit.
    """
    steps: list[ExpressionStep] = []
    values = list(range(expression.inputs))

    def add(function: str, *arguments: int, constants: tuple[float, ...] = ()) -> int:
        steps.append(ExpressionStep(function, arguments, constants))
        return expression.inputs + len(steps) - 1

    for step in expression.steps:
        arguments = [values[argument] for argument in step.arguments]
        divisor = _constant(expression, step.arguments[1]) if step.function == "div" else None
        if divisor is None or not 1 / _MOST <= abs(divisor) <= _MOST:
            values.append(add(step.function, *arguments, constants=step.constants))
            continue
        reciprocal = add("constant", constants=(float(np.float32(1) / np.float32(divisor)),))
        quotient = estimate = add("mul", arguments[0], reciprocal)
        if abs(np.frexp(divisor)[0]) != 0.5:
            opposite = add("constant", constants=(-divisor,))
            for _ in range(2):
                remainder = add("fma", quotient, opposite, arguments[0])
                quotient = add("fma", remainder, reciprocal, quotient)
            # the remainder of an infinite estimate is not a number
            infinity = add("constant", constants=(float("inf"),))
            is_finite = add("less", add("abs", estimate), infinity)
            quotient = add("where", is_finite, quotient, estimate)
        values.append(quotient)
    return Expression(expression.inputs, tuple(steps),
                      tuple(values[output] for output in expression.outputs))


def _constant(expression: Expression, value: int) -> float | None:
    """Returns the number of a value that is a constant; None for other values."""
    if value < expression.inputs:
        return None
    step = expression.steps[value - expression.inputs]
    return float(np.float32(step.constants[0])) if step.function == "constant" else None
