"""Element-wise nodes fused with each other, and into the epilogues of convolutions and
products."""

from __future__ import annotations

import numpy as np

from gossamer.expression import apply
from gossamer.model.compose import Composer
from gossamer.model.graph import Graph, Node, add_constant
from gossamer.model.infer.sample import Sample, as_step
from gossamer.model.passes.batch_norm import channel_count, readers

_RANKS = {"conv2d": 4, "conv_transpose2d": 4, "gemm": 2}


def fuse_chains(graph: Graph, known: Sample) -> None:
    """An element-wise node that only one other reads becomes part of it, where both have the
    same shape, so that nothing is computed twice."""
    users = readers(graph)
    makers = {node.outputs[0]: node for node in graph.nodes
              if node.op == "elementwise" and len(node.outputs) == 1}
    gone = set()
    for node in graph.nodes:
        if node.op != "elementwise":
            continue
        while True:
            chained = [name for name in node.inputs if name in makers and len(users[name]) == 1
                       and known.from_data(name) and known.equal(name, node.outputs[0])
                       and known.dtype(name) == known.dtype(node.outputs[0]) == "float32"]
            if not chained:
                break
            _merge(makers[chained[0]], node)
            gone.add(id(makers[chained[0]]))
            for name in node.inputs:
                users[name] = [u for u in users[name] if id(u) not in gone and u is not node]
                users[name].append(node)
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]


def _merge(inner: Node, node: Node) -> None:
    composer = Composer()
    results = dict(zip(inner.outputs, composer.inline(
        inner.attributes["expression"], [composer.operand(n) for n in inner.inputs]), strict=True))
    values = [results[n] if n in results else composer.operand(n) for n in node.inputs]
    node.inputs, node.attributes["expression"] = composer.build(
        *composer.inline(node.attributes["expression"], values))


def fuse_epilogues(graph: Graph, known: Sample) -> None:
    """A convolution or product takes over the element-wise nodes that alone read its result, and
    their place in the order, since their other operands may be computed after its own."""
    for layer in [node for node in reversed(graph.nodes) if node.op in _RANKS]:
        while _absorb(graph, known, layer):
            pass


def _absorb(graph: Graph, known: Sample, layer: Node) -> bool:
    result = layer.outputs[0]
    users = [node for node in graph.nodes if result in node.inputs]
    if len(users) != 1 or any(info.name == result for info in graph.outputs):
        return False
    node = users[0]
    if node.op != "elementwise" or len(node.outputs) != 1:
        return False
    channels = _channel_operands(graph, known, layer, node)
    if channels is None:
        return False
    if layer.op == "conv_transpose2d":
        return _absorb_bias(graph, layer, node, channels)
    composer = Composer()
    value = composer.operand(result)
    own = [composer.operand(name) for name in layer.inputs[2:]]
    value = composer.inline(layer.attributes["epilogue"], [value, *own])[0]
    arguments = []
    for name in node.inputs:
        if name == result:
            arguments.append(value)
        elif name in channels:
            arguments.append(composer.operand(
                add_constant(graph, f"{name}.channels", channels[name])))
        else:
            arguments.append(as_step(composer, graph.constants.get(name), name))
    outputs = composer.inline(node.attributes["expression"], arguments)
    operands, layer.attributes["epilogue"] = composer.build(*outputs, first=result)
    layer.inputs[2:] = operands[1:]
    layer.outputs = node.outputs
    graph.nodes = [other for other in graph.nodes if other is not layer]
    graph.nodes[next(i for i, other in enumerate(graph.nodes) if other is node)] = layer
    return True


def _channel_operands(graph: Graph, known: Sample, layer: Node,
                      node: Node) -> dict[str, np.ndarray] | None:
    """The operands of an element-wise node that are one value a channel of the layer's result;
    None where some operand fits no epilogue."""
    result = layer.outputs[0]
    weight = graph.constants.get(layer.inputs[1])
    channels = channel_count(layer, weight) if weight is not None else None
    found: dict[str, np.ndarray] = {}
    for name in node.inputs:
        array = graph.constants.get(name)
        if name == result:
            continue
        if array is None:
            if not known.from_data(name) or known.dtype(name) != "float32":
                return None
            if not known.equal(name, result):
                return None
        elif array.dtype != np.float32:
            return None
        elif array.size == 1 and array.ndim <= _RANKS[layer.op]:
            continue
        elif channels is not None and _one_a_channel(array, channels, _RANKS[layer.op]):
            found[name] = array.reshape(-1)
        else:
            return None
    return found


def _one_a_channel(array: np.ndarray, channels: int, rank: int) -> bool:
    expected = (1, channels, *[1] * (rank - 2))
    return array.ndim <= rank and (1,) * (rank - array.ndim) + array.shape == expected


def _absorb_bias(graph: Graph, layer: Node, node: Node, channels: dict[str, np.ndarray]) -> bool:
    """A transposed convolution takes a bias and nothing else."""
    if len(layer.inputs) > 2 or len(channels) != 1 or node.attributes["expression"] != apply("add"):
        return False
    (bias,) = channels.values()
    layer.inputs.append(add_constant(graph, f"{node.outputs[0]}.bias", bias))
    layer.outputs = node.outputs
    graph.nodes = [other for other in graph.nodes if other is not node]
    return True
