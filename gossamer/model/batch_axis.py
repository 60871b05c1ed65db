"""Tells whether a batch may be run in several parts without changing the numbers."""

from __future__ import annotations

from gossamer.errors import GossamerError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.opset.registry import OPSET

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
        if not with_batch.intersection(node.inputs):
            continue
        if mixing := OPSET[node.op].mixes(static, node, with_batch):
            return f"{node.source or node.name} {mixing}", set()
        with_batch.update(node.outputs)
    return None, with_batch.intersection(info.name for info in graph.outputs)
