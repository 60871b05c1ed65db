"""The batch size of a network where none is stated, and whether a batch may be run in several parts
without a change of the results."""

from __future__ import annotations

from gossamer.errors import GossamerError
from gossamer.model.graph import Graph, StaticGraph
from gossamer.model.infer.images_apart import images_apart
from gossamer.model.infer.resolve import resolve

_PROBES = (7, 5)
"""Batch sizes at which the shapes of the network are inferred, one after the other. A dimension
that is 7 at the first and 5 at the second follows the batch; no dimension of a fixed size does
that."""


def default_batch(graph: Graph) -> int:
    """Returns the batch size where a caller states none: 1, or the batch size for which the file
    was written where the network does not run at 1."""
    if graph.fixed_batch is None:
        return 1
    try:
        resolve(graph, 1)
    except GossamerError:
        return graph.fixed_batch
    return 1


def mixing_node(graph: Graph, batch: int) -> str | None:
    """Returns why a row of the outputs depends on other rows of its batch, as text that starts with
    the node: "ReduceMean 'mean' works across axis 0". Returns None where every row depends on its
    own input only."""
    mixing, by_row = along_batch(graph, batch)
    if mixing is not None:
        return mixing
    for info in graph.outputs:
        if info.name not in by_row:
            return f"output {info.name!r} has no row for each input"
    return None


def along_batch(graph: Graph, batch: int) -> tuple[str | None, set[str]]:
    """Returns two values. The first is the reason why rows of a batch may depend on each other, as
    text; None where every row depends on its own input only. The second is the names of the outputs
    that have one or several rows for each input; empty where the first value is text. The other
    outputs do not depend on the batch."""
    if graph.tail is not None:
        return "the end of the network, which ONNX Runtime computes, may mix a batch", set()
    statics: list[StaticGraph] = []
    refusal = ""
    for size in dict.fromkeys((*_PROBES, batch, graph.batch_or(1))):
        try:
            statics.append(resolve(graph, size))
        except GossamerError as error:  # a plan of this batch size raises this error again
            refusal = refusal or str(error)
        if len(statics) == 2:
            return images_apart(*statics)
    outputs = {info.name for info in graph.outputs}
    if not statics:
        return None, outputs
    (static,) = statics
    if static.batch == 1 and all(static.shapes[name][:1] == (1,) for name in outputs):
        # the network takes one image at a time, and no other batch size
        return None, outputs
    return refusal, set()
