"""Fuses batch norms and element-wise nodes into the convolution or matrix product before them.

A batch norm is folded into the layer's weights. Chains of element-wise nodes are merged and moved
into the layer's epilogue.

In two cases, a batch norm is not folded but becomes element-wise arithmetic:
- if a sign depends on the result of the batch norm without a convolution or product in between,
  because rounding the folded weights could flip the sign;
- if the weights are scaled signs (in each channel, all weights have the same finite nonzero
  magnitude) and folding would make a magnitude 0 or infinite, because algorithms on packed bits
  could then no longer compute the layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gossamer.expression import Composer, Value, apply
from gossamer.facts import are_scaled_signs
from gossamer.model.graph import Graph, Node, add_constant, names_of
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.opset.normalisation import AFFINE, affine_constants, batch_norm_constants
from gossamer.model.opset.registry import OPSET

MOST_STEPS = 256
"""Maximum number of steps of a merged expression. Every step adds code to one kernel, and longer
expressions do not run faster."""
_LAYERS = ("conv2d", "conv_transpose2d", "gemm")


def readers(graph: Graph) -> dict[str, list[Node]]:
    """Return the nodes that read each value, each node once.

    Each output of the graph also has a reader with the op "output", which is no node of the graph.
    """
    nodes: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            nodes.setdefault(name, []).append(node)
    for info in graph.outputs:
        nodes.setdefault(info.name, []).append(Node("output", info.name, [info.name], []))
    return nodes


def fold_batch_norms(graph: Graph, shapes: ShapesByBatch) -> None:
    """Fold batch norms into the weights and biases of the layers before them.

    The batch norm must be the only reader of the result of a convolution or product. Weights and
    biases are computed in float64.
    """
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
        # channels lie along axis 1 in a batch norm, and along the last axis in a product
        if layer.op == "gemm" and (shapes.rank(norm.inputs[0]) or 2) > 2:
            continue
        if _loses_signs(graph, layer, norm):
            continue
        if not feeds_sign(norm.outputs[0], users):
            _fold(graph, names, layer, norm)
            producers[norm.outputs[0]] = layer
            folded.add(id(norm))
    graph.nodes = [node for node in graph.nodes if id(node) not in folded]


def channel_count(layer: Node, weight: np.ndarray) -> int | None:
    """Return the number of output channels of a layer (columns for a gemm).

    Returns None for a weight that resolve() will refuse.
    """
    if weight.ndim != (2 if layer.op == "gemm" else 4):
        return None
    if layer.op == "conv2d":
        return weight.shape[0]
    if layer.op == "conv_transpose2d":
        return weight.shape[1] * layer.attributes["groups"]
    return weight.shape[0 if layer.attributes["trans_b"] else 1]


def output_rows(graph: Graph, layer: Node) -> np.ndarray | None:
    """Return the weights of a convolution or product, one row per output channel.

    Returns None for other nodes, and for weights that are not a float32 constant or that resolve()
    will refuse.
    """
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


def _loses_signs(graph: Graph, layer: Node, norm: Node) -> bool:
    """Return whether weights are scaled signs now, but not after folding a batch norm into them."""
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
    """Turn the remaining batch norms into element-wise (x - mean) * scale + shift.

    Only batch norms that shape inference has checked are changed; resolve() replaces all others.
    """
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


@dataclass
class _Chain:
    """Element-wise nodes that become one node.

    nodes: the nodes from the last to the first; nodes outside of the chain read only the result of
    the last node.
    steps: total number of steps in the expressions of the nodes.
    """

    nodes: list[Node]
    steps: int


def fuse_chains(graph: Graph, shapes: ShapesByBatch) -> None:
    """Merge chains of element-wise nodes with results of the same shape.

    Nodes outside of a chain read only its last node, so nothing is computed twice. No merged
    expression has more than MOST_STEPS steps.

    A node that rounds the result of a layer does not join a chain that also depends on other layers
    or inputs. Such a chain could be fused into the epilogue of another layer. The first layer would
    then have to store its sums, which need more memory than the rounded values.
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
    """Return the layer on which each element-wise result depends.

    The keys are the names of results. A layer is a convolution or product, denoted by the name of
    its own result. Results that also depend on other run-time values are absent.
    """
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
    """Return the chain that contains all readers of a node's result.

    Returns None if there is no such chain, or if the node may not join it.
    """
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
    """Merge the expressions of a chain's nodes into the expression of its last node.

    nodes: the chain's nodes from the last to the first.
    """
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
    """Move element-wise nodes into the epilogues of the layers before them.

    A node is moved only if no other node reads the result of the layer, a convolution or product.
    The layer takes the node's position in the order of nodes, because the node's other operands may
    be computed after the layer's old position.
    """
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
    """Fuse the only reader of a layer's result into the layer's epilogue, and return the reader.

    Returns None if no fusion is possible.
    """
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
    """Return, by name, a node's operands that are constants with one value per channel.

    The channels are the channels of the layer's result. Returns None if the node has an operand
    that an epilogue cannot read.
    """
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
        elif channels is not None and _one_per_channel(array, channels, rank, channel_axis):
            channel_constants[name] = array.reshape(-1)
        else:
            return None
    return channel_constants


def _one_per_channel(array: np.ndarray, channels: int, rank: int, channel_axis: int) -> bool:
    """Return whether an array broadcasts to a layer's result as one value per channel."""
    expected = [1] * rank
    expected[channel_axis] = channels
    return array.ndim <= rank and [1] * (rank - array.ndim) + list(array.shape) == expected


def _absorb_bias(graph: Graph, layer: Node, node: Node, channels: dict[str, np.ndarray],
                 names: set[str]) -> bool:
    """Fuse the addition of a bias into a transposed convolution, which supports no other epilogue.

    Returns whether the fusion was possible.
    """
    if len(layer.inputs) > 2 or len(channels) != 1 or node.attributes["expression"] != apply("add"):
        return False
    (bias,) = channels.values()
    layer.inputs.append(add_constant(graph, names, f"{node.outputs[0]}.bias", bias))
    layer.outputs = node.outputs
    return True
