"""Replaces operations on matrices and tokens by operations on images.

keep_pixels() turns products into 1x1 convolutions if their results become images of one pixel. For
example, a squeeze-and-excite layer then has the same nodes, whether a file computes its gate on
matrices or on images.

transpose_images_for_tokens() is for networks that turn an image into tokens (a matrix with one row
per pixel) or tokens into an image. The image is transposed instead of the tokens: an image stored
as NHWC already has the memory order of the tokens, so nothing is copied.
"""

from __future__ import annotations

import numpy as np

from gossamer.model.graph import Graph, Node, add_constant, names_of, new_name
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.opset.definition import Shape
from gossamer.model.passes.fusion import readers
from gossamer.model.passes.reshapes import RESHAPES

_SWAPPED = (0, 2, 1)
"""The permutation that swaps the last two of three dimensions."""


def keep_pixels(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Remove reshapes of images of one pixel to matrices and back.

    Between the reshapes, means of images keep their dimensions, and products with constant matrices
    become convolutions. The values in between must have no other readers. Returns whether the graph
    was changed.
    """
    producers = {name: node for node in graph.nodes for name in node.outputs}
    users, names = readers(graph), names_of(graph)
    replaced: set[int] = set()
    for node in graph.nodes:
        if node.op not in RESHAPES or not is_pixel(node.outputs[0], shapes):
            continue
        layers = _layers_between(graph, shapes, node, producers, users)
        if not layers:
            continue
        for layer in layers:
            if layer.op != "reduce":
                layer.inputs[0] = _pixel_before(layer.inputs[0], shapes, producers)
            if layer.op == "gemm":
                _make_convolution(graph, names, layer)
            elif layer.op == "reduce":
                layer.attributes = {**layer.attributes, "keepdims": True}
        layers[-1].outputs = node.outputs
        replaced.add(id(node))
    graph.nodes = [node for node in graph.nodes if id(node) not in replaced]
    return bool(replaced)


def is_pixel(name: str, shapes: ShapesByBatch) -> bool:
    """Return whether a value has the shape (N, C, 1, 1) at every batch size."""
    known = shapes.shapes(name)
    return bool(known) and all(len(shape) == 4 and shape[2:] == (1, 1) for shape in known)


def _layers_between(graph: Graph, shapes: ShapesByBatch, node: Node, producers: dict[str, Node],
                    users: dict[str, list[Node]]) -> list[Node]:
    """Return the layers between an image and a later reshape, in order.

    The reshape turns a matrix into images of one pixel. The list is empty if other nodes read a
    result of the layers, or if keep_pixels() cannot change a layer.

    node: the reshape.
    """
    layers: list[Node] = []
    rows = [shape[:2] for shape in shapes.shapes(node.outputs[0])]
    name = node.inputs[0]
    while not is_pixel(name, shapes):
        layer = producers.get(name)
        if layer is None or len(users[name]) != 1 or shapes.shapes(name) != rows:
            return []
        if layer.op == "reduce":
            return [layer, *layers] if reduces_image(layer, shapes) else []
        if layer.op in RESHAPES:
            rows = [shape[:2] for shape in shapes.shapes(layer.inputs[0])]
            if rows != shapes.shapes(name):
                return []
        elif layer.op == "gemm" and _may_be_convolution(graph, layer):
            layers.insert(0, layer)
            rows = shapes.shapes(layer.inputs[0])
        elif layer.op == "elementwise" and len(layer.inputs) == len(layer.outputs) == 1:
            layers.insert(0, layer)
        else:
            return []
        name = layer.inputs[0]
    return layers if [shape[:2] for shape in shapes.shapes(name)] == rows else []


def reduces_image(layer: Node, shapes: ShapesByBatch) -> bool:
    """Return whether a reduction is over the height and width of images."""
    axes = layer.attributes.get("axes")
    if any(len(shape) != 4 for shape in shapes.shapes(layer.inputs[0])):
        return False
    return axes == "spatial" or (
        isinstance(axes, tuple) and sorted(axis % 4 for axis in axes) == [2, 3])


def _may_be_convolution(graph: Graph, layer: Node) -> bool:
    """Return whether a product has constant weights, and only constants as epilogue operands."""
    if layer.attributes["trans_a"] or any(name not in graph.constants for name in layer.inputs[1:]):
        return False
    weight = graph.constants[layer.inputs[1]]
    return weight.ndim == 2 and weight.dtype == np.float32


def _pixel_before(name: str, shapes: ShapesByBatch, producers: dict[str, Node]) -> str:
    """Return the name of the one-pixel image that reshapes turn into a value.

    Returns the value's own name if it is not the result of a reshape.
    """
    while not is_pixel(name, shapes) and producers[name].op in RESHAPES:
        name = producers[name].inputs[0]
    return name


def _make_convolution(graph: Graph, names: set[str], layer: Node) -> None:
    weight = graph.constants[layer.inputs[1]]
    filters = (weight if layer.attributes["trans_b"] else weight.T)[:, :, None, None]
    layer.inputs[1] = add_constant(graph, names, f"{layer.outputs[0]}.filters",
                                   np.ascontiguousarray(filters))
    layer.op = "conv2d"
    layer.attributes = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1,
                        "epilogue": layer.attributes["epilogue"]}


def transpose_images_for_tokens(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Transpose images instead of tokens.

    A reshape of an image to (N, C, H * W) and a transpose to tokens (N, H * W, C) become a
    transpose to (N, H, W, C) and a reshape to tokens. Nodes that turn tokens into an image are
    replaced in the same way. Returns whether the graph was changed; nodes that no output needs any
    longer stay in the graph.
    """
    producers = {name: node for node in graph.nodes for name in node.outputs}
    names = names_of(graph)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        before = producers.get(node.inputs[0]) if node.inputs else None
        replaced = None
        if before is not None and _swaps(node) and before.op in RESHAPES:
            replaced = _to_tokens(node, before, names, shapes)
        elif before is not None and _swaps(before) and node.op in RESHAPES:
            replaced = _to_image(node, before, names, shapes)
        changed |= replaced is not None
        nodes += replaced or [node]
    graph.nodes = nodes
    return changed


def _swaps(node: Node) -> bool:
    return node.op == "transpose" and tuple(node.attributes["permutation"] or ()) == _SWAPPED


def _to_tokens(node: Node, reshape: Node, names: set[str], shapes: ShapesByBatch
               ) -> list[Node] | None:
    """Return nodes that replace the reshape of an image to (N, C, H * W) and its transpose.

    Returns None if the reshape makes another shape.
    """
    image, tokens = reshape.inputs[0], node.outputs[0]
    if not _are_tokens(tokens, image, shapes) or (sizes := _sizes(tokens, shapes)) is None:
        return None
    last = new_name(names, f"{image} channels last")
    return [Node("transpose", last, [image], [last], {"permutation": (0, 2, 3, 1)}, node.source),
            Node("reshape", node.name, [last], [tokens], {"shape": sizes}, node.source)]


def _to_image(node: Node, transposition: Node, names: set[str], shapes: ShapesByBatch
              ) -> list[Node] | None:
    """Return nodes that replace the transpose of tokens and the reshape to (N, C, H, W).

    Returns None if the reshape makes another shape.
    """
    tokens, image = transposition.inputs[0], node.outputs[0]
    if not _are_tokens(tokens, image, shapes) or (sizes := _sizes(image, shapes)) is None:
        return None
    last = new_name(names, f"{image} channels last")
    return [Node("reshape", last, [tokens], [last],
                 {"shape": (0, sizes[2], sizes[3], sizes[1])}, node.source),
            Node("transpose", node.name, [last], [image], {"permutation": (0, 3, 1, 2)},
                 node.source)]


def _are_tokens(tokens: str, image: str, shapes: ShapesByBatch) -> bool:
    """Return whether a value has one row per pixel of an image, with the pixel's channels."""
    return shapes.rank(image) == 4 and all(
        rows == (whole[0], whole[2] * whole[3], whole[1])
        for rows, whole in zip(shapes.shapes(tokens), shapes.shapes(image), strict=True))


def _sizes(name: str, shapes: ShapesByBatch) -> Shape | None:
    """Return the shape of a value with 0 for the batch; None if other sizes depend on the batch."""
    known = {(0, *shape[1:]) for shape in shapes.shapes(name)}
    return known.pop() if len(known) == 1 else None
