"""Composer: builds an Expression out of named operands, functions and other expressions."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.expression import Expression, ExpressionStep


class Composer:
    """Values are numbers: steps count up from 0, operands down from -1. Equal steps are made
    once."""

    def __init__(self) -> None:
        self.operands: list[str] = []
        self._steps: dict[ExpressionStep, int] = {}

    def operand(self, name: str) -> int:
        if name not in self.operands:
            self.operands.append(name)
        return -1 - self.operands.index(name)

    def apply(self, function: str, *arguments: int, constants: Sequence[float] = ()) -> int:
        step = ExpressionStep(function, arguments, tuple(float(c) for c in constants))
        return self._steps.setdefault(step, len(self._steps))

    def constant(self, value: float) -> int:
        return self.apply("constant", constants=(value,))

    def inline(self, expression: Expression, arguments: Sequence[int]) -> list[int]:
        """The values of the expression's outputs when it is given these values."""
        known = list(arguments)
        for step in expression.steps:
            known.append(self.apply(step.function, *[known[a] for a in step.arguments],
                                    constants=step.constants))
        return [known[output] for output in expression.outputs]

    def build(self, *outputs: int, first: str | None = None) -> tuple[list[str], Expression]:
        """The operands that matter and the expression over them; an operand `first` is kept
        and comes first."""
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
        index = {-1 - self.operands.index(name): position
                 for position, name in enumerate(names) if name in self.operands}
        kept: list[ExpressionStep] = []
        for value, step in enumerate(steps):
            if value in needed:
                index[value] = len(names) + len(kept)
                kept.append(ExpressionStep(step.function, tuple(index[a] for a in step.arguments),
                                 step.constants))
        return names, Expression(len(names), tuple(kept), tuple(index[o] for o in outputs))
