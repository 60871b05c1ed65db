"""Fuses element-wise nodes with each other, and into the epilogues of convolutions and matrix
products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gossamer.expression import apply
from gossamer.model.compose import Composer, Value
from gossamer.model.graph import Graph, Node, add_constant, names_of
from gossamer.model.infer.shapes_by_batch import ShapesByBatch
from gossamer.model.passes.batch_norm import channel_count, readers

MOST_STEPS = 256
"""The most steps of an expression into which nodes are merged. Every step adds code to one kernel,
and a longer expression brings no further gain."""
_LAYERS = ("conv2d", "conv_transpose2d", "gemm")


@dataclass
class _Chain:
    """Element-wise nodes that become one node.

    nodes: the nodes from the last to the first; nodes outside of the chain read results of the last
    node only.
    steps: number of steps in the expressions of all nodes together.
    """

    nodes: list[Node]
    steps: int


def fuse_chains(graph: Graph, shapes: ShapesByBatch) -> None:
    """Merge chains of element-wise nodes of the same shape.

    Other nodes read only the last node of a chain, so that nothing is computed twice. No merged
    expression is longer than MOST_STEPS.

    A node that rounds the result of a layer joins no chain whose result also depends on other
    layers or inputs. Such a chain may go into the epilogue of one of those other layers. The layer
    whose result is rounded would then have to store its sums, which take more memory than the
    rounded values.
    """
    users, layers = readers(graph), _layers_of_values(graph, shapes)
    chains: dict[int, _Chain] = {}
    for node in reversed(graph.nodes):
        if node.op != "elementwise":
            continue
        steps = len(node.attributes["expression"].steps)
        chain = _chain_of_readers(node, users, chains, shapes)
        if chain is None or chain.steps + steps > MOST_STEPS or (_rounds(node) and (
                layers.get(node.outputs[0]) != layers.get(chain.nodes[0].outputs[0]))):
            chains[id(node)] = _Chain([node], steps)
        else:
            chain.nodes.append(node)
            chain.steps += steps
            chains[id(node)] = chain
    merged = {id(node) for chain in chains.values() for node in chain.nodes[1:]}
    graph.nodes = [node for node in graph.nodes if id(node) not in merged]
    for node in graph.nodes:
        if id(node) in chains:
            _merge(chains[id(node)].nodes)


def _layers_of_values(graph: Graph, shapes: ShapesByBatch) -> dict[str, str]:
    """Return the name of a layer's result for each value that element-wise nodes compute from
    constants and this result alone. The layers are convolutions and products."""
    layers: dict[str, str] = {}
    for node in graph.nodes:
        if node.op in ("conv2d", "gemm"):
            layers[node.outputs[0]] = node.outputs[0]
        elif node.op == "elementwise":
            read = {layers.get(name) for name in node.inputs if shapes.depends_on_data(name)}
            layer = read.pop() if len(read) == 1 else None
            if layer is not None:
                layers |= dict.fromkeys(node.outputs, layer)
    return layers


def _rounds(node: Node) -> bool:
    """Return whether an element-wise node rounds its result to an integer."""
    expression = node.attributes["expression"]
    index = expression.outputs[0] - expression.inputs
    return index >= 0 and expression.steps[index].function == "round"


def _chain_of_readers(node: Node, users: dict[str, list[Node]], chains: dict[int, _Chain],
                      shapes: ShapesByBatch) -> _Chain | None:
    """Return the chain to which all readers of a node's result belong, where the node may join
    this chain; else None."""
    if len(node.outputs) != 1:
        return None
    (name,) = node.outputs
    of_readers = {id(chain): chain for reader in users.get(name, ())
                  for chain in [chains.get(id(reader))]}
    chain = next(iter(of_readers.values())) if len(of_readers) == 1 else None
    if chain is None or not shapes.depends_on_data(name):
        return None
    result = chain.nodes[0].outputs[0]
    fits = shapes.equal(name, result) and shapes.dtype(name) == shapes.dtype(result) == "float32"
    return chain if fits else None


def _merge(nodes: list[Node]) -> None:
    """Put the expressions of a chain's nodes into the expression of the chain's last node. nodes:
    the chain's nodes from the last to the first."""
    if len(nodes) == 1:
        return
    composer = Composer()
    values: dict[str, Value] = {}
    for node in reversed(nodes):
        arguments = [values[name] if name in values else composer.operand(name)
                     for name in node.inputs]
        results = composer.inline(node.attributes["expression"], arguments)
        values.update(zip(node.outputs, results, strict=True))
    last = nodes[0]
    last.inputs, last.attributes["expression"] = composer.build(*results)


def fuse_epilogues(graph: Graph, shapes: ShapesByBatch) -> None:
    """Move an element-wise node that is the only reader of a convolution or product into the
    layer's epilogue. The layer takes the node's place in the order of nodes, since the node's other
    operands may be computed after the layer's old place."""
    users, names = readers(graph), names_of(graph)
    layers: dict[int, Node] = {}
    moved: set[int] = set()
    for layer in [node for node in reversed(graph.nodes) if node.op in _LAYERS]:
        last = layer
        while (node := _absorbed(graph, shapes, layer, users, names)) is not None:
            moved.add(id(last))
            last = node
            for name in node.inputs:
                users[name] = [layer if user is node else user for user in users.get(name, ())]
        layers[id(last)] = layer
    graph.nodes = [layers.get(id(node), node) for node in graph.nodes if id(node) not in moved]


def _absorbed(graph: Graph, shapes: ShapesByBatch, layer: Node, users: dict[str, list[Node]],
              names: set[str]) -> Node | None:
    """Fuse the only reader of the layer's result into the layer's epilogue, and return this
    reader; None where no fusion is possible."""
    result = layer.outputs[0]
    if len(users.get(result, ())) != 1:
        return None
    (node,) = users[result]
    if node.op != "elementwise" or len(node.outputs) != 1:
        return None
    channels = _channel_operands(graph, shapes, layer, node)
    if channels is None:
        return None
    if layer.op == "conv_transpose2d":
        return node if _absorb_bias(graph, layer, node, channels, names) else None
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
                add_constant(graph, names, f"{name}.channels", channels[name])))
        else:
            arguments.append(composer.operand_or_constant(name, graph.constants.get(name)))
    outputs = composer.inline(node.attributes["expression"], arguments)
    operand_names, layer.attributes["epilogue"] = composer.build(*outputs, first=result)
    layer.inputs[2:] = operand_names[1:]
    layer.outputs = node.outputs
    return node


def _channel_operands(graph: Graph, shapes: ShapesByBatch, layer: Node,
                      node: Node) -> dict[str, np.ndarray] | None:
    """Return, by name, the operands of an element-wise node that are constants with one value for
    each channel of the layer's result; None where an epilogue cannot read one of the operands."""
    result = layer.outputs[0]
    weight = graph.constants.get(layer.inputs[1])
    channels = channel_count(layer, weight) if weight is not None else None
    rank = (shapes.rank(result) or 2) if layer.op == "gemm" else 4
    channel_axis = rank - 1 if layer.op == "gemm" else 1
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
        elif array.size == 1 and array.ndim <= rank:
            continue
        elif channels is not None and _one_a_channel(array, channels, rank, channel_axis):
            channel_constants[name] = array.reshape(-1)
        else:
            return None
    return channel_constants


def _one_a_channel(array: np.ndarray, channels: int, rank: int, channel_axis: int) -> bool:
    """Return whether an array broadcasts to a layer's result as one value a channel."""
    expected = [1] * rank
    expected[channel_axis] = channels
    return array.ndim <= rank and [1] * (rank - array.ndim) + list(array.shape) == expected


def _absorb_bias(graph: Graph, layer: Node, node: Node, channels: dict[str, np.ndarray],
                 names: set[str]) -> bool:
    """Fuse a node that adds a bias into a transposed convolution, which has no other epilogue.
    Returns whether the fusion was possible."""
    if len(layer.inputs) > 2 or len(channels) != 1 or node.attributes["expression"] != apply("add"):
        return False
    (bias,) = channels.values()
    layer.inputs.append(add_constant(graph, names, f"{node.outputs[0]}.bias", bias))
    layer.outputs = node.outputs
    return True
