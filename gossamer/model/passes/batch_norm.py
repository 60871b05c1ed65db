"""Folds batch norms into the convolution or matrix product before them, or turns them into
element-wise arithmetic.

A batch norm is not folded where a sign depends on its result without a convolution or product in
between: the rounding of the folded weights would flip bits. A batch norm is not folded either where
the weights of each channel all have the same finite magnitude above 0, and folding would make such
a magnitude 0 or infinite: algorithms on bits could not compute the layer any more."""

from __future__ import annotations

import numpy as np

from gossamer.expression import apply
from gossamer.model.graph import Graph, Node, add_constant, names_of
from gossamer.model.infer.shapes_by_batch import ShapesByBatch
from gossamer.model.opset.normalisation import AFFINE, affine_constants, batch_norm_constants
from gossamer.model.opset.registry import OPSET
from gossamer.model.opset.signs import are_scaled_signs


def readers(graph: Graph) -> dict[str, list[Node]]:
    """Return the nodes that read each value, each node once.

    A node with the op "output", which is not in the graph, counts as a reader of each output of the
    graph.
    """
    nodes: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            nodes.setdefault(name, []).append(node)
    for info in graph.outputs:
        nodes.setdefault(info.name, []).append(Node("output", info.name, [info.name], []))
    return nodes


def fold_batch_norms(graph: Graph, shapes: ShapesByBatch) -> None:
    """Fold each batch norm that is the only reader of a convolution or product into the layer's
    weights and bias, which are computed in float64."""
    producers = {name: node for node in graph.nodes for name in node.outputs}
    users = readers(graph)
    names = names_of(graph)
    folded = set()
    for norm in graph.nodes:
        if norm.op != "batch_norm" or len(users[norm.inputs[0]]) != 1:
            continue
        layer = producers.get(norm.inputs[0])
        if layer is None or not _foldable(graph, layer, graph.constants[norm.inputs[1]].size):
            continue
        # the channels of a batch norm are along axis 1, the channels of a product along the last
        # axis
        if layer.op == "gemm" and (shapes.rank(norm.inputs[0]) or 2) > 2:
            continue
        if _ends_signs(graph, layer, norm):
            continue
        if not feeds_sign(norm.outputs[0], users):
            _fold(graph, names, layer, norm)
            producers[norm.outputs[0]] = layer
            folded.add(id(norm))
    graph.nodes = [node for node in graph.nodes if id(node) not in folded]


def channel_count(layer: Node, weight: np.ndarray) -> int | None:
    """Return the number of output channels (of columns for a gemm), or None for a weight that
    resolve() will refuse."""
    if weight.ndim != (2 if layer.op == "gemm" else 4):
        return None
    if layer.op == "conv2d":
        return weight.shape[0]
    if layer.op == "conv_transpose2d":
        return weight.shape[1] * layer.attributes["groups"]
    return weight.shape[0 if layer.attributes["trans_b"] else 1]


def output_rows(graph: Graph, layer: Node) -> np.ndarray | None:
    """Return the weights of a convolution or product with a row for each output channel; None for
    other nodes, and where the weights are no float32 constant or resolve() will refuse them."""
    if layer.op not in ("conv2d", "gemm"):
        return None
    weight = graph.constants.get(layer.inputs[1])
    if weight is None or weight.dtype != np.float32 or not weight.size or (
            channel_count(layer, weight) is None):
        return None
    return weight.T if layer.op == "gemm" and not layer.attributes["trans_b"] else weight


def _foldable(graph: Graph, layer: Node, channels: int) -> bool:
    """Return whether a batch norm of `channels` channels can be folded into the layer."""
    if layer.op not in ("conv2d", "conv_transpose2d", "gemm"):
        return False
    if any(name not in graph.constants for name in layer.inputs[1:]):
        return False
    arrays = [graph.constants[name] for name in layer.inputs[1:]]
    if channel_count(layer, arrays[0]) != channels:
        return False
    epilogue = layer.attributes.get("epilogue")
    return epilogue is None or epilogue.is_identity or epilogue == apply("add")


def _ends_signs(graph: Graph, layer: Node, norm: Node) -> bool:
    """Return whether the weights of each channel all have the same magnitude, and a batch norm
    folded into them would make such a magnitude 0 or infinite."""
    rows = output_rows(graph, layer)
    if rows is None or not are_scaled_signs(rows):
        return False
    _, scale, _ = batch_norm_constants([graph.constants[name] for name in norm.inputs[1:]],
                                       norm.attributes["epsilon"])
    alphas = np.abs(rows.reshape(len(rows), -1)[:, :1])
    with np.errstate(over="ignore"):
        return not are_scaled_signs((alphas * scale[:, None]).astype(np.float32))


def feeds_sign(name: str, users: dict[str, list[Node]]) -> bool:
    """Return whether the rounding of a value may change a discontinuous result, such as a sign."""
    seen, pending = set(), [name]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for node in users.get(name, ()):
            definition = OPSET.get(node.op)
            if definition is None:  # an output of the graph, or an op that resolve() refuses
                continue
            if definition.discontinuous(node):
                return True
            if definition.passes_values:
                pending.extend(node.outputs)
    return False


def _fold(graph: Graph, names: set[str], layer: Node, norm: Node) -> None:
    arrays = [graph.constants[name] for name in norm.inputs[1:]]
    mean, scale, shift = batch_norm_constants(arrays, norm.attributes["epsilon"])
    weight = graph.constants[layer.inputs[1]].astype(np.float64)
    if layer.op == "conv2d":
        weight *= scale.reshape(-1, 1, 1, 1)
    elif layer.op == "gemm":
        weight *= scale[:, None] if layer.attributes["trans_b"] else scale
    else:
        groups = layer.attributes["groups"]
        grouped = weight.reshape(groups, -1, *weight.shape[1:])
        weight = (grouped * scale.reshape(groups, 1, -1, 1, 1)).reshape(weight.shape)
    bias = graph.constants[layer.inputs[2]].astype(np.float64) if len(layer.inputs) > 2 else 0.0
    layer.inputs[1:] = [
        add_constant(graph, names, f"{norm.outputs[0]}.weight", weight.astype(np.float32)),
        add_constant(graph, names, f"{norm.outputs[0]}.bias",
                     ((bias - mean) * scale + shift).astype(np.float32))]
    layer.outputs = norm.outputs
    if layer.op != "conv_transpose2d":
        layer.attributes["epilogue"] = apply("add")


def expand_batch_norms(graph: Graph, shapes: ShapesByBatch) -> None:
    """Turn each batch norm that is left into the expression (x - mean) * scale + shift, computed
    in this order, if shape inference has checked its channels. resolve() replaces all other batch
    norms."""
    names = names_of(graph)
    for node in graph.nodes:
        if node.op != "batch_norm" or not shapes.shapes(node.outputs[0]):
            continue
        x = node.inputs[0]
        rank = len(shapes.shapes(x)[0])
        arrays = [graph.constants[name] for name in node.inputs[1:]]
        constants = affine_constants(arrays, node.attributes["epsilon"], rank)
        node.inputs = [x, *(add_constant(graph, names, f"{node.outputs[0]}.{role}", array)
                            for role, array in constants.items())]
        node.op, node.attributes = "elementwise", {"expression": AFFINE}
