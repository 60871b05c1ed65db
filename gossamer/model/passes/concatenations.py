"""Concatenations that join what others have joined already, as each layer of a DenseNet does, or
what was split before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gossamer.model.graph import Graph, Node

Wholes = defaultdict[tuple[str, int], list[tuple[Sequence[str], str]]]
"""Values that are other values side by side: these and the whole, by the first of them and the
axis."""


def nest_concatenations(graph: Graph) -> None:
    """Lets a concatenation read one value in place of several, where these are what an earlier
    concatenation joins or an earlier split gives, in the same order along the same axis.

    Each of these values is then a part of one other value only, so that it can be written or read
    where that lies.
    """
    wholes: Wholes = defaultdict(list)
    for node in graph.nodes:
        if node.op == "split":
            axis = node.attributes.get("axis", 0)
            wholes[node.outputs[0], axis].append((tuple(node.outputs), node.inputs[0]))
        elif node.op == "concat":
            parts = tuple(node.inputs)
            node.inputs = _nested(node, wholes)
            wholes[parts[0], node.attributes["axis"]].append((parts, node.outputs[0]))


def _nested(node: Node, wholes: Wholes) -> list[str]:
    """Returns the inputs of a concatenation, some of which are replaced by one value that has them
    side by side."""
    inputs, result, start = node.inputs, list[str](), 0
    while start < len(inputs):
        fitting = [(parts, whole) for parts, whole in wholes[inputs[start],
                                                             node.attributes["axis"]]
                   if 1 < len(parts) < len(inputs)
                   and tuple(inputs[start:start + len(parts)]) == tuple(parts)]
        parts, name = max(fitting, key=lambda found: len(found[0]),
                          default=(inputs[start:start + 1], inputs[start]))
        result.append(name)
        start += len(parts)
    return result
