"""Simplifies element-wise nodes: drops expansions of operands, and straight-through estimators.

A file may expand an operand, such as a bias, to the shape of the result. The expansion is not
needed, because the element-wise node broadcasts its operands; without the expansion, the node can
be fused into the epilogue of the layer before it. In training, frameworks write the quantised value
q of x, such as the sign of x, as (q - x) + x, so that gradients pass through to x unchanged (a
straight-through estimator). Exporters keep such sums, which equal q except for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gossamer.expression import Composer, Expression
from gossamer.facts import REAL
from gossamer.model.graph import Graph, Node, add_constant, names_of
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.opset.elementwise import expression_facts


def drop_expansions(graph: Graph, shapes: ShapesByBatch) -> None:
    """Let element-wise nodes read values instead of their expansions.

    The results of the nodes must keep their shapes. Expansions stay for other readers.
    """
    # maps the name of each expansion to the name of the value that is expanded
    repeated: dict[str, str] = {}
    names = names_of(graph)
    for node in graph.nodes:
        name = node.outputs[0]
        if node.op == "expand":
            repeated[name] = node.inputs[0]
        elif node.op == "constant_of_shape":
            repeated[name] = add_constant(graph, names, f"{name}.number", node.attributes["value"])
        elif node.op == "elementwise" and repeated.keys() & set(node.inputs):
            # replace operands one by one, because perhaps only one of two expansions can be dropped
            for operand in dict.fromkeys(node.inputs):
                if operand not in repeated:
                    continue
                operands = [repeated[x] if x == operand else x for x in node.inputs]
                if shapes.broadcast_to(name, operands, graph.constants):
                    node.inputs = operands
            value = _value(graph, node, repeated) if shapes.shapes(name) else None
            if value is not None:
                repeated[name] = add_constant(graph, names, f"{name}.number", value)


def _value(graph: Graph, node: Node, repeated: Mapping[str, str]) -> np.ndarray | None:
    """Return the result of an element-wise node, computed without its expansions.

    The operands must be float32 constants or expansions of such constants. Returns None for other
    nodes, and if no operand is an expansion.
    """
    arrays = [graph.constants.get(repeated.get(name, name)) for name in node.inputs]
    known = [array for array in arrays if array is not None and array.dtype == np.float32]
    if len(known) < len(arrays) or not repeated.keys() & set(node.inputs):
        return None
    return node.attributes["expression"].evaluate(*known)[0]


def drop_straight_through(graph: Graph, shapes: ShapesByBatch) -> None:
    """Replace straight-through estimators in expressions by the quantised value q.

    A straight-through estimator is written as (q - x) + x, x + (q - x), x - (x - q), (q + x) - x or
    q + (x - x), where q has few possible values and x has more than one.
    """
    for node in graph.nodes:
        if node.op != "elementwise" or shapes.dtype(node.outputs[0]) != "float32":
            continue
        expression = node.attributes["expression"]
        estimated = _estimated(expression)
        if not estimated:
            continue
        composer = Composer()
        values = [composer.operand(name) for name in node.inputs]
        for index, step in enumerate(expression.steps, start=expression.inputs):
            values.append(values[estimated[index]] if index in estimated else composer.apply(
                step.function, *[values[a] for a in step.arguments], constants=step.constants))
        operands, simplified = composer.build(*[values[a] for a in expression.outputs])
        if shapes.broadcast_to(node.outputs[0], operands, graph.constants):
            node.inputs, node.attributes["expression"] = operands, simplified


def _estimated(expression: Expression) -> dict[int, int]:
    """Map the index of each straight-through estimator to the index of its quantised value."""
    values = range(expression.inputs + len(expression.steps))
    found = {index: pair for index in values if (pair := _parts(expression, index)) is not None}
    if not found:
        return {}
    every = replace(expression, outputs=tuple(values))
    facts = expression_facts(every, [REAL] * expression.inputs)
    # keep sums in which x is a single number: adding and subtracting x is a way to round q
    return {index: quantised for index, (quantised, smooth) in found.items()
            if facts[quantised].few_values and facts[smooth].count != 1}


def _parts(expression: Expression, index: int) -> tuple[int, int] | None:
    """Return the indices of q and x if a value is a sum such as (q - x) + x, which equals q.

    Returns None for other values.
    """
    function, arguments = _step(expression, index)
    if function not in ("add", "sub"):
        return None
    for one, other in (arguments, arguments[::-1]):
        inner, parts = _step(expression, other)
        if function == "add" and inner == "sub":
            if parts[0] == parts[1]:
                return one, parts[0]
            if parts[1] == one:
                return parts[0], one
        elif inner == "sub" and other == arguments[1] and parts[0] == one:
            return parts[1], one
        elif function == "sub" and inner == "add" and other == arguments[0] and one in parts:
            return (parts[1] if parts[0] == one else parts[0]), one
    return None


def _step(expression: Expression, index: int) -> tuple[str, tuple[int, ...]]:
    """Return the function and the arguments of a value; "" for an operand."""
    if index < expression.inputs:
        return "", ()
    step = expression.steps[index - expression.inputs]
    return step.function, step.arguments
