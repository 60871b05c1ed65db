"""The text of a graph: its nodes with all attributes, and the values of its constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.expression import Expression
from gossamer.model.graph import Graph, Node, StaticGraph
from tests.recorded import as_text, digest
from tests.recorded.graphs import array_text

_MOST_STEPS = 40
"""The most steps of an expression that are shown."""


def expression_text(expression: Expression) -> str:
    """Returns the steps with their arguments, and the outputs; a digest of very many steps."""
    steps = " ".join(f"{step.function}({','.join(map(str, (*step.arguments, *step.constants)))})"
                     for step in expression.steps)
    if len(expression.steps) > _MOST_STEPS:
        steps = f"{len(expression.steps)} steps {digest(steps)}"
    return f"{expression.inputs}: {steps} -> {expression.outputs}"


def graph_text(graph: Graph | StaticGraph) -> str:
    """Returns the nodes, the constants and, for a graph, what its notes and warnings say."""
    parts = [node_text(node, graph.constants) for node in graph.nodes]
    read = {name for node in graph.nodes for name in node.inputs}
    parts += [f"{name} = {array_text(array)}" for name, array in graph.constants.items()
              if name not in read]
    if isinstance(graph, Graph):
        parts += [*graph.notes, *graph.warnings]
    return "; ".join(parts)


def node_text(node: Node, constants: dict[str, np.ndarray]) -> str:
    inputs = ", ".join(f"{name} {array_text(constants[name])}" if name in constants else name
                       for name in node.inputs)
    attributes = " ".join(f"{name}={_text(value)}" for name, value in node.attributes.items())
    name = f"{node.name} " if [node.name] != node.outputs else ""
    return f"{name}{node.op}({inputs}) -> {','.join(node.outputs)} {attributes}".strip()


def _text(value: Any) -> str:
    if isinstance(value, Expression):
        return f"[{expression_text(value)}]"
    return as_text(value).replace(", ", ",")
