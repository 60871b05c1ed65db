"""Removes channels without effect: channels with a zero filter, and channels that no layer reads.

The output of a zero filter is the same number at every pixel: the result of the layer's epilogue
for a sum of 0. The number's contribution is added to the biases of the layers that read the
channel. Depthwise convolutions, pools, means of images and reshapes to vectors may come in between.

In two cases, a channel that a layer reads is kept if its number is not 0: when zero padding enters
the sums of an average pool or of the layer that reads the channel, and when the rounding of sums
may flip a sign.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gossamer.expression import Composer, Expression
from gossamer.model.graph import Graph, Node, add_constant, names_of
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.passes.fusion import feeds_sign, output_rows, readers
from gossamer.model.passes.pixels import reduces_image

_MULTIPLE = 8
"""Number of channels that kernels read at a time. If the number of a layer's channels is a
multiple of this number, so is the number of channels that remain."""
TO_VECTORS = ("reshape", "flatten", "squeeze")
_NOTE = re.compile(r"(\d+) channels without effect are left out: .*; ([\d.]+) times less work")


@dataclass(frozen=True)
class _Chain:
    """A layer, and the other layers that have to change when channels of the layer are removed.

    layer: the layer whose output channels may be removed.
    between: the nodes that follow the layer, one after another, and keep its channels separate. (A
    reshape turns each channel into adjacent columns.)
    readers: the layers that read the result of the last node of `between`, or of `layer` if
    `between` is empty.
    """

    layer: Node
    between: tuple[Node, ...]
    readers: tuple[Node, ...]


def drop_dead_channels(graph: Graph, shapes: ShapesByBatch) -> None:
    """Remove channels without effect from convolutions and products.

    The layers that read the removed channels must be convolutions or products too. Adds a note to
    the graph with the number of removed channels and the reduction of work.

    shapes: the shapes of the graph's values.
    """
    removed: dict[str, int] = {}
    positions = _positions(graph, shapes)
    before = _work(graph, positions)
    names = names_of(graph)
    changed = True
    while changed:
        changed = False
        users = readers(graph)
        # from the last layer to the first, because a removed channel may have been the only reader
        # of channels of earlier layers
        for layer in reversed(graph.nodes):
            chain = _chain(graph, layer, users, shapes)
            if chain is None:
                continue
            gone, constants = _without_effect(graph, chain, users)
            if gone.any():
                _remove(graph, chain, gone, constants, names)
                removed[layer.name] = removed.get(layer.name, 0) + int(gone.sum())
                changed = True
    if removed:
        total = sum(removed.values())
        some = ", ".join(f"{count} of {name}" for name, count in list(removed.items())[:3])
        others = len(removed) - 3
        more = f" and {others} more layer" + "s" * (others > 1) if others > 0 else ""
        after = _work(graph, positions)
        less = f"; {before / after:.2f} times less work" if before >= 1.01 * after > 0 else ""
        graph.notes.append(f"{total} channels without effect are left out: {some}{more}{less}")


def less_work(notes: Iterable[str]) -> tuple[str, str] | None:
    """Return the number of removed channels and the factor by which the work shrank.

    Both are text, parsed from the network's notes. Returns None if no note states both.
    """
    found = next(filter(None, map(_NOTE.fullmatch, notes)), None)
    return None if found is None else (found[1], found[2])


def _positions(graph: Graph, shapes: ShapesByBatch) -> dict[str, float]:
    """Return, for each convolution and product, how often it uses each of its weights.

    The numbers are those at the first batch size of `shapes`. Returns {} if a shape is unknown.
    """
    found = {}
    for node in graph.nodes:
        rows = output_rows(graph, node)
        if rows is not None:
            if not (known := shapes.shapes(node.outputs[0])):
                return {}
            found[node.name] = float(np.prod(known[0])) / rows.shape[0]
    return found


def _work(graph: Graph, positions: Mapping[str, float]) -> float:
    """Return the number of multiply-adds of the convolutions and products."""
    return sum(rows.size * positions.get(node.name, 0.0) for node in graph.nodes
               if (rows := output_rows(graph, node)) is not None)


def _chain(graph: Graph, layer: Node, users: dict[str, list[Node]],
           shapes: ShapesByBatch) -> _Chain | None:
    """Return the chain that begins with a layer.

    Returns None if nodes of other kinds read the layer's channels, or if an epilogue reads a
    run-time value.
    """
    if not _has_constants(graph, layer) or _groups(layer) != 1:
        return None
    between: list[Node] = []
    last, is_image = layer, layer.op == "conv2d"
    while True:
        if any(name not in graph.constants for name in last.inputs[2:]):
            return None
        value, = last.outputs
        found = users.get(value, [])
        if not found or any(node.inputs[0] != value or value in node.inputs[1:] for node in found):
            return None
        if len(found) == 1 and layer.op == "conv2d" and _keeps_channels(graph, found[0], shapes):
            last, = found
            between.append(last)
            is_image &= last.op not in TO_VECTORS and last.attributes.get("keepdims", True)
            continue
        if any(not _has_constants(graph, node) or node.op != ("conv2d" if is_image else "gemm")
               or _groups(node) != 1 or node.attributes.get("trans_a") for node in found):
            return None
        return _Chain(layer, tuple(between), tuple(found))


def _keeps_channels(graph: Graph, node: Node, shapes: ShapesByBatch) -> bool:
    """Whether a node keeps channels separate. The node reads images, or vectors of image pixels."""
    if node.op == "reduce":
        return node.attributes["kind"] in ("mean", "max") and reduces_image(node, shapes)
    if node.op in TO_VECTORS:
        known = shapes.shapes(node.inputs[0])
        return bool(known) and shapes.shapes(node.outputs[0]) == [
            (shape[0], math.prod(shape[1:])) for shape in known]
    return node.op == "pool" or (_has_constants(graph, node) and _is_depthwise(graph, node))


def _has_constants(graph: Graph, node: Node) -> bool:
    """Whether a node is a convolution or product with constant weights."""
    return output_rows(graph, node) is not None


def _groups(node: Node) -> int:
    return int(node.attributes.get("groups", 1))


def _is_depthwise(graph: Graph, node: Node) -> bool:
    channels, per_group = graph.constants[node.inputs[1]].shape[:2]
    return node.op == "conv2d" and 1 < _groups(node) == channels and per_group == 1


def _columns(graph: Graph, node: Node, channels: int) -> np.ndarray:
    """Return the weights of a layer as (outputs, channels, taps), a view of the array.

    The taps of a matrix product are the columns into which a reshape turned each channel.
    """
    rows = output_rows(graph, node)
    assert rows is not None
    return rows.reshape(len(rows), channels, -1)


def _without_effect(graph: Graph, chain: _Chain,
                    users: dict[str, list[Node]]) -> tuple[np.ndarray, np.ndarray]:
    """Return which channels of a chain can be removed, and the constant that replaces each."""
    rows = output_rows(graph, chain.layer)
    assert rows is not None
    is_constant = ~rows.reshape(len(rows), -1).any(axis=1)
    is_read = np.any([_columns(graph, node, len(rows)).any(axis=(0, 2)) for node in chain.readers],
                     axis=0)
    constants = _epilogue(graph, chain.layer, np.zeros(len(rows), np.float32))
    for node in chain.between:
        if node.op == "pool":
            is_constant &= window_reaches_image(node) & ((constants == 0) | _ignores_pads(node))
        elif node.op == "conv2d":
            is_constant &= (constants == 0) | (not _distorts_constants(node))
            sums = constants * graph.constants[node.inputs[1]].sum(axis=(1, 2, 3))
            constants = _epilogue(graph, node, sums.astype(np.float32))
    is_constant &= np.isfinite(constants)
    if any(_distorts_constants(node) or feeds_sign(node.outputs[0], users)
           for node in chain.readers):
        # A bias cannot replace nonzero constants. With padding, windows at the border sum fewer
        # constants. With discontinuous epilogues, a bias may change results, because it changes the
        # rounding of sums.
        is_constant &= constants == 0
    gone = is_constant | ~is_read
    live = int((~gone).sum())
    kept = max(1, live)
    if len(gone) % _MULTIPLE == 0:
        kept = -(-kept // _MULTIPLE) * _MULTIPLE
    # keep some channels without effect, so that the layer's channels stay a multiple of _MULTIPLE
    gone[np.flatnonzero(gone)[:kept - live]] = False
    return gone, np.where(is_read, constants, 0).astype(np.float32)


def _is_padded(node: Node) -> bool:
    return any(node.attributes.get("pads", ())) or "auto_pad" in node.attributes


def _distorts_constants(node: Node) -> bool:
    """Whether a bias cannot replace a channel that is one nonzero number at every pixel."""
    return _is_padded(node) or bool(node.attributes["epilogue"].is_discontinuous)


def window_reaches_image(node: Node) -> bool:
    """Whether each window of a pool is certain to contain an element of the image."""
    a = node.attributes
    return not _is_padded(node) or (max(a["dilations"]) == 1 and all(
        pad < size for pad, size in zip(a["pads"], 2 * tuple(a["kernel"]), strict=True)))


def _ignores_pads(node: Node) -> bool:
    """Whether the results of a pool are independent of the zeros around the image."""
    a = node.attributes
    return a["kind"] == "max" or not (
        a["count_include_pad"] and (_is_padded(node) or a["ceil_mode"]))


def _epilogue(graph: Graph, node: Node, sums: np.ndarray) -> np.ndarray:
    """Return the results of a layer's epilogue for one sum per channel."""
    expression: Expression = node.attributes["epilogue"]
    operands = [graph.constants[name] for name in node.inputs[2:]]
    return np.broadcast_to(expression.evaluate(sums, *operands)[0], sums.shape)


def _remove(graph: Graph, chain: _Chain, gone: np.ndarray, constants: np.ndarray,
            names: set[str]) -> None:
    """Remove channels from a chain.

    constants: for each channel, the number that replaces the channel in the layers that read it.
    """
    kept = np.flatnonzero(~gone)
    for node in chain.between:
        if node.op in TO_VECTORS:
            node.op, node.inputs, node.attributes = "flatten", node.inputs[:1], {"axis": 1}
    for node in (chain.layer, *(node for node in chain.between if node.op == "conv2d")):
        axis = 1 if node.op == "gemm" and not node.attributes["trans_b"] else 0
        _replace(graph, node, 1, graph.constants[node.inputs[1]].take(kept, axis), names)
        for index, name in enumerate(node.inputs[2:], 2):
            _replace(graph, node, index, graph.constants[name].take(kept), names)
        if node is not chain.layer:
            node.attributes["groups"] = len(kept)
    for node in chain.readers:
        columns = _columns(graph, node, len(gone))
        lost = (columns.sum(axis=2, dtype=np.float64)[:, gone]
                @ constants[gone].astype(np.float64)).astype(np.float32)
        axis = 0 if node.op == "gemm" and not node.attributes["trans_b"] else 1
        taps = columns.shape[2] if node.op == "gemm" else 1
        left = (kept[:, None] * taps + np.arange(taps)).reshape(-1)
        _replace(graph, node, 1, graph.constants[node.inputs[1]].take(left, axis), names)
        if lost.any():
            _add_bias(node, add_constant(graph, names, f"{node.outputs[0]}.left", lost))


def _replace(graph: Graph, node: Node, index: int, array: np.ndarray, names: set[str]) -> None:
    """Replace a constant input of a node by another constant.

    The old constant stays in the graph, because other nodes may read it.
    """
    node.inputs[index] = add_constant(graph, names, f"{node.inputs[index]}.kept",
                                      np.ascontiguousarray(array))


def _add_bias(node: Node, bias: str) -> None:
    """Add a constant to the sums of a layer, before the other steps of its epilogue."""
    composer = Composer()
    result = node.outputs[0]
    value = composer.operand(result) + composer.operand(bias)
    operands = [composer.operand(name) for name in node.inputs[2:]]
    outputs = composer.inline(node.attributes["epilogue"], [value, *operands])
    operand_names, node.attributes["epilogue"] = composer.build(*outputs, first=result)
    node.inputs[2:] = operand_names[1:]

