"""Parts: turns the nodes that gossamer does not compute into models for ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from gossamer.errors import UnsupportedError, quoted
from gossamer.model.graph import Graph, Node, Tail, ValueInfo, names_of, unused_name
from gossamer.model.opset.onnx_nodes import FOLDED, NODES
from gossamer.model.readers.onnx.order import Clusters, reads, source, stable_order
from gossamer.model.readers.onnx.value_types import (
    OTHER_SIZES,
    TYPES,
    FileTypes,
    Probe,
    known_shape,
)
from gossamer.onnx_model import MOST_PARAMETERS, subgraphs

_DOMAINS = frozenset(("", "ai.onnx", "ai.onnx.ml", "com.microsoft"))
"""The domains with operators that ONNX Runtime supports."""
_CAST_OPSET = 17
"""The opset of added nodes in a file without operators of ONNX's own domain. All supported versions
of ONNX Runtime support this opset; they may not support the newest opset of the installed onnx."""
_FLOAT64 = "which is float64; set a precision, such as fp32, to compute it in float32"
"""The end of a reason, after the name of a float64 value."""
_REFUSED = frozenset(("EPContext", "ImageDecoder"))
"""Operators that are refused, because EPContext names another file, and ImageDecoder decodes
pictures."""


@dataclass(frozen=True)
class Outcome:
    """The result of converting a node of the file.

    proto: the node.
    nodes: the nodes of gossamer's graph that replace it.
    reason: why ONNX Runtime computes the node instead; "" if it does not.
    """

    proto: onnx.NodeProto
    nodes: Sequence[Node]
    reason: str


class Parts:
    """Nodes of a file that ONNX Runtime computes.

    Connected nodes are grouped into one part where possible; groups that do not depend on each
    other are then merged. A value whose shape depends on the data cannot leave its part, so all
    nodes that read it belong to the part too. The same holds for a float64 value if `keeps_float64`
    is set.
    """

    def __init__(self, graph: Graph, types: FileTypes, keeps_float64: bool = False) -> None:
        self._graph = graph
        self._types = types
        self._keeps_float64 = keeps_float64
        self.probe = Probe(graph)
        self._clusters = Clusters()
        self._outcomes: Sequence[Outcome] = ()
        # types of the values that cannot leave their part, because only ONNX Runtime supports them
        self._confined: dict[str, onnx.TypeProto] = {}
        self._functions = {(function.domain, function.name)
                           for function in types.model.functions}

    def reason(self, node: onnx.NodeProto) -> str:
        """Return why a value that a node reads or makes requires ONNX Runtime, else ""."""
        for name in reads(node):
            if name in self._confined:
                is_float64 = self._confined[name].tensor_type.elem_type == TensorProto.DOUBLE
                return f"reads {quoted(name)}, " + (
                    _FLOAT64 if is_float64 and self._keeps_float64
                    else "whose shape or type gossamer does not know")
        for name in (*reads(node), *filter(None, node.output)):
            if self._is_kept(name):
                return f"has {quoted(name)}, {_FLOAT64}"
        return ""

    def is_known(self, node: onnx.NodeProto) -> bool:
        """Return whether the results of a node follow from shapes and constants.

        If so, gossamer can compute the results without an algorithm. Returns False if a result is a
        float64 output of the network, because the result would become float32.
        """
        outputs = {info.name for info in self._graph.outputs}
        return node.op_type in FOLDED and node.domain in ("", "ai.onnx") and all(
            self.probe.known(name) is not None for name in filter(None, node.input)) and not any(
            name in outputs and self._is_kept(name) for name in node.output)

    def truth(self, name: str) -> bool | None:
        """Return the value of a condition that follows from shapes and constants.

        Returns None for other conditions, and if the value differs between two sizes of the open
        dimensions.
        """
        value = self.probe.known(name)
        if value is None or value.size != 1:
            return None
        if not self.probe.is_only_size:
            at_other_size = self._at_other_sizes().known(name)
            if at_other_size is None or bool(at_other_size.any()) != bool(value.any()):
                return None
        return bool(value.any())

    def _is_kept(self, name: str) -> bool:
        """Return whether a value is float64 and stays float64."""
        return self._keeps_float64 and self._types.elem_type(name) == TensorProto.DOUBLE

    def takes(self, node: onnx.NodeProto) -> bool:
        """Return whether ONNX Runtime may compute a node.

        ONNX Runtime must support the domains of the node and of all nodes in its subgraphs, and
        none of these nodes may have an operator in _REFUSED.
        """
        if node.op_type in _REFUSED or (
                node.domain not in _DOMAINS and (node.domain, node.op_type) not in self._functions):
            return False
        return all(self.takes(inner) for graph in subgraphs(node) for inner in graph.node)

    def leave(self, node: onnx.NodeProto) -> None:
        """Record what is known of the results of a node that ONNX Runtime computes."""
        kinds: dict[str, onnx.TypeProto] = {}
        known: dict[str, np.ndarray] = {}
        for name in reads(node):
            if name in self._confined:
                kinds[name] = self._confined[name]
            elif (shape := self.probe.shape(name)) is not None:
                kinds[name] = helper.make_tensor_type_proto(self._elem_type(name), shape)
            if (value := self.probe.known(name)) is not None:
                known[name] = value
        outputs = self._types.outputs_of(node, kinds, known)
        for name in filter(None, node.output):
            kind = outputs.get(name, onnx.TypeProto())
            shape = known_shape(kind)
            if shape is None or kind.tensor_type.elem_type not in TYPES or self._is_kept(name):
                self._confined[name] = kind
            else:
                self.probe.add_value(name, shape, TYPES[kind.tensor_type.elem_type])

    def add_input(self, info: onnx.ValueInfoProto) -> None:
        """Add an input of the network that is not a numeric tensor."""
        self._confined[info.name] = info.type

    def join(self, outcomes: Sequence[Outcome], inputs: Sequence[ValueInfo]) -> None:
        """Join the nodes that ONNX Runtime computes into parts, and add the parts to the graph.

        Nodes that depend on a value that cannot leave its part become the graph's tail.

        outcomes: the outcomes of all nodes, in order.
        inputs: all inputs of the network.
        Raises UnsupportedError for a node in the tail that ONNX Runtime does not support.
        """
        is_any_left = any(outcome.reason for outcome in outcomes)
        if not is_any_left and len(inputs) == len(self._graph.inputs):
            return
        self._outcomes = outcomes
        for outcome in outcomes:
            step = self._clusters.add(reads(outcome.proto), filter(None, outcome.proto.output))
            if outcome.reason:
                self._clusters.join(step)
        in_tail = self._steps_of_tail()
        names = names_of(self._graph)
        nodes = [node for step, outcome in enumerate(outcomes) if step not in in_tail
                 for node in outcome.nodes]
        outputs = [info.name for info in self._graph.outputs]
        groups = list(filter(None, ([step for step in steps if step not in in_tail]
                                    for steps in self._clusters.groups())))
        for number, together in enumerate(self._clusters.independent(groups)):
            steps = sorted(step for index in together for step in groups[index])
            read = {name for step in range(len(outcomes)) if step not in steps
                    for name in self._reads_of(step, step in in_tail)}.union(outputs)
            members = [(outcomes[step].proto, outcomes[step].reason) for step in steps]
            nodes.append(self._part(f"part_{number}", members, read, names))
        self._graph.nodes = in_reading_order(nodes)
        if in_tail or len(inputs) > len(self._graph.inputs):
            self._graph.tail = self._tail(sorted(in_tail), inputs)

    def _steps_of_tail(self) -> set[int]:
        """Return the steps that become the tail.

        A step is in the tail if it depends on another step of the tail, or on an input that is not
        a numeric tensor. A step that makes a value that cannot leave its part is in the
        tail in two more cases: if the value is an output of the network, and if the tail or a step
        outside of the part reads the value.
        """
        outputs = {info.name for info in self._graph.outputs}
        readers: dict[str, list[int]] = {}
        for step, outcome in enumerate(self._outcomes):
            for name in reads(outcome.proto):
                readers.setdefault(name, []).append(step)
        waiting: list[int] = []
        for name in self._confined:
            maker = self._clusters.maker(name)
            if maker is None:
                waiting += readers.get(name, ())
            elif name in outputs or any(
                    self._group_of(reader) != self._group_of(maker)
                    for reader in readers.get(name, ())):
                waiting.append(maker)
        found: set[int] = set()
        while waiting:
            step = waiting.pop()
            if step in found:
                continue
            found.add(step)
            for name in self._outcomes[step].proto.output:
                waiting += readers.get(name, ())
            for name in reads(self._outcomes[step].proto):
                maker = self._clusters.maker(name)
                if name in self._confined and maker is not None:
                    waiting.append(maker)
        return found

    def _group_of(self, step: int) -> int | None:
        return self._clusters.group_of(step) if self._outcomes[step].reason else None

    def _reads_of(self, step: int, as_in_file: bool) -> Iterable[str]:
        """Return the values that a step reads.

        If `as_in_file` is set or ONNX Runtime computes the node, these are the inputs of the file's
        node. If not, they are the inputs of the nodes that replace it in gossamer's graph.
        """
        outcome = self._outcomes[step]
        if as_in_file or outcome.reason:
            return reads(outcome.proto)
        return (name for node in outcome.nodes for name in node.inputs)

    def _tail(self, steps: Sequence[int], inputs: Sequence[ValueInfo]) -> Tail:
        """Return the tail that computes the given steps.

        The values that the tail reads become outputs of the graph.
        """
        graph = self._graph
        members = []
        for step in steps:
            node = self._outcomes[step].proto
            if not self.takes(node):
                raise UnsupportedError(
                    f"{graph.file}: {source(node)}: reads a value that only ONNX Runtime computes, "
                    f"and ONNX Runtime does not know domain {quoted(node.domain)}")
            members.append((node, self._outcomes[step].reason
                            or "reads values whose shape or type depends on the data"))
        made = {name for node, _ in members for name in node.output if name}
        outputs = [info for info in graph.outputs
                   if info.name in made or info.name in self._confined]
        needed = {name for node in graph.nodes for name in node.inputs}
        needed.update(info.name for info in graph.outputs if info not in outputs)
        as_in_file = {info.name for info in graph.inputs if info.name not in needed} | made
        # booleans are numbers within the graph, but bool in its outputs
        as_in_file.update(info.name for info in graph.outputs if info.dtype == "bool")
        graph.inputs = [info for info in graph.inputs if info.name in needed]
        model, read = self._model("tail", members, [info.name for info in outputs],
                                  names_of(graph), as_in_file)
        constants = {index: graph.constants[name] for index, name in enumerate(read)
                     if name in graph.constants}
        reading = tuple(name for index, name in enumerate(read) if index not in constants)
        tail = Tail(model, constants, reading, [self._typed(info, as_in_file) for info in inputs],
                    [self._typed(info, as_in_file) for info in graph.outputs])
        given = {info.name for info in inputs}
        graph.outputs = [info for info in graph.outputs if info not in outputs]
        there = {info.name for info in graph.outputs}
        graph.outputs += [
            ValueInfo(name, (None,) * len(self.probe.shape(name) or ()),
                      self.probe.dtype(name) or TYPES.get(self._elem_type(name), "float32"))
            for name in reading if name not in given and name not in there]
        return tail

    def _typed(self, info: ValueInfo, as_in_file: Container[str]) -> ValueInfo:
        """Return an input or output of the network, with the file's dtype if in `as_in_file`.

        as_in_file: the names of values that the tail reads or makes in the dtype of the file.
        """
        kind = self._types.elem_type(info.name)
        if info.name not in as_in_file or kind not in TYPES:
            return info
        return replace(info, dtype=helper.tensor_dtype_to_np_dtype(kind).name, given=None,
                       returned_dtype="")

    def _elem_type(self, name: str) -> int:
        """Return ONNX's type of a value in the file or, if unknown, in gossamer's graph."""
        if kind := self._types.elem_type(name):
            return kind
        dtype = self.probe.dtype(name) or "float32"
        return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def _part(self, name: str, members: Sequence[tuple[onnx.NodeProto, str]],
              read: Container[str], names: set[str]) -> Node:
        """Return the node of the graph that computes nodes of the file.

        read: the values that other nodes read, and the graph's outputs.
        """
        crossing = [value for node, _ in members for value in node.output
                    if value and value in read]
        model, inputs = self._model(name, members, crossing, names)
        more = f" and {len(members) - 1} more" if len(members) > 1 else ""
        return Node("onnx_part", name, inputs, crossing, {"model": model},
                    f"{source(members[0][0])}{more}")

    def _model(self, name: str, members: Sequence[tuple[onnx.NodeProto, str]],
               crossing: Sequence[str], names: set[str],
               as_in_file: Container[str] = ()) -> tuple[np.ndarray, list[str]]:
        """Return the bytes of a model of some nodes, and the names of the model's inputs.

        crossing: names of the outputs of the model.
        as_in_file: names of inputs and outputs that keep their type in the file; all others have
        their type in gossamer's graph.
        """
        graph = helper.make_graph([], name, [], [])
        made = {value for node, _ in members for value in node.output if value}
        taken = made.union(*(reads(node) for node, _ in members))
        inputs: list[str] = []
        outside = [value for node, _ in members for value in reads(node)]
        for value in dict.fromkeys([*outside, *crossing]):
            if value not in made:
                inputs += self._enter(graph, value, taken, names, value in as_in_file)
        graph.node.extend(node for node, _ in members)
        for value in crossing:
            if value not in made:
                # an input of the network that is also an output of the network
                graph.output.append(next(info for info in graph.input if info.name == value))
                continue
            kind = self._types.elem_type(value)
            wanted = helper.np_dtype_to_tensor_dtype(np.dtype(TYPES.get(kind, "float32")))
            if kind not in TYPES or kind == wanted or value in as_in_file:
                graph.output.append(self._types.value_info(value))
                continue
            inner = unused_name(taken, f"{value}.as_number")
            taken.add(inner)
            graph.node.append(helper.make_node("Cast", [value], [inner], to=wanted))
            graph.output.append(helper.make_tensor_value_info(inner, wanted, None))
        model = self._types.with_graph(graph)
        if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
            model.opset_import.add(domain="", version=_CAST_OPSET)
        model.metadata_props.add(key=NODES, value=json.dumps(
            [[source(node), reason] for node, reason in members]))
        data = model.SerializeToString(deterministic=True)
        return np.frombuffer(data, np.uint8), inputs

    def _enter(self, graph: onnx.GraphProto, value: str, taken: set[str],
               names: set[str], as_in_file: bool) -> list[str]:
        """Add a value that a part reads from outside to the model of the part.

        A small constant is copied from the file; any other value becomes an input. Returns the
        names of the inputs.
        """
        if value in self._confined:
            graph.input.append(onnx.ValueInfoProto(name=value, type=self._confined[value]))
            return [value]
        kind = self._elem_type(value)
        constant = self._graph.constants.get(value)
        if constant is not None:
            tensor = self._types.tensor(value, constant)
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if (
                kind != TensorProto.STRING) else np.dtype(object)
            if constant.size <= MOST_PARAMETERS or dtype.kind not in "biuf" or dtype.isbuiltin != 1:
                graph.initializer.append(tensor)
                return []
            graph.input.append(helper.make_tensor_value_info(value, kind, None))
            if dtype != constant.dtype:
                # under a new name, because other nodes read the constant in float32
                value = unused_name(names, f"{value}.as_in_file")
                names.add(value)
                self._graph.constants[value] = onnx.numpy_helper.to_array(tensor)
            return [value]
        if as_in_file:
            graph.input.append(self._types.value_info(value))
            return [value]
        dtype_here = self.probe.dtype(value) or TYPES.get(kind, "float32")
        own = helper.np_dtype_to_tensor_dtype(np.dtype(dtype_here))
        inner = value
        if own != kind:
            inner = unused_name(taken, f"{value}.as_number")
            taken.add(inner)
            graph.node.append(helper.make_node("Cast", [inner], [value], to=kind))
        # Pass only the rank to ONNX Runtime. If the sizes were known, ONNX Runtime would expand
        # operators that ONNX defines as functions. If the rank were unknown, some operators would
        # crash the process: ONNX Runtime refuses them only if it knows the rank.
        shape: Sequence[int | None] | None = self.probe.shape(value)
        if shape is not None and not self.probe.is_only_size:
            shape = [None] * len(shape) if self._keeps_rank(value) else None
        graph.input.append(helper.make_tensor_value_info(inner, own, shape))
        return [value]

    def _keeps_rank(self, value: str) -> bool:
        """Return whether the rank of a value is the same at two sizes of the open dimensions."""
        if not any(node.op == "squeeze" and node.attributes.get("axes") is None
                   for node in self._graph.nodes):
            return True
        other = self._at_other_sizes().shape(value)
        return other is None or len(other) == len(self.probe.shape(value) or ())

    def _at_other_sizes(self) -> Probe:
        other = Probe(self._graph, **OTHER_SIZES)
        other.add(self._graph.nodes)
        return other


def in_reading_order(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes, each after the nodes that make its inputs."""
    makers = {name: index for index, node in enumerate(nodes) for name in node.outputs}
    before = [{makers[name] for name in node.inputs if name in makers} for node in nodes]
    return [nodes[index] for index in stable_order(before, range(len(nodes)))]
