"""Checks of results that jump at a discontinuity of sign, a comparison, floor, or a selection.

A candidate rounds in another way than the float64 reference. A value near a jump may come out on
the other side of the jump, and the candidate is still right. So an output is compared only where
rounding cannot move a value across a jump. A problem whose epilogue jumps is also computed without
the jump, and the results without the jump are compared by normalised error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gossamer.expression import DISCONTINUOUS, Expression, ExpressionStep
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import FusionProblem

MOST_DOUBTFUL = 0.05
"""The largest share of an output that rounding may move across a jump; where the share is larger,
other inputs are drawn."""

_COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal"})


def has_jumps(problem: Problem) -> bool:
    """Returns whether a small change of an input may make a result of the problem jump."""
    if isinstance(problem, FusionProblem):
        return any(map(has_jumps, problem.parts))
    expression = _expression(problem)
    if expression is None:
        return False
    if isinstance(problem, ElementwiseProblem):
        if problem.arithmetic != "float32":
            return False
        if any(dtype != "float32" for dtype in problem.dtypes):
            return True
    return any(step.function in (*DISCONTINUOUS, "where") for step in expression.steps)


def _expression(problem: Problem) -> Expression | None:
    if isinstance(problem, ElementwiseProblem):
        return problem.expression
    epilogue: Epilogue | None = getattr(problem, "epilogue", None)
    return None if epilogue is None else epilogue.expression


def continuous_parts(problem: Problem) -> list[Problem]:
    """Returns the problems whose results decide the jumps of a problem's epilogue: the difference
    of the two numbers that are compared, the condition of a `where`, or the argument of another
    function that jumps, such as sign. Returns an empty list for element-wise problems, which
    compute no sums, and for fusions, whose algorithms compute only the problems that they were made
    for."""
    if isinstance(problem, ElementwiseProblem | FusionProblem):
        return []
    epilogue: Epilogue = problem.epilogue  # type: ignore[attr-defined]
    expression = epilogue.expression
    jumped: set[int] = set()
    parts: dict[Expression, None] = {}
    for index, step in enumerate(expression.steps):
        value = expression.inputs + index
        if jumped & set(step.arguments):
            jumped.add(value)
        elif step.function in _COMPARISONS:
            jumped.add(value)
            parts[_part(expression, [*expression.steps[:index],
                                     ExpressionStep("sub", step.arguments)])] = None
        elif step.function in DISCONTINUOUS or step.function == "where":
            jumped.add(value)
            decisive = step.arguments[:1] if step.function == "where" else step.arguments
            for argument in decisive:
                parts[_part(expression, expression.steps[:index], argument)] = None
    return [replace(problem, epilogue=replace(epilogue, expression=part))  # type: ignore[type-var]
            for part in parts if _reads_result(part)]


def _part(expression: Expression, steps: Sequence[ExpressionStep],
          output: int | None = None) -> Expression:
    """Returns an expression with one output and only the steps that this output needs. output: the
    index of the output among the values; by default the last value."""
    inputs = expression.inputs
    output = inputs + len(steps) - 1 if output is None else output
    needed = {output}
    for index in reversed(range(len(steps))):
        if inputs + index in needed:
            needed.update(steps[index].arguments)
    moved = {index: index for index in range(inputs)}
    needed_steps: list[ExpressionStep] = []
    for index, step in enumerate(steps):
        if inputs + index in needed:
            moved[inputs + index] = inputs + len(needed_steps)
            needed_steps.append(replace(step, arguments=tuple(moved[a] for a in step.arguments)))
    return Expression(inputs, tuple(needed_steps), (moved[output],))


def _reads_result(expression: Expression) -> bool:
    return expression.outputs == (0,) or any(0 in step.arguments for step in expression.steps)
