"""Where element-wise arithmetic stands between a transposition and a product, moves the arithmetic
before the transposition. The product can then read its operand transposed, and nothing is copied.
Exporters write such networks: they scale the transposed keys of an attention, not the keys."""

from __future__ import annotations

from gossamer.model.graph import Graph, Node, names_of, new_name
from gossamer.model.infer.shapes_by_batch import ShapesByBatch
from gossamer.model.opset.shapes import swaps_matrices
from gossamer.model.passes.batch_norm import readers


def scale_before_transposing(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Moves element-wise nodes before transpositions of matrices. A node is moved if it reads the
    result of one such transposition and otherwise only single numbers, and if only products read
    the node's own result. The moved node reads the value before the transposition, and a new
    transposition follows the node.

    Returns whether the graph was changed. Transpositions that no node reads any more stay in the
    graph."""
    makers = {name: node for node in graph.nodes for name in node.outputs}
    users, names = readers(graph), names_of(graph)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        turned = [maker for name in node.inputs if (maker := makers.get(name)) is not None
                  and swaps_matrices(maker)]
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


def _all_products(nodes: list[Node]) -> bool:
    return bool(nodes) and all(node.op == "matmul" for node in nodes)


def _are_single(node: Node, swapped: str, shapes: ShapesByBatch) -> bool:
    """Returns whether all inputs except the transposed input are known to be single numbers with no
    more dimensions than the transposed input has. swapped: name of the transposed input."""
    rank = shapes.rank(swapped) or 0
    others = [shapes.shapes(name) for name in node.inputs if name != swapped]
    return all(known and all(len(shape) <= rank and set(shape) <= {1} for shape in known)
               for known in others)
