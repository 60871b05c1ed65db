"""Joins the products that compute queries, keys and values of attention from the same value.

Many transformers have a matrix each for queries, keys and values. One product of all columns takes
less time than three, and attention on GPUs reads its operands where they are in the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gossamer.facts import are_scaled_signs
from gossamer.model.graph import Graph, Node, add_constant, names_of, new_name
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.passes.fusion import output_rows, readers
from gossamer.model.passes.reshapes import RESHAPES

_PASSED = frozenset({*RESHAPES, "transpose", "split", "slice", "concat", "elementwise"})
"""Ops that may lie between a product and the products of attention."""


def join_attention_products(graph: Graph, shapes: ShapesByBatch) -> None:
    """Join products of one value by constants if only matrix products read the results.

    Reshapes, transposes, slices, concatenations and element-wise nodes may lie between. The
    products must have the same epilogue, with constants as operands. A split of the joined product
    computes their results.
    """
    users, names = readers(graph), names_of(graph)
    found: dict[object, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if _may_be_joined(graph, node) and _reaches_products(node.outputs, users):
            found[node.inputs[0], node.attributes["trans_b"], node.attributes["epilogue"],
                  shapes.rank(node.outputs[0])].append(node)
    replaced: dict[int, list[Node]] = {}
    for layers in found.values():
        if len(layers) > 1:
            replaced |= {id(layer): [] for layer in layers}
            replaced[id(layers[0])] = _joined(graph, names, layers)
    graph.nodes = [new for node in graph.nodes for new in replaced.get(id(node), [node])]


def _may_be_joined(graph: Graph, node: Node) -> bool:
    """Whether a node is a product with constants, without kernels for its kind of weights."""
    rows = output_rows(graph, node) if node.op == "gemm" else None
    return rows is not None and not node.attributes["trans_a"] and (
        node.inputs[0] not in graph.constants
        and all(name in graph.constants and graph.constants[name].shape == (len(rows),)
                for name in node.inputs[2:])
        and not are_scaled_signs(rows) and not (rows == np.rint(rows)).all()
        and not node.attributes["epilogue"].is_discontinuous)


def _reaches_products(values: Sequence[str], users: dict[str, list[Node]]) -> bool:
    """Whether all paths from the values lead through transposes to products of two values.

    Without a transpose, which is a copy where no kernel computes attention as a whole, a part of
    the joined result would have to be copied.
    """
    waiting = [(name, False) for name in values]
    seen = set(waiting)
    while waiting:
        name, is_transposed = waiting.pop()
        for node in users.get(name, [Node("unused", "", [], [])]):
            if node.op == "shape" or (node.op == "matmul" and is_transposed):
                continue
            if node.op not in _PASSED:
                return False
            new = {(output, is_transposed or node.op == "transpose") for output in node.outputs}
            waiting += new - seen
            seen |= new
    return True


def _joined(graph: Graph, names: set[str], layers: Sequence[Node]) -> list[Node]:
    """Return the product that joins the products, and the split of its result."""
    first = layers[0]
    columns = 0 if first.attributes["trans_b"] else 1
    axes = [columns, *[0] * (len(first.inputs) - 2)]
    joined = [add_constant(graph, names, f"{first.outputs[0]}.joined", np.concatenate(
        [graph.constants[layer.inputs[index]] for layer in layers], axis))
        for index, axis in enumerate(axes, 1)]
    result = new_name(names, f"{first.outputs[0]}.all")
    sizes = tuple(graph.constants[layer.inputs[1]].shape[columns] for layer in layers)
    return [Node("gemm", first.name, [first.inputs[0], *joined], [result], first.attributes,
                 first.source),
            Node("split", result, [result], [layer.outputs[0] for layer in layers],
                 {"axis": -1, "sizes": sizes}, first.source)]
