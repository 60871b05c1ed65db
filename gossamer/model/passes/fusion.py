"""Fuses element-wise nodes with each other, and into the epilogues of convolutions and matrix
products."""

from __future__ import annotations

import numpy as np

from gossamer.expression import apply
from gossamer.model.compose import Composer
from gossamer.model.graph import Graph, Node, add_constant
from gossamer.model.infer.shapes_by_batch import ShapesByBatch
from gossamer.model.passes.batch_norm import channel_count, readers

_RANKS = {"conv2d": 4, "conv_transpose2d": 4, "gemm": 2}


def fuse_chains(graph: Graph, shapes: ShapesByBatch) -> None:
    """Merges an element-wise node into the element-wise node that reads it, where that is its only
    reader and has the same shape, so that nothing is computed twice."""
    users = readers(graph)
    producers = {node.outputs[0]: node for node in graph.nodes
                 if node.op == "elementwise" and len(node.outputs) == 1}
    merged = set()
    for node in graph.nodes:
        if node.op != "elementwise":
            continue
        while True:
            chained = [name for name in node.inputs if name in producers and len(users[name]) == 1
                       and shapes.depends_on_data(name) and shapes.equal(name, node.outputs[0])
                       and shapes.dtype(name) == shapes.dtype(node.outputs[0]) == "float32"]
            if not chained:
                break
            _merge(producers[chained[0]], node)
            merged.add(id(producers[chained[0]]))
            for name in node.inputs:
                users[name] = [u for u in users[name] if id(u) not in merged and u is not node]
                users[name].append(node)
    graph.nodes = [node for node in graph.nodes if id(node) not in merged]


def _merge(inner: Node, node: Node) -> None:
    """Puts the expression of a node into that of the node that reads it."""
    composer = Composer()
    results = dict(zip(inner.outputs, composer.inline(
        inner.attributes["expression"], [composer.operand(n) for n in inner.inputs]), strict=True))
    values = [results[n] if n in results else composer.operand(n) for n in node.inputs]
    node.inputs, node.attributes["expression"] = composer.build(
        *composer.inline(node.attributes["expression"], values))


def fuse_epilogues(graph: Graph, shapes: ShapesByBatch) -> None:
    """Makes an element-wise node that is the only reader of a convolution or product part of its
    epilogue. The layer moves to that node's place in the order, since the other operands may be
    computed after its own."""
    for layer in [node for node in reversed(graph.nodes) if node.op in _RANKS]:
        while _absorb(graph, shapes, layer):
            pass


def _absorb(graph: Graph, shapes: ShapesByBatch, layer: Node) -> bool:
    """Fuses the only reader of the layer's result into its epilogue, and returns whether that was
    possible."""
    result = layer.outputs[0]
    users = [node for node in graph.nodes if result in node.inputs]
    if len(users) != 1 or any(info.name == result for info in graph.outputs):
        return False
    node = users[0]
    if node.op != "elementwise" or len(node.outputs) != 1:
        return False
    channels = _channel_operands(graph, shapes, layer, node)
    if channels is None:
        return False
    if layer.op == "conv_transpose2d":
        return _absorb_bias(graph, layer, node, channels)
    composer = Composer()
    value = composer.operand(result)
    operands = [composer.operand(name) for name in layer.inputs[2:]]
    value = composer.inline(layer.attributes["epilogue"], [value, *operands])[0]
    arguments = []
    for name in node.inputs:
        if name == result:
            arguments.append(value)
        elif name in channels:
            arguments.append(composer.operand(
                add_constant(graph, f"{name}.channels", channels[name])))
        else:
            arguments.append(composer.operand_or_constant(name, graph.constants.get(name)))
    outputs = composer.inline(node.attributes["expression"], arguments)
    names, layer.attributes["epilogue"] = composer.build(*outputs, first=result)
    layer.inputs[2:] = names[1:]
    layer.outputs = node.outputs
    nodes = [n for n in graph.nodes if n is not layer]
    graph.nodes = [layer if n is node else n for n in nodes]
    return True


def _channel_operands(graph: Graph, shapes: ShapesByBatch, layer: Node,
                      node: Node) -> dict[str, np.ndarray] | None:
    """Returns the operands of an element-wise node that are constants of one value a channel of the
    layer's result; None where some operand fits no epilogue."""
    result = layer.outputs[0]
    weight = graph.constants.get(layer.inputs[1])
    channels = channel_count(layer, weight) if weight is not None else None
    channel_constants: dict[str, np.ndarray] = {}
    for name in node.inputs:
        array = graph.constants.get(name)
        if name == result:
            continue
        if array is None:
            if not shapes.depends_on_data(name) or shapes.dtype(name) != "float32":
                return None
            if not shapes.equal(name, result):
                return None
        elif array.dtype != np.float32:
            return None
        elif array.size == 1 and array.ndim <= _RANKS[layer.op]:
            continue
        elif channels is not None and _one_a_channel(array, channels, _RANKS[layer.op]):
            channel_constants[name] = array.reshape(-1)
        else:
            return None
    return channel_constants


def _one_a_channel(array: np.ndarray, channels: int, rank: int) -> bool:
    expected = (1, channels, *[1] * (rank - 2))
    return array.ndim <= rank and (1,) * (rank - array.ndim) + array.shape == expected


def _absorb_bias(graph: Graph, layer: Node, node: Node, channels: dict[str, np.ndarray]) -> bool:
    """Fuses a bias into a transposed convolution, which takes nothing else, and returns whether
    that was possible."""
    if len(layer.inputs) > 2 or len(channels) != 1 or node.attributes["expression"] != apply("add"):
        return False
    (bias,) = channels.values()
    layer.inputs.append(add_constant(graph, f"{node.outputs[0]}.bias", bias))
    layer.outputs = node.outputs
    graph.nodes = [n for n in graph.nodes if n is not node]
    return True
