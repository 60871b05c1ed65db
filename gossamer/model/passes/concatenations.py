"""Concatenations that join what others have joined already, as each layer of a DenseNet does."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.model.graph import Graph, Node


def nest_concatenations(graph: Graph) -> None:
    """Lets a concatenation read the output of an earlier one in place of the values that this joins
    in the same order along the same axis. Each of these values is then a part of one other value
    only, so that it can be written where it belongs."""
    earlier: dict[tuple[str, int], list[tuple[Sequence[str], str]]] = {}
    for node in graph.nodes:
        if node.op != "concat":
            continue
        inputs = tuple(node.inputs)
        node.inputs = _nested(node, earlier)
        earlier.setdefault((inputs[0], node.attributes["axis"]), []).append(
            (inputs, node.outputs[0]))


def _nested(node: Node,
            earlier: dict[tuple[str, int], list[tuple[Sequence[str], str]]]) -> list[str]:
    """Returns the inputs of a concatenation, of which those that one of the earlier concatenations
    joins are replaced by its output.

    earlier: the inputs and the output of each by the first input and the axis.
    """
    inputs, result, start = node.inputs, list[str](), 0
    while start < len(inputs):
        fitting = [(parts, whole) for parts, whole in earlier.get(
            (inputs[start], node.attributes["axis"]), ())
            if 1 < len(parts) < len(inputs)
            and tuple(inputs[start:start + len(parts)]) == tuple(parts)]
        parts, name = max(fitting, key=lambda found: len(found[0]),
                          default=(inputs[start:start + 1], inputs[start]))
        result.append(name)
        start += len(parts)
    return result
