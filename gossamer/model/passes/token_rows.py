"""Makes a network transpose images instead of rows of tokens, wherever it turns one into the other.
An image that lies in NHWC, the layout in which convolutions are fast, already has the memory order
of the rows, so that its transposition copies nothing."""

from __future__ import annotations

from gossamer.model.graph import Graph, Node, names_of, new_name
from gossamer.model.infer.shapes_by_batch import ShapesByBatch
from gossamer.model.opset.state import Shape

_SWAPPED = (0, 2, 1)
"""The permutation that swaps the last two of three dimensions."""
_RESHAPES = ("reshape", "flatten", "squeeze", "unsqueeze")


def transpose_images_for_tokens(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Replaces a reshape of an image to (N, C, H * W) and a transposition to (N, H * W, C) by a
    transposition to (N, H, W, C) and a reshape to (N, H * W, C). Replaces the nodes from tokens
    back to an image likewise. Returns whether the graph was changed; nodes that no output needs any
    more stay in the graph."""
    producers = {name: node for node in graph.nodes for name in node.outputs}
    names = names_of(graph)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        before = producers.get(node.inputs[0]) if node.inputs else None
        replaced = None
        if before is not None and _swaps(node) and before.op in _RESHAPES:
            replaced = _to_tokens(node, before, names, shapes)
        elif before is not None and _swaps(before) and node.op in _RESHAPES:
            replaced = _to_image(node, before, names, shapes)
        changed |= replaced is not None
        nodes += replaced or [node]
    graph.nodes = nodes
    return changed


def _swaps(node: Node) -> bool:
    return node.op == "transpose" and tuple(node.attributes["permutation"] or ()) == _SWAPPED


def _to_tokens(node: Node, reshape: Node, names: set[str], shapes: ShapesByBatch
               ) -> list[Node] | None:
    """Returns the nodes that replace the reshape of an image to (N, C, H * W) and the transposition
    after it; None where the reshape makes another shape."""
    image, tokens = reshape.inputs[0], node.outputs[0]
    if not _are_tokens(tokens, image, shapes) or (sizes := _sizes(tokens, shapes)) is None:
        return None
    last = new_name(names, f"{image} channels last")
    return [Node("transpose", last, [image], [last], {"permutation": (0, 2, 3, 1)}, node.source),
            Node("reshape", node.name, [last], [tokens], {"shape": sizes}, node.source)]


def _to_image(node: Node, transposition: Node, names: set[str], shapes: ShapesByBatch
              ) -> list[Node] | None:
    """Returns the nodes that replace the transposition of tokens and the reshape to (N, C, H, W)
    after it; None where the reshape makes another shape."""
    tokens, image = transposition.inputs[0], node.outputs[0]
    if not _are_tokens(tokens, image, shapes) or (sizes := _sizes(image, shapes)) is None:
        return None
    last = new_name(names, f"{image} channels last")
    return [Node("reshape", last, [tokens], [last],
                 {"shape": (0, sizes[2], sizes[3], sizes[1])}, node.source),
            Node("transpose", node.name, [last], [image], {"permutation": (0, 3, 1, 2)},
                 node.source)]


def _are_tokens(tokens: str, image: str, shapes: ShapesByBatch) -> bool:
    """Returns whether a value has a row for each pixel of an image, with the pixel's channels."""
    return shapes.rank(image) == 4 and all(
        rows == (whole[0], whole[2] * whole[3], whole[1])
        for rows, whole in zip(shapes.shapes(tokens), shapes.shapes(image), strict=True))


def _sizes(name: str, shapes: ShapesByBatch) -> Shape | None:
    """Returns the shape of a value with 0 for the batch; None where other sizes depend on the
    batch."""
    known = {(0, *shape[1:]) for shape in shapes.shapes(name)}
    return known.pop() if len(known) == 1 else None
