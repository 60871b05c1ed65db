"""Orders the nodes of an ONNX graph, and groups nodes that are computed together."""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx

from gossamer.errors import ModelError, quoted
from gossamer.onnx_model import subgraphs

SCOPES = "pkg.torch.onnx.name_scopes"
"""Key in a node's metadata: the list of PyTorch modules from which the node was exported."""
_QUOTED = re.compile(r"'([^']*)'")


def in_order(graph: onnx.GraphProto, outputs: Iterable[str], file: str) -> list[onnx.NodeProto]:
    """Return the nodes on which the outputs depend, in an order in which they can be computed.

    The nodes keep the file's order where possible. Raises ModelError if two nodes make one value,
    or if nodes form a cycle.
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
        raise ModelError(f"{file}: {source(first)}: is in a cycle of nodes, or depends on one; "
                         "export the model again")
    return [graph.node[index] for index in ordered]


def stable_order(before: Sequence[Collection[int]], needed: Iterable[int]) -> list[int]:
    """Return the indices of nodes in an order in which the nodes can be computed.

    Among nodes that can be computed next, the smallest index comes first. Nodes of a cycle, and
    nodes that depend on a cycle, are excluded.

    before: for each node, the indices of the nodes that make its inputs.
    needed: the indices of the nodes to order.
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
    """Yield the values that a node reads, including outer values that its subgraphs read."""
    yield from filter(None, node.input)
    for graph in subgraphs(node):
        inner = {info.name for info in graph.input}
        inner.update(tensor.name for tensor in graph.initializer)
        inner.update(name for entry in graph.node for name in entry.output)
        for name in (*(name for entry in graph.node for name in reads(entry)),
                     *(info.name for info in graph.output)):
            if name not in inner:
                yield name


def node_name(node: onnx.NodeProto) -> str:
    """Return a node's name in reports; the name need not be unique.

    The name is the path of the PyTorch module from which the node was exported, with the node's op,
    such as "layer1.0.conv1/Conv"; else the node's name in the file; else its op and first output.
    """
    return _given_name(node) or f"{node.op_type}_{next(iter(node.output), '')}"


def _given_name(node: onnx.NodeProto) -> str:
    scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    # "['', 'layer1', 'layer1.0', 'conv2d_2']": the path of each module, then the call
    *modules, call = _QUOTED.findall(scopes) or [""]
    if "batch_norm" in call and len(node.input) > 1 and node.input[1].endswith(".weight"):
        # this node is a layer into which the exporter folded the batch norm that follows it
        modules.append(node.input[1].removesuffix(".weight"))
    return f"{modules[-1]}/{node.op_type}" if modules and modules[-1] else node.name


def source(node: onnx.NodeProto) -> str:
    """Return op and name of a node, for messages."""
    name = _given_name(node) or next(iter(node.output), "")
    return f"{quoted(node.op_type)[1:-1]} {quoted(name)}"


class Clusters:
    """Groups of steps. The steps of a group can be computed together, as one step.

    A step is the computation of one node, which reads some values and makes others. Steps are added
    in an order in which they can be computed. A group is connected, and no path leads from the
    group through steps outside of it back into the group.
    """

    def __init__(self) -> None:
        self._reads: list[Sequence[str]] = []
        self._makers: dict[str, int] = {}
        self._group: dict[int, int] = {}
        self._members: dict[int, list[int]] = {}

    def add(self, reads: Iterable[str], makes: Iterable[str]) -> int:
        """Add a step, and return its number."""
        number = len(self._reads)
        self._reads.append(tuple(dict.fromkeys(reads)))
        self._makers.update(dict.fromkeys(makes, number))
        return number

    def join(self, step: int) -> None:
        """Make a group of the step, and merge into it the groups whose values the step reads.

        The step must be the last one that was added. A group is not merged if a path through steps
        outside of both groups leads from one of the two groups to the other.
        """
        group = step
        self._group[step], self._members[step] = step, [step]
        for other in dict.fromkeys(self._group_of(name) for name in self._reads[step]):
            if other is not None and not self._leads(other, group) and not self._leads(
                    group, other):
                for member in self._members.pop(other):
                    self._group[member] = group
                    self._members[group].append(member)
        self._members[group].sort()

    def group_of(self, step: int) -> int:
        """Return the group of a step that was joined."""
        return self._group[step]

    def groups(self) -> list[list[int]]:
        """Return the steps of each group, in order."""
        return sorted(self._members.values())

    def independent(self, groups: Sequence[Collection[int]]) -> list[list[int]]:
        """Return lists of indices of groups that can be computed together in one step.

        The depth of a group is the number of groups on the longest path to it. All groups of a list
        have the same depth, so none of them depends on another.

        groups: some of the groups; steps of other groups are computed alone.
        """
        # the first step of a group represents the group
        first_step = list(range(len(self._reads)))
        for group in groups:
            for step in group:
                first_step[step] = min(group)
        before: list[set[int]] = [set() for _ in first_step]
        for step, first in enumerate(first_step):
            before[first].update({first_step[maker] for maker in self._before(step)} - {first})
        indices = {min(group): index for index, group in enumerate(groups)}
        depth: dict[int, int] = {}
        found: dict[int, list[int]] = {}
        for first in stable_order(before, set(first_step)):
            depth[first] = max((depth[other] for other in before[first]), default=0)
            if first in indices:
                found.setdefault(depth[first], []).append(indices[first])
                depth[first] += 1
        return [sorted(together) for together in found.values()]

    def maker(self, name: str) -> int | None:
        """Return the step that makes a value; None if no step makes it."""
        return self._makers.get(name)

    def _group_of(self, name: str) -> int | None:
        maker = self._makers.get(name)
        return None if maker is None else self._group.get(maker)

    def _leads(self, first: int, second: int) -> bool:
        """Return whether a path leads from one group to another through steps outside of both."""
        inside = {*self._members[first], *self._members[second]}
        waiting = [maker for member in self._members[second] for maker in self._before(member)
                   if maker not in inside]
        seen: set[int] = set()
        while waiting:
            step = waiting.pop()
            if step in seen:
                continue
            seen.add(step)
            for other in self._members.get(self._group.get(step, -1), [step]):
                for maker in self._before(other):
                    if maker in self._members[first]:
                        return True
                    if maker not in inside:
                        waiting.append(maker)
        return False

    def _before(self, step: int) -> list[int]:
        return [self._makers[name] for name in self._reads[step] if name in self._makers]
