"""Moves arithmetic between a transposition and a product above the transposition, which the product
then does itself: exporters scale the transposed keys of an attention, not the keys."""

from __future__ import annotations

from gossamer.model.graph import Graph, Node, names_of, new_name
from gossamer.model.infer.shapes_by_batch import ShapesByBatch
from gossamer.model.passes.batch_norm import readers


def scale_before_transposing(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Lets an element-wise node that reads a transposition of matrices, and else only single
    numbers, read the value before the transposition instead, where only products read its result.
    Returns whether it changed the graph; transpositions that no node reads any more are still in
    it."""
    makers = {name: node for node in graph.nodes for name in node.outputs}
    users, names = readers(graph), names_of(graph)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        turned = [maker for name in node.inputs if (maker := makers.get(name)) is not None
                  and _swaps_matrices(maker)]
        if node.op != "elementwise" or len(turned) != 1 or len(node.outputs) != 1 or (
                not _all_products(users.get(node.outputs[0], []))
                or not _are_single(node, turned[0].outputs[0], shapes)):
            nodes.append(node)
            continue
        (result,), (swapped,), (source,) = node.outputs, turned[0].outputs, turned[0].inputs
        before = new_name(names, f"{result} before transposing")
        nodes += [Node("elementwise", node.name,
                       [source if name == swapped else name for name in node.inputs], [before],
                       node.attributes, node.source),
                  Node("transpose", before, [before], [result], dict(turned[0].attributes),
                       turned[0].source)]
        changed = True
    graph.nodes = nodes
    return changed


def _swaps_matrices(node: Node) -> bool:
    """Returns whether a node swaps the last two dimensions and no others."""
    permutation = tuple(node.attributes.get("permutation") or ())
    rank = len(permutation)
    return node.op == "transpose" and rank > 1 and (
        permutation == (*range(rank - 2), rank - 1, rank - 2))


def _all_products(nodes: list[Node]) -> bool:
    return bool(nodes) and all(node.op == "matmul" for node in nodes)


def _are_single(node: Node, swapped: str, shapes: ShapesByBatch) -> bool:
    """Returns whether all inputs but the transposed one are known to be single numbers, of no more
    dimensions than this one has."""
    rank = shapes.rank(swapped) or 0
    others = [shapes.shapes(name) for name in node.inputs if name != swapped]
    return all(known and all(len(shape) <= rank and set(shape) <= {1} for shape in known)
               for known in others)
