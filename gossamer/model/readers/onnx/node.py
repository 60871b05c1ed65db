"""OnnxNode: one node of an ONNX file as its converter sees it, and the graph it writes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gossamer.errors import ModelError, UnsupportedError
from gossamer.expression import Expression
from gossamer.model.compose import Composer
from gossamer.model.graph import Graph, Node, absorb_parameters


def as_float32(array: np.ndarray) -> np.ndarray:
    """The array with every floating type, bfloat16 and the like too, turned into float32."""
    return array if array.dtype.kind in "biuUSO" else np.asarray(array, np.float32)


def _value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return as_float32(numpy_helper.to_array(value))
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


class OnnxNode:
    """Reads inputs and attributes of a node and emits canonical nodes into the graph.

    Every attribute a converter does not ask for makes finish() raise UnsupportedError.
    used: names that some node or the graph's outputs read.
    """

    def __init__(self, proto: onnx.NodeProto, opset: int, graph: Graph,
                 used: set[str]) -> None:
        self.op = proto.op_type
        self.inputs = list(proto.input)
        self.outputs = list(proto.output)
        self.opset = opset
        self.graph = graph
        op = self.op if str(self.op).isprintable() else repr(self.op)
        self.source = f"{op} {proto.name or next(iter(proto.output), '')!r}"
        self._name = proto.name or f"{self.op}_{next(iter(proto.output), '')}"
        self._attributes: dict[str, Any] = {}
        for attribute in proto.attribute:
            try:
                self._attributes[attribute.name] = _value(attribute)
            except (LookupError, TypeError, ValueError) as error:
                raise self.error(f"attribute {attribute.name!r} is damaged: {error!r}") from error
        self._used = used
        self._asked: set[str] = set()

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self.graph.file}: {self.source}: {text}")

    def unsupported(self, text: str) -> UnsupportedError:
        return UnsupportedError(f"{self.graph.file}: {self.source}: {text}")

    def attribute(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        return self._attributes.get(name, default)

    def only(self, name: str, *allowed: Any) -> Any:
        """An attribute that must have one of these values; the first is the default."""
        value = self.attribute(name, allowed[0])
        if value not in allowed:
            expected = " or ".join(repr(choice) for choice in allowed)
            raise self.unsupported(f"attribute {name} is {value!r}, gossamer computes {expected}")
        return value

    def finish(self) -> None:
        for name in self._attributes:
            if name not in self._asked:
                raise self.unsupported(f"attribute {name!r} of opset {self.opset} is not "
                                       "supported; export the model without it")

    def input(self, index: int) -> str:
        """The name of an input; "" where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def required(self, index: int) -> str:
        if not self.input(index):
            raise self.error(f"input {index} is missing")
        return self.inputs[index]

    def constant(self, index: int, what: str) -> np.ndarray:
        """The value of an input that must be known when loading."""
        name = self.required(index)
        if name not in self.graph.constants:
            raise self.unsupported(f"{what} comes from {name!r}, which the data decides; "
                                   "expected a constant")
        return self.graph.constants[name]

    def optional_constant(self, index: int) -> np.ndarray | None:
        return self.graph.constants.get(self.input(index))

    def only_first_output(self) -> None:
        for name in self.outputs[1:]:
            if name in self._used:
                raise self.unsupported(f"its output {name!r} is used; gossamer computes the first "
                                       "output only")
        del self.outputs[1:]

    def add_constant(self, array: np.ndarray, role: str) -> str:
        """Names a new constant of the graph."""
        name = f"{self.outputs[0]}.{role}"
        while name in self.graph.constants:
            name += "_"
        self.graph.constants[name] = np.ascontiguousarray(array)
        return name

    def emit(self, op: str, inputs: Sequence[str], outputs: Sequence[str] | str | None = None,
             **attributes: Any) -> str:
        """Appends a node and returns its first output. outputs: names; a string makes a new
        name with it; None stands for the file's outputs. Parameters that are constants become
        attributes."""
        if isinstance(outputs, str):
            outputs = [f"{self.outputs[0]}.{outputs}"]
        elif outputs is None:
            outputs = [name for name in self.outputs if name]
        suffix = "" if self.outputs[0] in outputs else outputs[0].removeprefix(self.outputs[0])
        node = Node(op, self._name + suffix, list(inputs), list(outputs), attributes, self.source)
        absorb_parameters(node, self.graph.constants)
        self.graph.nodes.append(node)
        return outputs[0]

    def emit_expression(self, composer: Composer, value: int,
                        outputs: Sequence[str] | str | None = None) -> str:
        operands, expression = composer.build(value)
        return self.emit("elementwise", operands, outputs, expression=expression)

    def emit_elementwise(self, expression: Expression, inputs: Sequence[str]) -> str:
        return self.emit("elementwise", inputs, expression=expression)
