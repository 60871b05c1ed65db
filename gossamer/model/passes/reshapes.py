"""Moves element-wise nodes before reshapes, next to the layer whose epilogue they can become.

For example, networks of PyTorch normalise tokens as the rows of one matrix: the product of the
tokens is reshaped, normalised and reshaped back.
"""

from __future__ import annotations

from gossamer.model.graph import Graph, Node, add_constant, names_of, new_name
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.passes.fusion import readers

_LAYERS = ("conv2d", "gemm")
RESHAPES = ("reshape", "flatten", "squeeze", "unsqueeze")


def move_before_reshapes(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Move element-wise nodes before reshapes of a layer's result, and skip reshapes back.

    A node is moved if no other node reads the reshapes, and if its other inputs are constants with
    one number or, for products, with one for each index of a last dimension that the reshapes keep.
    A reshape is skipped if a value before other reshapes already has the shape of its result.

    Returns whether the graph was changed. Reshapes that no node reads any longer stay in the graph.
    """
    makers = {name: node for node in graph.nodes for name in node.outputs}
    users, names = readers(graph), names_of(graph)
    # by the name of a layer's result: the layer, or the last node that was moved behind it
    last = {node.outputs[0]: node for node in graph.nodes if node.op in _LAYERS}
    with_vectors = {node.outputs[0] for node in graph.nodes if node.op == "gemm"}
    following: dict[int, Node] = {}
    moved: set[int] = set()
    for node in graph.nodes:
        values = _values_before(node, makers, users, graph)
        if len(values) < 2 or values[0] not in last or not _may_move(
                graph, shapes, node, values, vectors=values[0] in with_vectors):
            continue
        layer, result, reshape = last[values[0]], values[0], makers[values[-1]]
        before = new_name(names, f"{result} reshaped later")
        layer.outputs = [before]
        inputs = [before if name == values[-1] else add_constant(
            graph, names, f"{name} as a vector", graph.constants[name].reshape(-1))
            for name in node.inputs]
        following[id(layer)] = last[result] = Node(
            node.op, node.name, inputs, [result], node.attributes, node.source)
        reshape.outputs = node.outputs
        makers[node.outputs[0]] = reshape
        moved.add(id(node))
    graph.nodes = [node for node in graph.nodes if id(node) not in moved]
    graph.nodes = [each for node in graph.nodes for each in _with_following(node, following)]
    return _skip_reshapes_back(graph, shapes) or bool(moved)


def _values_before(node: Node, makers: dict[str, Node], users: dict[str, list[Node]],
                   graph: Graph) -> list[str]:
    """Return the values that reshapes turn into the run-time input of an element-wise node.

    The values are in order, the input last. None has another reader. The list is empty if the node
    has several run-time inputs, or several outputs.
    """
    given = [name for name in dict.fromkeys(node.inputs) if name not in graph.constants]
    if node.op != "elementwise" or len(node.outputs) != 1 or len(given) != 1:
        return []
    values: list[str] = []
    (name,) = given
    while len(users[name]) == 1:
        values.insert(0, name)
        if name not in makers or makers[name].op not in RESHAPES:
            break
        name = makers[name].inputs[0]
    return values


def _may_move(graph: Graph, shapes: ShapesByBatch, node: Node, values: list[str], *,
              vectors: bool) -> bool:
    """Return whether an element-wise node may be moved before the reshapes between values.

    vectors: whether the node may read a constant for each index of the last dimension.
    """
    known = [shapes.shapes(name) for name in values]
    if not all(known) or not shapes.equal(values[-1], node.outputs[0]) or (
            shapes.dtype(values[-1]) != "float32" or shapes.dtype(node.outputs[0]) != "float32"):
        return False
    lasts = {shape[-1:] for of_value in known for shape in of_value}
    arrays = [graph.constants[name] for name in node.inputs if name in graph.constants]
    return all(array.size == 1 or (vectors and lasts == {array.shape[-1:]}
                                   and array.size == array.shape[-1]) for array in arrays)


def _with_following(node: Node, following: dict[int, Node]) -> list[Node]:
    """Return a node and the nodes that were moved behind it, in order."""
    nodes = [node]
    while id(nodes[-1]) in following:
        nodes.append(following[id(nodes[-1])])
    return nodes


def _skip_reshapes_back(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Let nodes read a value before reshapes that restore its shape; return whether some do."""
    makers = {name: node for node in graph.nodes for name in node.outputs}
    fixed = {info.name for info in graph.outputs}
    instead: dict[str, str] = {}
    for node in graph.nodes:
        node.inputs = [instead.get(name, name) for name in node.inputs]
        before = node
        while before.op in RESHAPES and node.outputs[0] not in fixed:
            name = before.inputs[0]
            if shapes.equal(name, node.outputs[0]):
                instead[node.outputs[0]] = name
            if name not in makers:
                break
            before = makers[name]
    return bool(instead)
