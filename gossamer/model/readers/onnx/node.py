"""OnnxNode: a node of an ONNX file while it is converted. Integers: the file's quantised values.

A quantised value consists of integers q of few bits, which stand for (q - zero point) * scale. In
gossamer's graph, the value is the difference q - zero point in float32, which represents these
integers exactly. Because 0 represents the zero point, images can be padded with zeros. The rounding
to integers is element-wise arithmetic, which is fused into the epilogue of the preceding layer. If
a node reads the integers q themselves, they are computed from the float32 value.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto

from gossamer.errors import ModelError, UnsupportedError, quoted
from gossamer.expression import Expression, Value
from gossamer.io.limits import most_value_bytes, raised
from gossamer.io.text import bytes_text
from gossamer.model.graph import Graph, Node
from gossamer.model.opset.registry import inputs_to_attributes
from gossamer.model.readers.onnx.constants import to_array
from gossamer.model.readers.onnx.order import node_name, source
from gossamer.model.readers.onnx.value_types import Probe
from gossamer.onnx_model import as_float32

_FIELDS = {AttributeProto.FLOAT: "f", AttributeProto.INT: "i", AttributeProto.STRING: "s",
           AttributeProto.TENSOR: "t", AttributeProto.GRAPH: "g", AttributeProto.FLOATS: "floats",
           AttributeProto.INTS: "ints", AttributeProto.STRINGS: "strings",
           AttributeProto.TENSORS: "tensors", AttributeProto.GRAPHS: "graphs",
           AttributeProto.SPARSE_TENSOR: "sparse_tensor",
           AttributeProto.SPARSE_TENSORS: "sparse_tensors", AttributeProto.TYPE_PROTO: "tp",
           AttributeProto.TYPE_PROTOS: "type_protos"}
"""For each type of attribute, the field that holds the attribute's value."""
_NEWEST_OPSET = onnx.defs.onnx_opset_version()
RANGES = {kind: (float(np.iinfo(kind).min), float(np.iinfo(kind).max))
          for kind in ("int8", "uint8", "int16", "uint16")}
"""The minimum and maximum of the dtypes to which files are quantised."""
_ANY = (-128.0, 255.0)
"""The bounds for an 8-bit value of unknown signedness."""
_MOST_INT32 = 2.0**31
"""Bound of the magnitudes of int32 values."""


@functools.cache
def _definition(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return ONNX's definition of an op in an opset, or in the newest opset that has the op.

    Returns None if no opset has the op.
    """
    for version in (opset, _NEWEST_OPSET):
        if onnx.defs.has(op, version):
            schema = onnx.defs.get_schema(op, version)
            return _definition(op, schema.since_version - 1) if schema.deprecated else schema
    return None


def _type_name(kind: int) -> str:
    return AttributeProto.AttributeType.Name(kind) if kind in _FIELDS else str(kind)


def _value(attribute: onnx.AttributeProto) -> Any:
    """Return an attribute's value: an array, a string, a number, or a tuple of these."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return as_float32(to_array(value))
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


@dataclass(frozen=True)
class Centred:
    """The integers of a quantised value minus its zero point.

    name: the float32 value or constant in gossamer's graph.
    zero_point: the subtracted zero point, as an array that broadcasts to the value, or the name of
    a scalar that depends on the data.
    dtype: the dtype of the integers in the file.
    """

    name: str
    zero_point: np.ndarray | str
    dtype: str

    @property
    def bounds(self) -> tuple[float, float]:
        """The minimum and maximum possible value."""
        low, high = RANGES.get(self.dtype, _ANY if "8" in self.dtype else (
            -_MOST_INT32, _MOST_INT32))
        if isinstance(self.zero_point, str):
            return low - high, high - low
        return low - float(self.zero_point.max()), high - float(self.zero_point.min())


@dataclass(frozen=True)
class Scaled:
    """A float value that equals integers times a scale.

    integers: the integers before scaling, minus their zero point.
    scale: float32, an array that broadcasts to the value.
    array: the integers minus their zero point if they are constant, else None.
    """

    integers: Centred
    scale: np.ndarray
    array: np.ndarray | None = None


Requantise = Callable[["OnnxNode", np.ndarray, np.ndarray, str], Centred]
"""A function that rounds a layer's float result to integers: it adds a node to the graph, and
returns the integers. Its arguments are the QuantizeLinear of the file, the scale and the zero point
(one number each), and the dtype of the integers.

ONNX Runtime fuses several nodes into one operator on integers: a layer, the nodes that dequantise
the layer's inputs, and the node that quantises the layer's result. The function rounds as this
operator does.
"""


class Integers:
    """The quantised values of a file while it is read.

    centred: for each integer value of the file, by name, the float32 value that represents it.
    scaled: for each float value that is integers times a scale, by name, the integers and the
    scale.
    layers: for each float value that a layer computes from integers, by name, the function that
    rounds the value to integers.
    probe: the shapes and dtypes of values.
    """

    def __init__(self, probe: Probe) -> None:
        self.centred: dict[str, Centred] = {}
        self.scaled: dict[str, Scaled] = {}
        self.layers: dict[str, Requantise] = {}
        self.probe = probe

    def forget(self, names: Iterable[str]) -> None:
        """Drop everything recorded about values, because gossamer does not compute their node."""
        for name in names:
            self.centred.pop(name, None)
            self.scaled.pop(name, None)
            self.layers.pop(name, None)

    def have_any(self, names: Iterable[str]) -> bool:
        """Return whether any of the values is quantised."""
        return any(name in self.centred or name in self.scaled for name in names)

    def rank(self, name: str) -> int | None:
        """Return the number of dimensions of a value; None if it is unknown."""
        shape = self.probe.shape(name)
        return None if shape is None else len(shape)

    def learn_constant(self, entry: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> None:
        """Record the integers and the scale of a constant that a DequantizeLinear makes.

        entry: the DequantizeLinear.
        values: the inputs of the node by name, all constants.
        """
        inputs = [*entry.input, ""]
        q, scale = values[inputs[0]], values[inputs[1]]
        attributes = {attribute.name: attribute.i for attribute in entry.attribute}
        if q.dtype.kind not in "iu" or attributes.get("block_size") or scale.ndim > 1:
            return
        zero = values[inputs[2]] if inputs[2] else np.zeros((), q.dtype)
        if zero.size > 1 and zero.shape != scale.shape:
            return
        axis = attributes.get("axis", 1) % max(q.ndim, 1)
        if scale.size != 1 and (q.ndim == 0 or scale.shape != (q.shape[axis],)):
            return
        shape = [-1 if index == axis else 1 for index in range(q.ndim)] if scale.size > 1 else ()
        centred = q.astype(np.float32) - zero.astype(np.float32).reshape(
            shape if zero.size > 1 else ())
        self.scaled[entry.output[0]] = Scaled(
            Centred("", np.zeros(()), str(q.dtype)), scale.astype(np.float32).reshape(shape),
            centred)


class OnnxNode:
    """A node of an ONNX file, which a converter replaces by nodes of a graph.

    After the conversion, finish() raises UnsupportedError for an attribute that the converter did
    not read.

    opset: version of ONNX's operators that the file uses.
    used: for each value, the number of nodes that read it, plus 1 for an output of the graph.
    names: the names of all values of the file.
    too_large: constants that are not computed because of the limit on their size; see
    ConstantFolder.
    integers: the quantised values of the file.
    """

    def __init__(self, proto: onnx.NodeProto, opset: int, graph: Graph,
                 used: Counter[str], names: Container[str], too_large: Mapping[str, int],
                 integers: Integers) -> None:
        self.proto = proto
        self.op = proto.op_type
        self.inputs = list(proto.input)
        self.outputs = list(proto.output)
        self.opset = opset
        self.integers = integers
        self.graph = graph
        self.source = source(proto)
        self._name = node_name(proto)
        self._attributes: dict[str, Any] = {}
        self._check_form(proto)
        for attribute in proto.attribute:
            try:
                self._attributes[attribute.name] = _value(attribute)
            except (LookupError, TypeError, ValueError) as error:
                raise self.error(f"attribute {quoted(attribute.name)} is damaged: "
                                 f"{quoted(error)}") from error
        self._used = used
        self._names = names
        self._too_large = too_large
        self._asked: set[str] = set()

    def _check_form(self, proto: onnx.NodeProto) -> None:
        """Raise ModelError unless the node matches ONNX's definition of its op.

        The numbers of inputs and outputs and the types of attributes have to match.
        """
        schema = _definition(self.op, self.opset) if proto.domain in ("", "ai.onnx") else None
        types: dict[str, int] = {}
        if schema is not None:
            for what, names, least, most in (
                    ("inputs", self.inputs, schema.min_input, schema.max_input),
                    ("outputs", self.outputs, schema.min_output, schema.max_output)):
                if not least <= len(names) <= most:
                    expected = str(least) if least == most else f"{least} to {most}"
                    raise self.error(f"has {len(names)} {what}, expected {expected}")
            types = {name: int(entry.type)  # type: ignore[call-overload]
                     for name, entry in schema.attributes.items()}
        if len({attribute.name for attribute in proto.attribute}) < len(proto.attribute):
            raise self.error("has two attributes with the same name")
        for attribute in proto.attribute:
            kind = types.get(attribute.name, attribute.type)
            held = {field.name for field, _ in attribute.ListFields()}
            if attribute.type not in _FIELDS or attribute.type != kind or (
                    held - {"name", "type", "doc_string", _FIELDS[attribute.type]}):
                raise self.error(f"attribute {quoted(attribute.name)} is of type "
                                 f"{_type_name(attribute.type)} and holds "
                                 f"{' and '.join(sorted(held - {'name', 'type', 'doc_string'}))}, "
                                 f"expected {_type_name(kind)}")

    def error(self, text: str) -> ModelError:
        """Return an error whose message names the file and the node."""
        return ModelError(f"{self.graph.file}: {self.source}: {text}")

    def unsupported(self, text: str) -> UnsupportedError:
        return UnsupportedError(f"{self.graph.file}: {self.source}: {text}")

    def attribute(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        return self._attributes.get(name, default)

    def allow(self, *names: str) -> None:
        """Accept attributes that do not affect the results that gossamer computes."""
        self._asked.update(names)

    def only(self, name: str, *allowed: Any) -> Any:
        """Return an attribute that must have an allowed value; the first value is the default."""
        value = self.attribute(name, allowed[0])
        if value not in allowed:
            expected = " or ".join(map(quoted, allowed))
            raise self.unsupported(f"attribute {name} is {quoted(value)}, gossamer computes "
                                   f"{expected}")
        return value

    def finish(self) -> None:
        """Raise UnsupportedError for an attribute that the converter did not read."""
        for name in self._attributes:
            if name not in self._asked:
                raise self.unsupported(f"attribute {quoted(name)} of opset {self.opset} is not "
                                       "supported; export the model without it")

    def input(self, index: int) -> str:
        """Return the name of an input; "" if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def required(self, index: int) -> str:
        """Return the name of an input. Raises ModelError if it is absent."""
        if not self.input(index):
            raise self.error(f"input {index} is missing")
        return self.inputs[index]

    def constant(self, index: int, what: str) -> np.ndarray:
        """Return the value of an input that must be a constant.

        what: the input's role, for messages.
        Raises UnsupportedError if the value depends on the data.
        """
        name = self.required(index)
        if name in self._too_large:
            needed = self._too_large[name]
            raise self.unsupported(
                f"{what} comes from {quoted(name)}, a constant computed from other constants; "
                f"together they need up to {bytes_text(needed)}, expected at most "
                f"{bytes_text(most_value_bytes(0))}; if this is intended, set {raised(needed)}")
        if name not in self.graph.constants:
            raise self.unsupported(f"{what} comes from {quoted(name)}, which depends on the "
                                   "data; expected a constant")
        return self.graph.constants[name]

    def optional_constant(self, index: int) -> np.ndarray | None:
        return self.graph.constants.get(self.input(index))

    def dtype(self, name: str) -> str | None:
        """Return the dtype of a value in the file; None if it is unknown."""
        if name in self.integers.centred:
            return self.integers.centred[name].dtype
        if name in self.graph.constants:
            return str(self.graph.constants[name].dtype)
        return self.integers.probe.dtype(name)

    def only_first_output(self) -> None:
        """Drop all outputs but the first. Raises UnsupportedError if another output is used."""
        for name in self.outputs[1:]:
            if name in self._used:
                raise self.unsupported(f"its output {quoted(name)} is used; gossamer computes the "
                                       "first output only")
        del self.outputs[1:]

    def is_only_reader_of(self, name: str) -> bool:
        """Return whether a value is read by this node only, and is not an output of the graph."""
        return self._used[name] == 1

    def new_name(self, role: str, output: str = "") -> str:
        """Return a name for a value or constant that the file does not have.

        output: the output of the node after which it is named; "" for the first one.
        """
        name = f"{output or self.outputs[0]}.{role}"
        while name in self._names or name in self.graph.constants:
            name += "_"
        return name

    def add_constant(self, array: np.ndarray, role: str) -> str:
        """Add a constant to the graph and return its name, which ends in `role`."""
        name = self.new_name(role)
        self.graph.constants[name] = np.asarray(array, order="C")
        return name

    def emit(self, op: str, inputs: Sequence[str], outputs: Sequence[str] | str | None = None,
             **attributes: Any) -> str:
        """Append a node to the graph, and return its first output.

        Constant parameters become attributes of the node.

        outputs: names of the outputs; or a string, the end of a new name; or None for the outputs
        of the file's node.
        """
        if isinstance(outputs, str):
            outputs = [self.new_name(outputs)]
        elif outputs is None:
            outputs = [name for name in self.outputs if name]
        suffix = "" if self.outputs[0] in outputs else outputs[0].removeprefix(self.outputs[0])
        node = Node(op, self._name + suffix, list(inputs), list(outputs), attributes, self.source)
        inputs_to_attributes(node, self.graph.constants)
        self.graph.nodes.append(node)
        return outputs[0]

    def emit_expression(self, value: Value,
                        outputs: Sequence[str] | str | None = None) -> str:
        operands, expression = value.composer.build(value)
        return self.emit("elementwise", operands, outputs, expression=expression)

    def emit_elementwise(self, expression: Expression, inputs: Sequence[str]) -> str:
        return self.emit("elementwise", inputs, expression=expression)


Converter = Callable[[OnnxNode], None]
"""A function that replaces a node of the file by nodes of the graph."""
