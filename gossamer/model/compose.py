"""Composer: builds an Expression from named operands, functions and other expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.expression import Expression, ExpressionStep


@dataclass(frozen=True)
class Value:
    """A value of a Composer: an operand, or the result of a step.

    Arithmetic on a value adds a step to the composer. The other argument may be a value, a number,
    or the name of an operand.

    number: index of a step (0, 1, ...) or of an operand (-1, -2, ...).
    """

    composer: Composer
    number: int

    def apply(self, function: str, *others: Value | float | str,
              constants: Sequence[float] = ()) -> Value:
        """Return the result of a function of this value and others."""
        return self.composer.apply(function, self, *others, constants=constants)

    def __add__(self, other: Value | float | str) -> Value:
        return self.apply("add", other)

    def __sub__(self, other: Value | float | str) -> Value:
        return self.apply("sub", other)

    def __mul__(self, other: Value | float | str) -> Value:
        return self.apply("mul", other)

    def __truediv__(self, other: Value | float | str) -> Value:
        return self.apply("div", other)

    def __rsub__(self, other: float) -> Value:
        return self.composer.apply("sub", other, self)

    def __rtruediv__(self, other: float) -> Value:
        return self.composer.apply("div", other, self)

    def __neg__(self) -> Value:
        return self.apply("neg")


class Composer:
    """Builds an expression step by step. Equal steps are stored once."""

    def __init__(self) -> None:
        self.operands: list[str] = []
        self._numbers: dict[str, int] = {}
        self._steps: dict[ExpressionStep, int] = {}

    def operand(self, name: str) -> Value:
        """Return the operand called `name`; add it if the name is new."""
        if name not in self._numbers:
            self.operands.append(name)
            self._numbers[name] = -len(self.operands)
        return Value(self, self._numbers[name])

    def value(self, argument: Value | float | str) -> Value:
        """Convert an argument to a value: a number becomes a constant, a name an operand."""
        if isinstance(argument, Value):
            return argument
        return self.operand(argument) if isinstance(argument, str) else self.constant(argument)

    def apply(self, function: str, *arguments: Value | float | str,
              constants: Sequence[float] = ()) -> Value:
        """Return the result of a function."""
        numbers = tuple([self.value(argument).number for argument in arguments])
        step = ExpressionStep(function, numbers, tuple(map(float, constants)))
        return Value(self, self._steps.setdefault(step, len(self._steps)))

    def constant(self, value: float) -> Value:
        return self.apply("constant", constants=(value,))

    def operand_or_constant(self, name: str, array: np.ndarray | None) -> Value:
        """Return the named operand; if it is a constant of one element, return this constant.

        array: the operand's array if it is a constant, else None.
        """
        if array is None or array.size != 1:
            return self.operand(name)
        return self.constant(array.item())

    def inline(self, expression: Expression, arguments: Sequence[Value]) -> list[Value]:
        """Add the steps of another expression, and return its outputs.

        arguments: the values that become the other expression's inputs.
        """
        values = list(arguments)
        for step in expression.steps:
            values.append(self.apply(step.function, *[values[a] for a in step.arguments],
                                     constants=step.constants))
        return [values[output] for output in expression.outputs]

    def build(self, *outputs: Value, first: str | None = None) -> tuple[list[str], Expression]:
        """Return the operands that the outputs depend on, and the expression of these operands.

        first: the operand to put first; this operand is kept even if no output depends on it.
        """
        steps = list(self._steps)
        needed: set[int] = set()
        pending = [output.number for output in outputs]
        while pending:
            value = pending.pop()
            if value not in needed:
                needed.add(value)
                pending.extend(steps[value].arguments if value >= 0 else ())
        names = [] if first is None else [first]
        names += [name for index, name in enumerate(self.operands)
                  if -1 - index in needed and name != first]
        index = {self._numbers[name]: position
                 for position, name in enumerate(names) if name in self._numbers}
        needed_steps: list[ExpressionStep] = []
        for value, step in enumerate(steps):
            if value in needed:
                index[value] = len(names) + len(needed_steps)
                needed_steps.append(ExpressionStep(
                    step.function, tuple(index[a] for a in step.arguments), step.constants))
        return names, Expression(len(names), tuple(needed_steps),
                                 tuple(index[output.number] for output in outputs))
