"""Simplifies selections, shuffles and concatenations of channels.

Exporters write a channel shuffle (ShuffleNet, Zhang et al., 2018) as a reshape of the channels to
two dimensions, a transpose of these two dimensions, and a reshape back. A gather computes the same
result, and can use the memory layout of the layers around it. A gather that selects channels for
1x1 convolutions can be removed: the convolutions then read all channels, with zero weights for
channels that were not selected. On a GPU, reading the additional channels takes less time than a
kernel that copies the selected ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gossamer.facts import are_scaled_signs
from gossamer.model.graph import Graph, Node, add_constant, names_of, new_name
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.passes.fusion import output_rows, readers

_LARGEST_RATIO = 2
"""Maximum number of channels that a convolution may read, as a multiple of the selected channels.
At a ratio of 2, the convolution alone reads as much as the gather and the convolution together."""
_COMPUTING = ("elementwise", "conv2d", "conv_transpose2d", "gemm")
"""Ops that can be fused with an element-wise node that reads their result."""
Wholes = defaultdict[tuple[str, int], list[tuple[Sequence[str], str]]]
"""Values (wholes) that consist of other values (parts) joined along an axis. A key is a pair of the
first part and the axis. The entries of a key are pairs of the list of parts and the whole."""


def gather_shuffled_channels(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Replace shuffles of the channels of images by gathers.

    Splits and slices of shuffled channels also become gathers, one for each output. Returns whether
    the graph was changed; nodes that no output needs any longer stay in the graph.
    """
    producers = {name: node for node in graph.nodes for name in node.outputs}
    names = names_of(graph)
    shuffles: dict[str, tuple[str, np.ndarray]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        shuffle = _shuffle(node, producers, shapes)
        if shuffle is not None:
            shuffles[node.outputs[0]] = shuffle
            nodes.append(_gather(graph, names, node, node.outputs[0], *shuffle))
            continue
        source, order = shuffles.get(node.inputs[0] if node.inputs else "", ("", None))
        parts = None if order is None else _parts(node, order, shapes)
        if parts is None:
            nodes.append(node)
        else:
            nodes += [_gather(graph, names, node, output, source, part)
                      for output, part in zip(node.outputs, parts, strict=True) if output]
    graph.nodes = nodes
    return bool(shuffles)


def _gather(graph: Graph, names: set[str], node: Node, output: str, source: str,
            order: np.ndarray) -> Node:
    indices = add_constant(graph, names, f"{output} order", order)
    return Node("gather", f"{node.name} of {output}" if len(node.outputs) > 1 else node.name,
                [source, indices], [output], {"axis": 1}, node.source)


def _shuffle(node: Node, producers: dict[str, Node], shapes: ShapesByBatch
             ) -> tuple[str, np.ndarray] | None:
    """Return the input of a channel shuffle, and the order of channels.

    The order is an array with the input channel of each shuffled channel. Returns None if the node
    is not the last of the three nodes of a shuffle.
    """
    turned = producers.get(node.inputs[0]) if node.op == "reshape" else None
    parted = producers.get(turned.inputs[0]) if turned and turned.op == "transpose" else None
    if turned is None or parted is None or parted.op != "reshape":
        return None
    source = parted.inputs[0]
    if tuple(turned.attributes["permutation"] or ()) != (0, 2, 1, 3, 4) or (
            shapes.rank(source) != 4 or not shapes.equal(source, node.outputs[0])):
        return None
    found = set()
    for whole, parts in zip(shapes.shapes(source), shapes.shapes(parted.outputs[0]), strict=True):
        found.add(parts[1:3] if (parts[0], *parts[3:]) == (whole[0], *whole[2:]) else None)
    if len(found) != 1 or (sizes := found.pop()) is None:
        return None
    groups, each = sizes
    return source, np.arange(groups * each).reshape(groups, each).T.reshape(-1)


def _parts(node: Node, order: np.ndarray, shapes: ShapesByBatch) -> list[np.ndarray] | None:
    """Return the entries of `order` for each output of a split or slice of channels.

    Returns None for other nodes, and for splits and slices along other axes.

    order: for each shuffled channel, its index before the shuffle.
    """
    if node.op not in ("split", "slice") or (concrete := shapes.with_attributes(node)) is None:
        return None
    attributes = concrete.attributes
    if node.op == "slice":
        starts, ends = attributes["starts"], attributes["ends"]
        if tuple(attributes.get("axes") or range(len(starts))) not in ((1,), (-3,)):
            return None
        (step,) = attributes.get("steps") or (1,)
        return [order[starts[0]:ends[0]:step]] if step else None
    parts = [shapes.shapes(output) for output in node.outputs]
    if attributes.get("axis", 0) not in (1, -3) or not all(parts):
        return None
    return np.split(order, np.cumsum([known_shapes[0][1] for known_shapes in parts])[:-1])


def choose_channels_by_weights(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Remove gathers of channels, and widen the weights of their readers instead.

    A gather is removed if it selects channels of images by constant indices, and only 1x1
    convolutions read its result. The convolutions get weights for all channels. Returns whether the
    graph was changed; nodes that no output needs any longer stay in the graph.
    """
    users, names = readers(graph), names_of(graph)
    changed = False
    for node in graph.nodes:
        order = _order(graph, node, shapes)
        if order is None:
            continue
        channels, found = order
        layers = users.get(node.outputs[0], [])
        if not layers or not all(_can_widen(graph, layer, node.outputs[0], found.size)
                                 for layer in layers):
            continue
        for layer in layers:
            weight = graph.constants[layer.inputs[1]]
            columns = np.zeros((channels, len(weight), 1, 1), weight.dtype)
            np.add.at(columns, found, weight.swapaxes(0, 1))
            layer.inputs[:2] = [node.inputs[0], add_constant(
                graph, names, f"{layer.outputs[0]}.all channels",
                np.ascontiguousarray(columns.swapaxes(0, 1)))]
        changed = True
    return changed


def _order(graph: Graph, node: Node, shapes: ShapesByBatch) -> tuple[int, np.ndarray] | None:
    """Return the number of input channels of a gather, and the selected channels.

    Returns None for other nodes, and for a gather that selects less than 1 / _LARGEST_RATIO of the
    channels.
    """
    if node.op != "gather" or node.attributes.get("axis", 0) not in (1, -3) or (
            shapes.rank(node.inputs[0]) != 4):
        return None
    indices = graph.constants.get(node.inputs[1])
    sizes = {shape[1] for shape in shapes.shapes(node.inputs[0])}
    if indices is None or indices.ndim != 1 or len(sizes) != 1:
        return None
    channels = sizes.pop()
    if channels > _LARGEST_RATIO * indices.size or (
            not ((-channels <= indices) & (indices < channels)).all()):
        return None
    return channels, indices % channels


def _can_widen(graph: Graph, layer: Node, x: str, chosen: int) -> bool:
    """Return whether a node is a 1x1 convolution of x with weights that can be widened.

    The weights must be constants for the `chosen` channels. Weights that are signs with one scale
    per channel are not widened, because algorithms on packed bits support them only without zeros.
    """
    if layer.op != "conv2d" or layer.inputs[0] != x or x in layer.inputs[1:] or (
            layer.attributes.get("groups", 1) != 1):
        return False
    rows = output_rows(graph, layer)
    return rows is not None and rows.shape[1:] == (chosen, 1, 1) and not are_scaled_signs(rows)


def nest_concatenations(graph: Graph) -> None:
    """Let concatenations read larger values that already exist.

    Consecutive inputs of a concatenation are replaced by one value, the whole, if they are all of
    its parts: if an earlier concatenation joined them into the whole, or an earlier split divided
    the whole into them, in the same order along the same axis. Each part then belongs to one whole
    only, and can be stored in the memory of the whole.
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
    """Return the inputs of a concatenation.

    Consecutive inputs that are all parts of a whole in `wholes` are replaced by the whole.
    """
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
    """Move element-wise nodes that read a concatenation before the concatenation.

    An example of such a node is a rounding to integers. The node is copied to each input of the
    concatenation, so that the layers that compute the inputs can compute the copies in their
    epilogues. No other node may read the concatenation or its inputs.
    """
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
    """Return the element-wise node that is the only reader of a concatenation, else None.

    The node must read no other value. Each input of the concatenation must come from an op in
    _COMPUTING and must have no other reader.
    """
    following = users.get(join.outputs[0], [])
    if len(following) != 1 or following[0].op != "elementwise" or (
            len(following[0].inputs) != 1 or len(following[0].outputs) != 1):
        return None
    is_own = len(set(join.inputs)) == len(join.inputs) and all(
        part in makers and makers[part].op in _COMPUTING and len(users[part]) == 1
        for part in join.inputs)
    return following[0] if is_own else None
