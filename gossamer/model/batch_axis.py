"""Tells whether a batch may be run in several parts without changing the numbers."""

from __future__ import annotations

import numpy as np

from gossamer.errors import GossamerError
from gossamer.model.graph import Graph, Node, StaticGraph
from gossamer.model.infer.resolve import resolve

_PROBE = 7
"""A batch size that no network has by chance in its other dimensions."""


def mixing_node(graph: Graph, batch: int) -> str | None:
    """Returns what makes a row of the outputs depend on the other rows of its batch, as text that
    starts with the node: "ReduceMean 'mean' works across axis 0". None where every row depends
    on its own input only.

    The test is careful rather than exact: a node that moves the batch out of dimension 0 counts,
    even where another moves it back.
    """
    mixing, by_row = along_batch(graph, batch)
    if mixing is not None:
        return mixing
    for info in graph.outputs:
        if info.name not in by_row:
            return f"output {info.name!r} has no row for each input"
    return None


def along_batch(graph: Graph, batch: int) -> tuple[str | None, set[str]]:
    """Returns the node that mixes a batch, as text, or None; and, where there is none, the names
    of the outputs that have one or several rows for each input. The other outputs are the same
    whatever the batch is."""
    static = None
    for size in (_PROBE, batch):
        try:
            static = resolve(graph, size)
            break
        except GossamerError:  # this size cannot run; where it is asked for, the plan says why
            continue
    if static is None:
        return None, {info.name for info in graph.outputs}
    with_batch = {info.name for info in graph.inputs if info.shape[:1] == (None,)}
    for node in static.nodes:
        if problem := _problem(static, node, with_batch):
            return f"{node.source or node.name} {problem}", set()
        if with_batch.intersection(node.inputs):
            with_batch.update(node.outputs)
    return None, with_batch.intersection(info.name for info in graph.outputs)


def _problem(static: StaticGraph, node: Node, with_batch: set[str]) -> str | None:
    """Returns how a node mixes the rows along dimension 0 of its inputs; None where it does not."""
    inputs = [name for name in node.inputs if name]
    batched = [name for name in inputs if name in with_batch]
    if not batched:
        return None
    attributes = node.attributes
    rank = len(static.shapes[node.inputs[0]])
    first_batched = node.inputs[0] in with_batch
    axis = attributes.get("axis", 0) % rank if rank else 0
    if node.op == "reduce" and 0 in (index % rank for index in attributes["axes"] or (0,)):
        return "reduces axis 0, along which the inputs of a batch lie"
    if node.op in ("softmax", "concat", "split") and axis == 0:
        return "works across axis 0, along which the inputs of a batch lie"
    if node.op == "gather" and axis == 0 and first_batched:
        return "picks along axis 0, along which the inputs of a batch lie"
    if node.op == "gather" and axis and node.inputs[1] in with_batch:
        return "moves the batch out of axis 0"
    if node.op == "slice" and 0 in (index % rank for index in attributes["axes"]):
        return "cuts along axis 0, along which the inputs of a batch lie"
    if node.op == "pad" and (attributes["pads"][0] or attributes["pads"][rank]):
        return "pads axis 0, along which the inputs of a batch lie"
    if node.op == "transpose" and attributes["permutation"][0] != 0:
        return "moves the batch out of axis 0"
    if node.op in ("gemm", "matmul"):
        return _product(static, node, with_batch)
    if node.op in ("conv2d", "conv_transpose2d") and node.inputs[1] in with_batch:
        return "takes its weights from the batch"
    shape = static.shapes[node.outputs[0]]
    if node.op == "reshape" and (not shape or shape[0] % max(static.batch, 1)):
        return "moves the batch out of axis 0"
    if node.op in ("elementwise", "expand"):
        if any(len(static.shapes[name]) < len(shape) for name in batched):
            return "lays the batch along another axis"
        for name in inputs:
            constant = static.constants.get(name)
            if (constant is not None and constant.ndim == len(shape) and len(constant) > 1
                    and not np.array_equal(constant, np.broadcast_to(constant[:1],
                                                                     constant.shape))):
                return "treats the inputs of a batch by their place in it"
    return None


def _product(static: StaticGraph, node: Node, with_batch: set[str]) -> str | None:
    """Returns how a matrix product mixes the rows of a batch; None where it does not."""
    left, right = node.inputs[:2]
    ranks = len(static.shapes[left]), len(static.shapes[right])
    rank = max(ranks)
    mixed = "multiplies the inputs of a batch with each other"
    if node.attributes.get("trans_a") and left in with_batch:
        return mixed
    if left in with_batch and (ranks[0] < 2 or ranks[0] < rank):
        return mixed
    if right in with_batch and (ranks[1] < 3 or ranks[1] < rank):
        return mixed
    return None
