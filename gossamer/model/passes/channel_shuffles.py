"""Replaces each shuffle of channels (ShuffleNet, Zhang et al., 2018) by one gather, which can work
in the layout of the layers around it. Exporters write a shuffle as a reshape of the channels to two
dimensions, a transposition of these two dimensions, and a reshape back."""

from __future__ import annotations

import numpy as np

from gossamer.model.graph import Graph, Node, add_constant, names_of
from gossamer.model.infer.shapes_by_batch import ShapesByBatch


def gather_shuffled_channels(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Replaces shuffles of the channels of images by gathers. Splits and slices of shuffled
    channels also become gathers, one for each output. Returns whether the graph was changed; nodes
    that no output needs any more stay in the graph."""
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
    """Returns two things where the node and the two nodes before it shuffle channels: the value
    before the shuffle, and for each channel after the shuffle its index before the shuffle. Returns
    None for other nodes."""
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
    """Returns, for each output of a split or slice of shuffled channels, the entries of `order`
    that it takes; None for other nodes, and for splits and slices along other axes. order: for each
    shuffled channel, its channel before the shuffle."""
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
