"""Shows that a network computes each image of a batch independently of the other images, or names a
node or an output for which this is not shown."""

from __future__ import annotations

from gossamer.model.graph import Node, StaticGraph
from gossamer.model.opset.images import Images
from gossamer.model.opset.registry import OPSET


def images_apart(static: StaticGraph, other: StaticGraph) -> tuple[str | None, set[str]]:
    """Compares the static graphs of a graph at two batch sizes, node by node.

    Returns two values. The first is the reason why images may depend on each other or on the batch
    size, as text that starts with a node or an output; None where no reason is found. The second is
    the names of the outputs that have one or several rows for each image; empty where the first
    value is text. The other outputs do not depend on the images.
    """
    images = Images(static, other)
    for info in static.graph.inputs:
        if info.shape[:1] == (None,):
            images.axes[info.name] = 0
    twins = {node.outputs[0]: node for node in other.nodes}
    made_by: dict[str, Node] = {}
    for node in static.nodes:
        made_by.update(dict.fromkeys(node.outputs, node))
        if mixing := _mixing(images, node, twins.get(node.outputs[0])):
            return f"{_text(node)} {mixing}", set()
    for info in static.graph.outputs:
        name = info.name
        if name in static.constants and not images.add_constant(name):
            return f"output {name!r} depends on the size of the batch", set()
        if axis := images.axes.get(name):
            maker = made_by.get(name)
            return f"{_text(maker) if maker else name} leaves the batch on axis {axis}", set()
    return None, {info.name for info in static.graph.outputs if info.name in images.axes}


_DIFFERS = "does something else at another batch size"


def _mixing(images: Images, node: Node, twin: Node | None) -> str | None:
    """Returns the reason why a node may mix images, or differ between the batch sizes, as text that
    follows the node's name. Where no reason is found, records the axis of the images in each of the
    node's outputs, and returns None.

    twin: the node that makes the same outputs at the other batch size.
    """
    for name in node.inputs:
        if name in images.static.constants and not images.add_constant(name):
            return f"reads {name!r}, which depends on the size of the batch"
    depends = any(name in images.axes for name in node.inputs)
    outputs = [name for name in node.outputs if name]
    grows = not all(images.is_fixed(name) for name in outputs)
    if not depends and not _alike(node, twin, followed=grows):
        return _DIFFERS
    if depends or grows:
        if mixing := OPSET[node.op].mixes(images, node):
            return mixing
        for name in outputs:
            axis = images.growing_axis(name)
            if axis is None:
                return f"makes {name!r}, of which no axis follows the batch"
            images.axes[name] = axis
    return None if _alike(node, twin, followed=depends or grows) else _DIFFERS


def _alike(node: Node, twin: Node | None, followed: bool) -> bool:
    """Returns whether a node does the same at both batch sizes. followed: whether the attribute
    `shape` may differ, since the shapes of the node's outputs were compared."""
    def attributes(which: Node) -> dict[str, object]:
        return {name: value for name, value in which.attributes.items()
                if not followed or name != "shape"}

    return (twin is not None and node.op == twin.op and node.inputs == twin.inputs
            and node.outputs == twin.outputs and attributes(node) == attributes(twin))


def _text(node: Node) -> str:
    return node.source or node.name
