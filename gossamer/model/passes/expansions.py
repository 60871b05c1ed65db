"""Lets element-wise nodes broadcast values that a file expands for them, such as a bias or a number
that is repeated to the shape of another value. The element-wise node can then go into the epilogue
of the layer before it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gossamer.model.graph import Graph, Node, add_constant, names_of
from gossamer.model.infer.shapes_by_batch import ShapesByBatch


def drop_expansions(graph: Graph, shapes: ShapesByBatch) -> None:
    """Lets element-wise nodes read a value in place of its expansion, where the results of the
    nodes keep their shapes. The expansion stays for other readers."""
    # the value that an expansion repeats, by the name of the expansion
    repeated: dict[str, str] = {}
    names = names_of(graph)
    for node in graph.nodes:
        name = node.outputs[0]
        if node.op == "expand":
            repeated[name] = node.inputs[0]
        elif node.op == "constant_of_shape":
            repeated[name] = add_constant(graph, names, f"{name}.number", node.attributes["value"])
        elif node.op == "elementwise" and repeated.keys() & set(node.inputs):
            # if each of two expansions alone would give the result its shape, the first is dropped,
            # and the second has to stay
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
    """Returns the result of an element-wise node whose operands are float32 constants or expansions
    of such constants. The result is computed from the constants before expansion. Returns None for
    other nodes, and where no operand is an expansion."""
    arrays = [graph.constants.get(repeated.get(name, name)) for name in node.inputs]
    known = [array for array in arrays if array is not None and array.dtype == np.float32]
    if len(known) < len(arrays) or not repeated.keys() & set(node.inputs):
        return None
    return node.attributes["expression"].evaluate(*known)[0]
