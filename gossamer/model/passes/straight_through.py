"""Takes the straight-through estimators of training out of expressions.

Frameworks write the sign q of x, whose gradient shall be that of x, as (q - x) + x, and exporters
keep these sums. They are q but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.expression import Expression
from gossamer.facts import REAL, ValueFacts
from gossamer.model.compose import Composer
from gossamer.model.graph import Graph
from gossamer.model.infer.shapes_by_batch import ShapesByBatch
from gossamer.model.opset.expression_facts import expression_facts


def drop_straight_through(graph: Graph, shapes: ShapesByBatch) -> None:
    """Replaces (q - x) + x, x + (q - x), x - (x - q), (q + x) - x and q + (x - x) in expressions by
    q, where few values of q are possible and x is not the same number for all values."""
    for node in graph.nodes:
        if node.op != "elementwise" or shapes.dtype(node.outputs[0]) != "float32":
            continue
        expression = node.attributes["expression"]
        if not any(step.function == "sub" for step in expression.steps):
            continue
        composer = Composer()
        outputs = _simplified(expression, composer, [composer.operand(n) for n in node.inputs])
        operands, simplified = composer.build(*outputs)
        if len(simplified.steps) < len(expression.steps) and shapes.broadcast_to(
                node.outputs[0], operands, graph.constants):
            node.inputs, node.attributes["expression"] = operands, simplified


def _simplified(expression: Expression, composer: Composer,
                operands: Sequence[int]) -> list[int]:
    """Adds an expression without its straight-through estimators to a composer, and returns the
    values of its outputs there."""
    every = Expression(expression.inputs, expression.steps,
                       tuple(range(expression.inputs + len(expression.steps))))
    facts = expression_facts(every, [REAL] * expression.inputs)
    values = list(operands)
    for index, step in enumerate(expression.steps, start=expression.inputs):
        quantised = _estimated(expression, index, facts)
        values.append(composer.apply(step.function, *[values[a] for a in step.arguments],
                                     constants=step.constants)
                      if quantised is None else values[quantised])
    return [values[output] for output in expression.outputs]


def _estimated(expression: Expression, index: int, facts: Sequence[ValueFacts]) -> int | None:
    """Returns the index of the value q where the value `index` is a straight-through estimator of
    it; None where it is none."""
    function, arguments = _step(expression, index)
    for one, other in (arguments, arguments[::-1]) if function in ("add", "sub") else ():
        inner, parts = _step(expression, other)
        # what remains of the inner sum or difference once `one` is taken away again, and that
        quantised, smooth = -1, one
        if function == "add" and inner == "sub":
            quantised = parts[0] if parts[1] == one else -1
            if parts[0] == parts[1]:
                quantised, smooth = one, parts[0]
        elif function == "sub" and inner == "sub" and (one, other) == arguments:
            quantised = parts[1] if parts[0] == one else -1
        elif function == "sub" and inner == "add" and (other, one) == arguments and one in parts:
            quantised = parts[1] if parts[0] == one else parts[0]
        # a number that is added and taken away again rounds to its multiples
        if quantised >= 0 and facts[quantised].few_values and facts[smooth].count != 1:
            return quantised
    return None


def _step(expression: Expression, index: int) -> tuple[str, tuple[int, ...]]:
    """Returns the function and the arguments of a value; "" for an operand."""
    if index < expression.inputs:
        return "", ()
    step = expression.steps[index - expression.inputs]
    return step.function, step.arguments
