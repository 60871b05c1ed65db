"""Translates epilogues of convolutions to element-wise nodes of cuDNN's graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gossamer.expression import ExpressionStep
from gossamer.ops.algorithm import Epilogue


@dataclass(frozen=True)
class Pointwise:
    """An element-wise node of a graph.

    method: method of cuDNN's graphs that adds the node.
    arguments: numbers of its arguments: 0 is the result of the convolution, i + 1 is operand i, and
    the results of the nodes follow.
    constants: names and values of its constants.
    """

    method: str
    arguments: tuple[int, ...]
    constants: tuple[tuple[str, float], ...] = ()


def pointwise(epilogue: Epilogue) -> tuple[Pointwise, ...] | None:
    """Returns an epilogue as nodes of a cuDNN graph; the last node gives the output. Returns None
    where cuDNN has no node for a step, where the output is not the result of the last step alone,
    or where a value other than the output is never read."""
    expression = epilogue.expression
    last = expression.inputs + len(expression.steps) - 1
    used = [argument for step in expression.steps for argument in step.arguments]
    if expression.outputs != (last,) or set(used) != set(range(last)):
        return None
    channels = {index + 1 for index, kind in enumerate(epilogue.operands) if kind == "channel"}
    nodes = [_node(step, channels) for step in _tensors_first(epilogue, used)]
    return None if None in nodes else tuple(node for node in nodes if node is not None)


def _tensors_first(epilogue: Epilogue, used: list[int]) -> tuple[ExpressionStep, ...]:
    """Returns the steps, with the leading sums in another order: sums that add tensors come before
    sums that add channel operands. cuDNN's own fused kernel adds a residual, then adds the bias,
    then applies the activation."""
    expression = epilogue.expression
    current, added = 0, []
    for step in expression.steps:
        operand = next((argument for argument in step.arguments if argument != current), 0)
        if (step.function != "add" or current not in step.arguments or used.count(current) > 1
                or not 0 < operand < expression.inputs):
            break
        added.append(operand)
        current = expression.inputs + len(added) - 1
    added.sort(key=lambda operand: epilogue.operands[operand - 1] == "channel")
    sums, current = [], 0
    for index, operand in enumerate(added):
        sums.append(ExpressionStep("add", (current, operand)))
        current = expression.inputs + index
    return (*sums, *expression.steps[len(added):])


def _node(step: ExpressionStep, channels: set[int]) -> Pointwise | None:
    """Returns one step as a node, or None where cuDNN has no node for the step."""
    arguments = step.arguments
    if step.function in ("add", "mul"):
        # cuDNN broadcasts the second value to the shape of the first
        first, second = sorted(arguments, key=lambda argument: argument in channels)
        return None if first in channels else Pointwise(step.function, (first, second))
    if not arguments or arguments[0] in channels:
        return None
    if step.function in ("relu", "sigmoid", "tanh"):
        return Pointwise(step.function, arguments)
    if step.function == "leaky_relu":
        return Pointwise("leaky_relu", arguments, (("negative_slope", step.constants[0]),))
    if step.function == "clip" and step.constants[0] == 0 and step.constants[1] > 0:
        high = step.constants[1]
        return Pointwise("relu", arguments, () if math.isinf(high) else (("upper_clip", high),))
    return None
