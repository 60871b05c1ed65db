"""Simplifies concatenations of values that an earlier concatenation has joined already, as in each
layer of a DenseNet, or that an earlier split has made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gossamer.model.graph import Graph, Node, names_of, new_name
from gossamer.model.passes.batch_norm import readers

_COMPUTING = ("elementwise", "conv2d", "conv_transpose2d", "gemm")
"""Ops that can be fused with an element-wise node that reads their result."""

Wholes = defaultdict[tuple[str, int], list[tuple[Sequence[str], str]]]
"""Values (wholes) that consist of other values (parts), joined along an axis. The keys are the
first part and the axis; under each key are pairs of all parts and the whole."""


def nest_concatenations(graph: Graph) -> None:
    """Lets concatenations read larger values that exist already. Consecutive inputs of a
    concatenation may be all parts of one value (the whole): an earlier concatenation joined them
    into the whole, or an earlier split divided the whole into them, in the same order along the
    same axis. The concatenation then reads the whole in place of the parts.

    Each part then belongs to one whole only, so that it can be written or read in the memory of the
    whole.
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
    """Returns the inputs of a concatenation. Consecutive inputs that are all parts
    of a whole in `wholes` are replaced by the whole."""
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


def move_above_concatenations(graph: Graph) -> None:
    """Where an element-wise node, such as a rounding to integers, reads the result of a
    concatenation, replaces the node by a copy of it for each input of the concatenation. No other
    node may read the concatenation or its inputs. The layers that make the inputs can then compute
    the element-wise nodes in their epilogues."""
    makers = {name: node for node in graph.nodes for name in node.outputs}
    users, names = readers(graph), names_of(graph)
    gone: set[int] = set()
    before: dict[int, list[Node]] = {}
    for join in [node for node in graph.nodes if node.op == "concat"]:
        while (node := _follower(join, users, makers)) is not None:
            parts = []
            for part in join.inputs:
                name = new_name(names, f"{part}.{node.outputs[0]}")
                moved = Node("elementwise", name, [part], [name], dict(node.attributes),
                             node.source)
                before.setdefault(id(join), []).append(moved)
                makers[name], users[part], users[name] = moved, [moved], [join]
                parts.append(name)
            gone.add(id(node))
            join.inputs, join.outputs = parts, list(node.outputs)
            makers[join.outputs[0]] = join
    graph.nodes = [one for node in graph.nodes if id(node) not in gone
                   for one in (*before.get(id(node), ()), node)]


def _follower(join: Node, users: dict[str, list[Node]], makers: dict[str, Node]) -> Node | None:
    """Returns the element-wise node that is the only reader of a concatenation and reads no other
    value. Returns None where there is no such node, where an input of the concatenation comes from
    an op outside of _COMPUTING, and where another node also reads an input."""
    following = users.get(join.outputs[0], [])
    if len(following) != 1 or following[0].op != "elementwise" or (
            len(following[0].inputs) != 1 or len(following[0].outputs) != 1):
        return None
    is_own = len(set(join.inputs)) == len(join.inputs) and all(
        part in makers and makers[part].op in _COMPUTING and len(users[part]) == 1
        for part in join.inputs)
    return following[0] if is_own else None
