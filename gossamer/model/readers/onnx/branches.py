"""Replaces an If of an ONNX file by one of its branches, where its condition is known."""

from __future__ import annotations

from collections.abc import Container

import onnx
from onnx import helper

from gossamer.model.graph import Graph, Node
from gossamer.model.readers.onnx.order import in_order
from gossamer.model.readers.onnx.parts import Parts


def known_branch(
    node: onnx.NodeProto, graph: Graph, parts: Parts | None, taken: Container[str]
) -> tuple[bool, list[onnx.NodeProto], list[onnx.TensorProto]] | None:
    """Returns the condition of an If, and the nodes and initializers that take its place; None
    where the condition is not known, or the branch does not fit into the graph.

    parts: source of the shapes of values; where it is None, only conditions that are constants are
    known.
    taken: names of values outside of the branch.
    Raises ModelError where nodes of the branch form a cycle.
    """
    name = next(iter(node.input), "")
    if (constant := graph.constants.get(name)) is not None:
        truth: bool | None = bool(constant.any())
    else:
        truth = None if parts is None else parts.truth(name)
    found = None if truth is None else _branch(node, truth, taken, graph.file)
    if truth is None or found is None:
        return None
    if parts is not None:
        parts.branch(*found)
    return (truth, *found)


def guard(node: Node, condition: str, truth: bool, of: str) -> None:
    """Turns an identity after a branch into a check of the If's condition. The check fails at
    shapes for which the condition is not `truth`. of: the words with which messages name the If."""
    node.op, node.source = "branch", of
    node.inputs.append(condition)
    node.attributes["taken"] = truth


def _branch(node: onnx.NodeProto, truth: bool, taken: Container[str], file: str
            ) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]] | None:
    """Returns the nodes of the branch that an If takes, followed by one Identity for each output of
    the If, and the branch's initializers. Returns None where the branch uses names that are already
    taken, or has another number of outputs than the If.

    truth: the condition.
    taken: names of values outside of the branch.
    """
    name = "then_branch" if truth else "else_branch"
    graph = next((attribute.g for attribute in node.attribute if attribute.name == name), None)
    if graph is None or len(graph.output) != len(node.output) or graph.sparse_initializer:
        return None
    results = [info.name for info in graph.output]
    nodes = in_order(graph, results, file)
    made = [tensor.name for tensor in graph.initializer]
    made += (output for entry in nodes for output in entry.output if output)
    if len(set(made)) < len(made) or any(value in taken for value in made):
        return None
    nodes += [helper.make_node("Identity", [result], [output], node.name)
              for result, output in zip(results, node.output, strict=True) if output]
    return nodes, list(graph.initializer)
