"""Reads the nodes of an ONNX file in three steps.

First, nodes with constant inputs are computed. Second, each remaining node is converted, or
recorded with the reason why gossamer does not compute it. Third, the nodes that were recorded with
a reason are joined into parts, which ONNX Runtime computes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from gossamer import onnx_model
from gossamer.errors import ModelError, UnsupportedError, quoted
from gossamer.model.graph import Graph, Node, UniqueNames, ValueInfo, names_of, unused_name
from gossamer.model.opset.definition import MALFORMED, malformed
from gossamer.model.readers.onnx.constants import ConstantFolder, add_constants
from gossamer.model.readers.onnx.einsum import EINSUM
from gossamer.model.readers.onnx.elementwise import ELEMENTWISE
from gossamer.model.readers.onnx.layers import LAYERS
from gossamer.model.readers.onnx.layout import LAYOUT
from gossamer.model.readers.onnx.node import Converter, Integers, OnnxNode
from gossamer.model.readers.onnx.order import in_order, reads
from gossamer.model.readers.onnx.parts import Outcome, Parts
from gossamer.model.readers.onnx.qonnx import QONNX
from gossamer.model.readers.onnx.quantised import KEEPING, MICROSOFT, QUANTISED
from gossamer.model.readers.onnx.value_types import FileTypes, Probe, is_of_numbers

OLDEST_OPSET = 7
"""The oldest opset of which all operators are read. In a file with an older opset, an operator is
read only if its definition is the same as in OLDEST_OPSET."""

_QUANTISED = ("QLinear", "QAttention", "MatMulIntegerToFloat", "DynamicQuantize")
"""Prefixes of the names of operators that only quantised networks have."""
_BOX_CHOICES = frozenset(("NonMaxSuppression", "TopK", "EfficientNMS_TRT", "BatchedNMS_TRT",
                       "BatchedNMSDynamic_TRT"))
"""Operators that select boxes in exported detectors."""


_CONVERTERS: dict[str, Converter] = {**ELEMENTWISE, **LAYERS, **LAYOUT, **EINSUM, **QUANTISED}
"""The converters of ONNX's own operators. Converters in QUANTISED replace others of the same name.
"""


def load_nodes(model: onnx.ModelProto, graph: Graph, inputs: Sequence[ValueInfo], opset: int,
               keeps_float64: bool, exact: dict[str, np.ndarray]) -> None:
    """Add the nodes of a file to its graph, which already has its constants, inputs and outputs.

    inputs: all inputs of the network.
    keeps_float64: whether ONNX Runtime computes the file's float64 values.
    exact: the float64 values of constants if float64 is kept.
    Raises ModelError for a malformed node or an output that no node makes, and UnsupportedError for
    a node that neither gossamer nor ONNX Runtime computes.
    """
    nodes = in_order(model.graph, [info.name for info in graph.outputs], graph.file)
    loader = _Loader(model, graph, nodes, inputs, opset, keeps_float64, exact)
    outcomes = loader.convert(loader.fold(nodes))
    loader.finish_outputs()
    if loader.parts is not None:
        loader.parts.join(outcomes, inputs)
    _exact_outputs(graph, exact)
    _cast_truth_outputs(graph)
    names = UniqueNames()
    for node in graph.nodes:
        node.name = names.unique(node.name)


class _Loader:
    """Folds and converts the nodes of one file.

    parts: collects the nodes for ONNX Runtime; None if it is not installed.
    """

    def __init__(self, model: onnx.ModelProto, graph: Graph, nodes: Sequence[onnx.NodeProto],
                 inputs: Sequence[ValueInfo], opset: int, keeps_float64: bool,
                 exact: dict[str, np.ndarray]) -> None:
        self._model = model
        self._graph = graph
        self._opset = opset
        self._keeps_float64 = keeps_float64
        self._exact = exact
        self._used = Counter(name for node in nodes for name in reads(node))
        self._used.update(info.name for info in graph.outputs)
        self._names = {name for node in onnx_model.nodes_within(model.graph.node)
                       for name in (*node.input, *node.output)}.union(
                           info.name for info in inputs)
        self._available = set(graph.constants) | {info.name for info in inputs}
        self._folder = ConstantFolder(opset, self._used, exact if keeps_float64 else None)
        self._types = FileTypes(model, nodes, exact)
        self.parts = (Parts(graph, self._types, keeps_float64) if onnx_model.has_runtime()
                      else None)
        self._integers = Integers(Probe(graph) if self.parts is None else self.parts.probe)
        # for each output of an If whose condition follows from shapes: the If and the condition
        self._guarded: dict[str, tuple[OnnxNode, bool]] = {}
        if self.parts is not None:
            for value in model.graph.input:
                if value.name not in graph.constants and not is_of_numbers(value, keeps_float64):
                    self.parts.add_input(value)

    def fold(self, nodes: Iterable[onnx.NodeProto]) -> list[OnnxNode]:
        """Compute the nodes with constant inputs, and return the others.

        An If with a constant condition is replaced by the nodes of the branch that it selects.
        Raises ModelError for a node that is malformed, reads a value that nothing provides, or
        makes a name that is already in use.
        """
        left = []
        for proto in nodes:
            node = self._checked(proto)
            condition = self._graph.constants.get(node.input(0)) if node.op == "If" else None
            branch = None if condition is None else self._branch(node, bool(condition.any()))
            if branch is not None:
                left += self.fold(branch)
            elif not self._is_folded(node):
                left.append(node)
        return left

    def convert(self, nodes: Iterable[OnnxNode]) -> list[Outcome]:
        """Add the nodes that gossamer computes to the graph, and return the outcome of each node.

        An If with a condition that follows from shapes is replaced by the nodes of the branch that
        it selects. Raises UnsupportedError for a node that neither gossamer nor ONNX Runtime
        computes.
        """
        outcomes = []
        waiting = deque(nodes)
        while waiting:
            node = waiting.popleft()
            truth = self.parts.truth(node.input(0)) if (
                node.op == "If" and self.parts is not None) else None
            branch = None if truth is None else self._branch(node, truth)
            if truth is not None and branch is not None:
                self._guarded.update(dict.fromkeys(node.outputs, (node, truth)))
                waiting.extendleft(reversed(self.fold(branch)))
                continue
            begin = len(self._graph.nodes)
            reason = self._converted(node)
            if not reason and (guarded := self._guard_of(node)) is not None:
                _guard(self._graph.nodes[-1], *guarded)
            elif reason and self.parts is not None and self.parts.takes(node.proto):
                self.parts.leave(node.proto)
            elif reason:
                raise self._unknown([node, *waiting])
            outcomes.append(Outcome(node.proto, self._graph.nodes[begin:], reason))
        return outcomes

    def finish_outputs(self) -> None:
        """Check that each output is made, and set dtypes that the file leaves open."""
        for info in self._graph.outputs:
            if info.name not in self._available:
                raise ModelError(f"{self._graph.file}: output {quoted(info.name)} is made by no "
                                 "node")
        self._graph.outputs = [info if info.dtype else replace(
            info, dtype=self._integers.probe.dtype(info.name) or "float32")
            for info in self._graph.outputs]

    def _checked(self, proto: onnx.NodeProto) -> OnnxNode:
        node = OnnxNode(_as_cast(proto, self._types), self._opset, self._graph, self._used,
                        self._names, self._folder.too_large, self._integers)
        for name in reads(node.proto):
            if name not in self._available:
                raise node.error(f"reads {quoted(name)}, which no input, initializer or node "
                                 "provides")
        for name in filter(None, node.outputs):
            if name in self._available:
                raise node.error(f"makes {quoted(name)}, a name that is already taken")
            self._available.add(name)
        return node

    def _branch(self, node: OnnxNode, truth: bool) -> list[onnx.NodeProto] | None:
        """Return the nodes that replace an If, and add the constants of its branch to the graph.

        Returns None if the branch does not fit into the graph.

        truth: the condition.
        """
        self._available.difference_update(node.outputs)
        found = _branch(node.proto, truth, self._available, self._graph.file)
        if found is None:
            self._available.update(filter(None, node.outputs))
            return None
        nodes, initializers = found
        self._types.add(nodes, initializers)
        add_constants(initializers, self._graph, self._keeps_float64, self._exact)
        self._available.update(tensor.name for tensor in initializers)
        self._used.update(name for each in nodes for name in reads(each))
        return nodes

    def _guard_of(self, node: OnnxNode) -> tuple[OnnxNode, bool] | None:
        return self._guarded.get(node.outputs[0]) if node.outputs else None

    def _is_folded(self, node: OnnxNode) -> bool:
        """Compute a node with constant inputs, and return whether that was possible."""
        constants = self._graph.constants
        if self._guard_of(node) is not None:
            return False
        inputs = {name: constants[name] for name in node.inputs if name in constants}
        if self._folder.fold(node.proto, constants):
            if node.op == "DequantizeLinear":
                self._integers.learn_constant(node.proto, inputs)
            return True
        if (node.proto.domain, node.op) not in QONNX or len(inputs) < len(set(node.inputs)):
            return False
        # an op of QONNX may quantise constant weights
        begin, result = len(self._graph.nodes), None
        with suppress(UnsupportedError):
            if not self._converted(node):
                result = self._integers.probe.known(node.outputs[0])
        del self._graph.nodes[begin:]
        if result is not None:
            constants[node.outputs[0]] = result
        return result is not None

    def _converted(self, node: OnnxNode) -> str:
        """Convert a node; return the reason why gossamer does not compute it, else ""."""
        begin, converter = len(self._graph.nodes), _converter(
            node.proto, self._opset, self._integers)
        reason = "" if self.parts is None else self.parts.reason(node.proto)
        if converter is None and not reason:
            reason = f"gossamer computes no {quoted(node.op)[1:-1]}"
        if converter is not None and not reason:
            try:
                self._emit(node, converter)
            except UnsupportedError as error:
                if self.parts is None:
                    raise UnsupportedError(onnx_model.with_advice(str(error))) from None
                if not self.parts.takes(node.proto):
                    raise
                del self._graph.nodes[begin:]
                self._integers.forget(node.proto.output)
                reason = str(error).removeprefix(f"{self._graph.file}: {node.source}: ")
        if reason and self.parts is not None and self.parts.is_known(node.proto):
            try:
                self._emit(node, _known)
                reason = ""
            except UnsupportedError:
                del self._graph.nodes[begin:]
        return reason

    def _emit(self, node: OnnxNode, converter: Converter) -> None:
        """Add the nodes that replace a node of the file.

        Raises UnsupportedError if gossamer does not compute the node, and ModelError if it is
        malformed.
        """
        if not node.outputs or not node.outputs[0]:
            raise node.error("its first output has no name")
        begin = len(self._graph.nodes)
        try:
            converter(node)
        except MALFORMED as error:
            raise node.error(malformed(error)) from error
        node.finish()
        self._integers.probe.add(self._graph.nodes[begin:])

    def _unknown(self, nodes: Sequence[OnnxNode]) -> UnsupportedError:
        """Return the error for a node that neither gossamer nor ONNX Runtime computes.

        nodes: the node and all later nodes.
        """
        first, *others = nodes
        names = [f"{node.source} of domain {quoted(node.proto.domain or 'ai.onnx')}"
                 for node in (first, *(each for each in others if self._is_unknown(each)))]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return UnsupportedError(f"{self._graph.file}: gossamer does not compute "
                                f"{', '.join(names[:3])}{more}; {_advice(self._model.graph)}")

    def _is_unknown(self, node: OnnxNode) -> bool:
        return _converter(node.proto, self._opset, self._integers) is None and (
            self.parts is None or not self.parts.takes(node.proto))


def _as_cast(node: onnx.NodeProto, types: FileTypes) -> onnx.NodeProto:
    """Turn a CastLike to float16 or bfloat16 into a Cast; return any other node unchanged.

    Values of these types are float32 in the graph, so a CastLike to them would not round.
    """
    kind = types.elem_type(node.input[1]) if (
        node.op_type == "CastLike" and len(node.input) == 2) else 0
    if kind not in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        return node
    cast = onnx.NodeProto()
    cast.CopyFrom(node)
    cast.op_type = "Cast"
    del cast.input[1]
    cast.attribute.append(helper.make_attribute("to", kind))
    return cast


def _known(node: OnnxNode) -> None:
    """Convert a node with results that follow from shapes and constants.

    ONNX's reference computes the node during shape inference, so no algorithm is needed for its op.
    """
    for attribute in node.proto.attribute:
        node.attribute(attribute.name)
    node.emit("onnx_known", [name for name in node.inputs if name],
              node=np.frombuffer(node.proto.SerializeToString(), np.uint8), opset=node.opset)


def _converter(node: onnx.NodeProto, opset: int, integers: Integers) -> Converter | None:
    """Return the converter of a node; None if there is none for its op or for the opset."""
    if node.domain == "com.microsoft":
        return MICROSOFT.get(node.op_type)
    if node.domain not in ("", "ai.onnx"):
        return QONNX.get((node.domain, node.op_type))
    if opset < OLDEST_OPSET and not _is_as_in(node.op_type, opset, OLDEST_OPSET):
        return None
    if node.op_type in KEEPING and integers.have_any(node.input):
        return KEEPING[node.op_type]
    return _CONVERTERS.get(node.op_type)


def _is_as_in(op: str, opset: int, other: int) -> bool:
    """Return whether an operator has the same definition in two opsets."""
    return onnx.defs.has(op, opset) and onnx.defs.has(op, other) and (
        onnx.defs.get_schema(op, opset).since_version
        == onnx.defs.get_schema(op, other).since_version)


def _advice(proto: onnx.GraphProto) -> str:
    """Return advice about operators that gossamer does not compute, for messages."""
    used = {entry.op_type for entry in proto.node}
    extra = "" if onnx_model.has_runtime() else f", or {onnx_model.EXTRA}"
    if any(op.startswith(_QUANTISED) for op in used):
        return f"use the float32 model that it was quantised from{extra}"
    hint = (" (a detector without its selection of boxes, which `gossamer detect` does)"
            if used & _BOX_CHOICES else "")
    return f"export the model without them{hint}{extra}"


def _branch(node: onnx.NodeProto, truth: bool, taken: set[str], file: str
            ) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]] | None:
    """Return the nodes and the initializers of the branch that an If selects.

    The returned nodes end with one Identity for each output of the If. Returns None if the
    branch uses names in `taken`, or if it does not have as many outputs as the If.

    truth: the condition.
    """
    name = "then_branch" if truth else "else_branch"
    graph = next((attribute.g for attribute in node.attribute if attribute.name == name), None)
    if graph is None or len(graph.output) != len(node.output) or graph.sparse_initializer:
        return None
    results = [info.name for info in graph.output]
    nodes = in_order(graph, results, file)
    made = [tensor.name for tensor in graph.initializer]
    made += (output for entry in nodes for output in entry.output if output)
    if len(set(made)) < len(made) or any(value in taken for value in made):
        return None
    nodes += [helper.make_node("Identity", [result], [output], node.name)
              for result, output in zip(results, node.output, strict=True) if output]
    return nodes, list(graph.initializer)


def _guard(node: Node, condition: OnnxNode, truth: bool) -> None:
    """Turn an identity after a branch into a check of the If's condition.

    The check fails at shapes for which the condition is not `truth`.
    """
    node.op, node.source = "branch", condition.source
    node.inputs.append(condition.inputs[0])
    node.attributes["taken"] = truth


def _exact_outputs(graph: Graph, exact: Mapping[str, np.ndarray]) -> None:
    """Replace outputs that are float64 constants in the file by their float64 values.

    Nodes that read these constants still read them in float32.
    """
    for info in graph.outputs:
        if info.dtype == "float64" and info.name in exact and info.name in graph.constants:
            number = unused_name(names_of(graph), f"{info.name}.as_number")
            graph.constants[number] = graph.constants[info.name]
            graph.constants[info.name] = exact[info.name]
            for node in graph.nodes:
                node.inputs = [number if name == info.name else name for name in node.inputs]


def _cast_truth_outputs(graph: Graph) -> None:
    """Append a cast to each output that the file declares as bool.

    The cast is needed because nodes of a graph return booleans as numbers.
    """
    names = names_of(graph)
    truths = {info.name: unused_name(names, f"{info.name}.number")
              for info in graph.outputs if info.dtype == "bool"}
    if not truths:
        return
    casts = [Node("cast", f"{name}.bool", [truths[name]], [name], {"dtype": "bool"}, node.source)
             for node in graph.nodes for name in node.outputs if name in truths]
    truths = {cast.outputs[0]: cast.inputs[0] for cast in casts}
    for node in graph.nodes:
        node.inputs = [truths.get(name, name) for name in node.inputs]
        node.outputs = [truths.get(name, name) for name in node.outputs]
    graph.nodes += casts
