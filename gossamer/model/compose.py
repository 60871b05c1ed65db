"""Composer: builds an Expression out of named operands, functions and other expressions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gossamer.expression import Expression, ExpressionStep


class Composer:
    """Builds an expression step by step.

    Each value has a number: steps count up from 0, operands down from -1. A step that equals an
    earlier step gets the number of the earlier step.
    """

    def __init__(self) -> None:
        self.operands: list[str] = []
        self._values: dict[str, int] = {}
        self._steps: dict[ExpressionStep, int] = {}

    def operand(self, name: str) -> int:
        """Returns the number of an operand, which is added if it is new."""
        if name not in self._values:
            self.operands.append(name)
            self._values[name] = -len(self.operands)
        return self._values[name]

    def apply(self, function: str, *arguments: int, constants: Sequence[float] = ()) -> int:
        """Returns the number of the step that applies a function to other values."""
        step = ExpressionStep(function, arguments, tuple(float(c) for c in constants))
        return self._steps.setdefault(step, len(self._steps))

    def constant(self, value: float) -> int:
        return self.apply("constant", constants=(value,))

    def operand_or_constant(self, name: str, array: np.ndarray | None) -> int:
        """Returns the number of an operand; where the operand is a constant of one element, the
        number of a constant step. array: the operand's array where it is a constant, else None."""
        if array is None or array.size != 1:
            return self.operand(name)
        return self.constant(array.item())

    def inline(self, expression: Expression, arguments: Sequence[int]) -> list[int]:
        """Adds the steps of another expression, and returns the numbers of its outputs.
        arguments: numbers of the values that become the other expression's inputs."""
        values = list(arguments)
        for step in expression.steps:
            values.append(self.apply(step.function, *[values[a] for a in step.arguments],
                                     constants=step.constants))
        return [values[output] for output in expression.outputs]

    def build(self, *outputs: int, first: str | None = None) -> tuple[list[str], Expression]:
        """Returns the operands that the outputs depend on, and the expression of these operands.
        An operand `first` comes first, and stays even where no output depends on it."""
        steps = list(self._steps)
        needed: set[int] = set()
        pending = list(outputs)
        while pending:
            value = pending.pop()
            if value not in needed:
                needed.add(value)
                pending.extend(steps[value].arguments if value >= 0 else ())
        names = [] if first is None else [first]
        names += [name for index, name in enumerate(self.operands)
                  if -1 - index in needed and name != first]
        index = {self._values[name]: position
                 for position, name in enumerate(names) if name in self._values}
        needed_steps: list[ExpressionStep] = []
        for value, step in enumerate(steps):
            if value in needed:
                index[value] = len(names) + len(needed_steps)
                needed_steps.append(ExpressionStep(
                    step.function, tuple(index[a] for a in step.arguments), step.constants))
        return names, Expression(len(names), tuple(needed_steps),
                                 tuple(index[o] for o in outputs))
