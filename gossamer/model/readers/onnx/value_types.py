"""The types and shapes of a file's values, as far as they are known while the file is read.

FileTypes holds the types of values in the file, as inferred by ONNX. Probe holds the shapes and
dtypes of values in gossamer's graph, at one size of the network's inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import GossamerError, UnsupportedError
from gossamer.model.graph import Graph, Node
from gossamer.model.infer.resolve import at_size, visit
from gossamer.model.opset.definition import InferenceState, Shape
from gossamer.model.opset.onnx_nodes import inferred
from gossamer.model.readers.onnx.order import reads
from gossamer.onnx_model import MOST_PARAMETERS

TYPES: dict[int, str] = {
    **{TensorProto.DataType.Value(name.upper()): name for name in (
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")},
    **{kind: "float32" for kind in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE,
                                    TensorProto.BFLOAT16)},
}
"""For each ONNX type, the dtype that tensors of this type have in a graph."""
_OPEN_SIZE = 256
"""The size that a probe uses for a dimension that the file leaves open."""
OTHER_SIZES = {"batch": 2, "open_size": 192}
"""The sizes of open dimensions in a second probe. A value that differs between the two probes
depends on these sizes."""


class FileTypes:
    """The types of values in a file, which may differ from their types in gossamer's graph.

    model: the file's model.
    nodes: the nodes of the file that are needed, in order.
    exact: the values of float64 constants.
    """

    def __init__(self, model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto],
                 exact: Mapping[str, np.ndarray] | None = None) -> None:
        self.model = model
        self._exact = exact or {}
        self._nodes = nodes
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}

    @cached_property
    def _inferred(self) -> dict[str, onnx.TypeProto]:
        """The type of each value of the file for which ONNX's inference finds a type."""
        graph = helper.make_graph([], "types", list(self.model.graph.input), [])
        given = {info.name for info in graph.input}
        for name, tensor in self.initializers.items():
            if name not in given:
                graph.input.append(helper.make_tensor_value_info(
                    name, tensor.data_type, list(tensor.dims)))
        graph.node.extend(self._nodes)
        types = {info.name: info.type for info in (*graph.input, *self.model.graph.output)}
        types.update(self._infer(graph))
        return types

    def add(self, nodes: Sequence[onnx.NodeProto], initializers: Sequence[onnx.TensorProto]
            ) -> None:
        """Add nodes that replace a node of the file, and the constants that they read.

        The new nodes come after all others.
        """
        self._nodes = [*self._nodes, *nodes]
        self.initializers.update({tensor.name: tensor for tensor in initializers})
        self.__dict__.pop("_inferred", None)

    def elem_type(self, name: str) -> int:
        """Return ONNX's number for the type of a tensor's elements in the file.

        Returns 0 if the type is unknown, or if ONNX has no type of this number.
        """
        kind = self._inferred.get(name)
        number = kind.tensor_type.elem_type if kind is not None else 0
        return number if number in TensorProto.DataType.values() else 0

    def value_info(self, name: str) -> onnx.ValueInfoProto:
        """Return the declaration of a value, with its type in the file if it is known.

        The shape of a node's result is omitted, because ONNX Runtime infers more precise shapes.
        """
        info = onnx.ValueInfoProto(name=name, type=self._inferred.get(name))
        if is_untyped(info):
            # ONNX Runtime accepts values without a type, but refuses tensors of an undefined type
            info.ClearField("type")
        elif info.type.HasField("tensor_type") and all(
                name != given.name for given in self.model.graph.input):
            info.type.tensor_type.ClearField("shape")
        return info

    def outputs_of(self, node: onnx.NodeProto, inputs: Mapping[str, onnx.TypeProto],
                   known: Mapping[str, np.ndarray]) -> dict[str, onnx.TypeProto]:
        """Return the types of a node's outputs that can be inferred, by name.

        inputs: types of the values that the node reads, with shapes at one size of the network.
        known: arrays of the inputs that follow from shapes and constants.
        """
        graph = helper.make_graph([node], "node", [], [])
        for name in dict.fromkeys(reads(node)):
            if name in inputs:
                graph.input.append(onnx.ValueInfoProto(name=name, type=inputs[name]))
            if name in known and known[name].size <= MOST_PARAMETERS:
                graph.initializer.append(self.tensor(name, known[name]))
        types = self._infer(graph)
        return {name: types[name] for name in node.output if name in types}

    def tensor(self, name: str, array: np.ndarray) -> onnx.TensorProto:
        """Return a tensor for a value, in the file's type.

        Returns the initializer `name` if the file has one, else a tensor that holds `array`.
        """
        if name in self.initializers:
            return self.initializers[name]
        if name in self._exact:
            return numpy_helper.from_array(self._exact[name], name)
        kind = self.elem_type(name)
        if kind and kind != TensorProto.STRING:
            array = array.astype(helper.tensor_dtype_to_np_dtype(kind))
        return numpy_helper.from_array(array, name)

    def with_graph(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        """Return a model of a graph, with the file's operator versions and functions."""
        model = onnx.ModelProto(ir_version=max(self.model.ir_version, 8), producer_name="gossamer")
        model.graph.CopyFrom(graph)
        model.opset_import.extend(self.model.opset_import)
        model.functions.extend(self.model.functions)
        return model

    def _infer(self, graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
        try:
            result = inferred(self.with_graph(graph))
        except Exception:
            # onnx raises exceptions of its own classes; ONNX Runtime will raise a descriptive error
            return {}
        return {info.name: info.type for info in result.graph.value_info}


def is_untyped(value: onnx.ValueInfoProto) -> bool:
    """Return whether the file states no type for a value, or no type for a tensor's elements."""
    return value.type.WhichOneof("value") in (None, "tensor_type") and (
        not value.type.tensor_type.elem_type)


def is_of_numbers(value: onnx.ValueInfoProto, keeps: bool) -> bool:
    """Return whether a value is a numeric tensor that gossamer computes with.

    A value without a type counts as a numeric tensor.

    keeps: whether ONNX Runtime computes float64.
    """
    kind = value.type.tensor_type.elem_type or TensorProto.FLOAT
    return is_untyped(value) or (value.type.HasField("tensor_type") and kind in TYPES and not (
        keeps and kind == TensorProto.DOUBLE))


def has_float64(graph: onnx.GraphProto) -> bool:
    """Return whether values of a graph may be float64.

    Values may be float64 if an input, output, constant or attribute is float64.
    """
    wanted = TensorProto.DOUBLE
    return any(tensor.data_type == wanted for tensor in graph.initializer) or any(
        info.type.tensor_type.elem_type == wanted
        for info in (*graph.input, *graph.output)) or any(
        attribute.t.data_type == wanted
        or (attribute.name in ("to", "dtype") and attribute.i == wanted)
        for node in graph.node for attribute in node.attribute)


def known_shape(kind: onnx.TypeProto | None) -> tuple[int, ...] | None:
    """Return the shape of a tensor; None if it is unknown, or the value is not a tensor."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims: Iterable[onnx.TensorShapeProto.Dimension] = kind.tensor_type.shape.dim
    sizes = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims)
    return None if min(sizes, default=0) < 0 else sizes


def type_text(kind: onnx.TypeProto) -> str:
    """Return the name of a type for messages, such as "string", "float16" or "sequence"."""
    if kind.HasField("tensor_type"):
        number = kind.tensor_type.elem_type
        known = number in TensorProto.DataType.values()
        return TensorProto.DataType.Name(number).lower() if known else f"number {number}"
    which = kind.WhichOneof("value")
    return (which or "unknown").removesuffix("_type").replace("_", " ")


class Probe:
    """The shapes and dtypes of a graph's values at one size of its open dimensions.

    Values are unknown if a node does not support this size.

    batch: the batch size, unless the file has a fixed batch size.
    open_size: the size of open dimensions other than the batch.
    is_only_size: whether the file fixes all dimensions, the batch included.
    """

    def __init__(self, graph: Graph, batch: int = 1, open_size: int = _OPEN_SIZE) -> None:
        self._graph = graph
        self.is_only_size = not any(None in info.shape[1:] or (
            None in info.shape[:1] and graph.fixed_batch is None) for info in graph.inputs)
        self._state = InferenceState(at_size(graph, open_size), graph.batch_or(batch))

    def add(self, nodes: list[Node]) -> None:
        """Infer the shapes and dtypes of the results of nodes.

        Raises UnsupportedError for a node that gossamer cannot compute at any size.
        """
        for node in nodes:
            for name in filter(None, node.inputs):
                self._learn(name)
            if any(name and name not in self._state.shapes for name in node.inputs):
                continue
            try:
                visit(self._state, node)
            except UnsupportedError:
                raise
            except GossamerError:
                # the sizes of this probe do not suit the node, or the file is wrong: resolve()
                # raises an error for a wrong file
                continue

    def add_value(self, name: str, shape: Shape, dtype: str) -> None:
        """Add a value that depends on the data."""
        self._state.shapes[name], self._state.dtypes[name] = shape, dtype

    def shape(self, name: str) -> Shape | None:
        self._learn(name)
        return self._state.shapes.get(name)

    def dtype(self, name: str) -> str | None:
        self._learn(name)
        return self._state.dtypes.get(name)

    def known(self, name: str) -> np.ndarray | None:
        """Return a value that follows from shapes and constants; None for other values."""
        self._learn(name)
        return self._state.known.get(name)

    def _learn(self, name: str) -> None:
        """Add a constant that was added to the graph since the last call."""
        if name not in self._state.shapes and name in self._graph.constants:
            self._state.know(name, self._graph.constants[name])
