"""Moves a choice of channels into the weights of the convolutions that read the chosen channels.

A 1x1 convolution then reads all channels, with weights of 0 for the channels that were not chosen.
On a GPU the additional channels take less time than a kernel that copies the chosen channels.
"""

from __future__ import annotations

import numpy as np

from gossamer.model.graph import Graph, Node, add_constant, names_of
from gossamer.model.infer.shapes_by_batch import ShapesByBatch
from gossamer.model.opset.signs import are_scaled_signs
from gossamer.model.passes.batch_norm import output_rows, readers

_MOST_CHANNELS = 2
"""The most channels that a convolution may read, as a multiple of the number of chosen channels.
With twice the chosen channels, the convolution reads as much as the gather and the convolution read
together before."""


def choose_channels_by_weights(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Removes each gather that chooses channels of images by constant indices, if only 1x1
    convolutions read it, and gives these convolutions weights for all channels. Returns whether the
    graph was changed; nodes that no output needs any more stay in the graph."""
    users, names = readers(graph), names_of(graph)
    changed = False
    for node in graph.nodes:
        order = _order(graph, node, shapes)
        if order is None:
            continue
        channels, found = order
        layers = users.get(node.outputs[0], [])
        if not layers or not all(_takes(graph, layer, node.outputs[0], found.size)
                                 for layer in layers):
            continue
        for layer in layers:
            weight = graph.constants[layer.inputs[1]]
            columns = np.zeros((channels, len(weight), 1, 1), weight.dtype)
            np.add.at(columns, found, weight.swapaxes(0, 1))
            layer.inputs[:2] = [node.inputs[0], add_constant(
                graph, names, f"{layer.outputs[0]}.all channels",
                np.ascontiguousarray(columns.swapaxes(0, 1)))]
        changed = True
    return changed


def _order(graph: Graph, node: Node, shapes: ShapesByBatch) -> tuple[int, np.ndarray] | None:
    """Returns the number of channels from which a gather chooses, and the chosen channels; None for
    other nodes, and where a gather chooses few of the channels."""
    if node.op != "gather" or node.attributes.get("axis", 0) not in (1, -3) or (
            shapes.rank(node.inputs[0]) != 4):
        return None
    indices = graph.constants.get(node.inputs[1])
    sizes = {shape[1] for shape in shapes.shapes(node.inputs[0])}
    if indices is None or indices.ndim != 1 or len(sizes) != 1:
        return None
    channels = sizes.pop()
    if channels > _MOST_CHANNELS * indices.size or (
            not ((-channels <= indices) & (indices < channels)).all()):
        return None
    return channels, indices % channels


def _takes(graph: Graph, layer: Node, x: str, chosen: int) -> bool:
    """Returns whether a node is a 1x1 convolution of x with constant weights for the chosen
    channels. Returns False for weights that are signs with one scale for each channel: they can be
    computed on bits, and additional weights of 0 would prevent this."""
    if layer.op != "conv2d" or layer.inputs[0] != x or x in layer.inputs[1:] or (
            layer.attributes.get("groups", 1) != 1):
        return False
    rows = output_rows(graph, layer)
    return rows is not None and rows.shape[1:] == (chosen, 1, 1) and not are_scaled_signs(rows)
