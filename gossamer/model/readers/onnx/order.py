"""Lists the nodes on which the outputs of an ONNX graph depend, in an order in which the nodes can
be computed."""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx

from gossamer.errors import ModelError, quoted

SCOPES = "pkg.torch.onnx.name_scopes"
"""The metadata of a node in which PyTorch keeps its modules."""
_QUOTED = re.compile(r"'([^']*)'")


def in_order(graph: onnx.GraphProto, outputs: Iterable[str], file: str) -> list[onnx.NodeProto]:
    """Returns the nodes on which the outputs depend, each after the nodes whose results it reads.
    The nodes keep the file's order where it fulfils this condition.

    Raises ModelError where two nodes make one value, or where nodes form a cycle.
    """
    makers: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in makers:
                raise ModelError(f"{file}: {source(node)}: makes {quoted(name)}, a name that is "
                                 "already taken")
            makers[name] = index
    before = [{makers[name] for name in reads(node) if name in makers} for node in graph.node]
    needed: set[int] = set()
    waiting = [makers[name] for name in outputs if name in makers]
    while waiting:
        index = waiting.pop()
        if index not in needed:
            needed.add(index)
            waiting += before[index]
    ordered = stable_order(before, needed)
    if len(ordered) < len(needed):
        first = graph.node[min(needed.difference(ordered))]
        raise ModelError(f"{file}: {source(first)}: needs its own result, or that of nodes that "
                         "need their own: the nodes form a cycle; export the model again")
    return [graph.node[index] for index in ordered]


def stable_order(before: Sequence[Collection[int]], needed: Iterable[int]) -> list[int]:
    """Returns numbers of nodes in an order in which they can be computed; of nodes that can be
    computed next, the smallest number comes first. Nodes of a cycle, and nodes that depend on a
    cycle, are left out.

    before: for each node, the numbers of the nodes whose results it reads.
    needed: the numbers of the nodes that are ordered.
    """
    missing = {index: len(before[index]) for index in needed}
    readers: dict[int, list[int]] = {index: [] for index in missing}
    for index in missing:
        for maker in before[index]:
            readers[maker].append(index)
    ready = [index for index in missing if not missing[index]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return ordered


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yields the values that a node reads, and the values from outside that graphs in its
    attributes read."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            continue
        for graph in (attribute.g, *attribute.graphs):
            inner = {info.name for info in graph.input}
            inner.update(tensor.name for tensor in graph.initializer)
            inner.update(name for entry in graph.node for name in entry.output)
            for name in (*(name for entry in graph.node for name in reads(entry)),
                         *(info.name for info in graph.output)):
                if name not in inner:
                    yield name


def layer_name(node: onnx.NodeProto) -> str:
    """Returns the name of a node, or the path of the module of PyTorch that it was exported from,
    with its op, such as "layer1.0.conv1/Conv"; "" where it has neither."""
    scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    # "['', 'layer1', 'layer1.0', 'conv2d_2']": the modules, each by its path, and the call
    modules = _QUOTED.findall(scopes)[:-1]
    return f"{modules[-1]}/{node.op_type}" if modules and modules[-1] else node.name


def source(node: onnx.NodeProto) -> str:
    """Returns op and name of a node, for messages."""
    name = layer_name(node) or next(iter(node.output), "")
    return f"{quoted(node.op_type)[1:-1]} {quoted(name)}"
