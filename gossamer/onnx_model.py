"""ONNX models in memory: reading, walking and writing them; and ONNX Runtime, if installed."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import UnsupportedError, installing

MOST_PARAMETERS = 1024
"""Maximum number of elements of a known value that is passed to ONNX's shape inference. Values that
determine shapes, such as axes and repeats, have fewer elements."""
EXTRA = f"{installing('onnxruntime')}, so that ONNX Runtime computes it on the host"
"""The advice for a node that gossamer does not compute, if ONNX Runtime is not installed."""

_SAME = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "min": "Min",
         "max": "Max", "neg": "Neg", "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
         "tanh": "Tanh", "sin": "Sin", "cos": "Cos", "tan": "Tan", "atan": "Atan", "erf": "Erf",
         "floor": "Floor", "round": "Round", "sigmoid": "Sigmoid", "sign": "Sign", "relu": "Relu",
         "clip": "Clip"}
"""The ONNX operator of each function that has an equivalent. The function's constants become the
last inputs of the node."""
_WITH_ATTRIBUTES = {"leaky_relu": ("LeakyRelu", ("alpha",)),
                    "hard_sigmoid": ("HardSigmoid", ("alpha", "beta"))}
_COMPARISONS = {"less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
                "greater_equal": "GreaterOrEqual", "equal": "Equal"}
_LOGIC = {"and": "And", "or": "Or", "not": "Not"}


def parsed(model: bytes) -> onnx.ModelProto:
    """Parse the model of a part in a saved plan.

    Raises UnsupportedError for a damaged model, and for a model that names another file: plans may
    come from untrusted sources, and must not make ONNX Runtime read files.
    """
    try:
        proto = onnx.load_model_from_string(model)
    except DecodeError:
        raise UnsupportedError("the model of a part is damaged") from None
    for tensor in _tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise UnsupportedError("the model of a part names another file")
    return proto


def with_shapes(proto: onnx.ModelProto, shapes: Sequence[Sequence[int] | None]
                ) -> onnx.ModelProto:
    """Set the shapes of a model's first inputs, and return the model.

    shapes: the shapes of the inputs; None keeps the shape of an input.
    """
    for info, shape in zip(proto.graph.input, shapes, strict=False):
        if shape is None:
            continue
        info.type.tensor_type.ClearField("shape")
        info.type.tensor_type.shape.SetInParent()
        for size in shape:
            info.type.tensor_type.shape.dim.add(dim_value=size)
    return proto


def nodes_of(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, including those of its functions and subgraphs."""
    return nodes_within([*proto.graph.node,
                         *(node for function in proto.functions for node in function.node)])


def nodes_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, each followed by the nodes of its subgraphs."""
    waiting = [*nodes][::-1]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [inner for graph in subgraphs(node) for inner in graph.node][::-1]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the subgraphs of a node, such as the branches of an If."""
    for attribute in node.attribute:
        # for an absent field, protobuf returns an empty graph; changing it would change the node
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of a model, including those of its functions and subgraphs."""
    graphs = [proto.graph]
    sparse: list[onnx.SparseTensorProto] = []
    for node in nodes_of(proto):
        graphs += subgraphs(node)
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            sparse += (attribute.sparse_tensor, *attribute.sparse_tensors)
    for graph in graphs:
        yield from graph.initializer
        sparse += graph.sparse_initializer
    for tensor in sparse:
        yield from (tensor.values, tensor.indices)


class ModelWriter:
    """The nodes, inputs and small constants of an ONNX graph.

    prefix: the prefix of the names of all later nodes and constants.
    """

    def __init__(self, prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.prefix = prefix
        self._count = 0

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        name = self.new_name()
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def input(self, name: str, shape: Sequence[int], dtype: np.typing.DTypeLike) -> str:
        """Add an input of the graph; return its name."""
        self.inputs.append(helper.make_tensor_value_info(name, type_of(dtype), shape))
        return name

    def constant(self, value: Any, dtype: np.typing.DTypeLike) -> str:
        """Add a constant, and return the constant's name."""
        name = self.new_name()
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def integers(self, values: Sequence[int]) -> str:
        """Add a list of int64, such as a shape; return its name."""
        return self.constant(list(values), np.int64)

    def cast(self, value: str, dtype: np.typing.DTypeLike) -> str:
        """Add a conversion of a value; return the result's name."""
        return self.node("Cast", [value], to=type_of(dtype))

    def step(self, function: str, constants: Sequence[float], arguments: Sequence[str],
             dtype: np.typing.DTypeLike, shapes: Sequence[tuple[int, ...]] = ()) -> str:
        """Add a step of an expression; return the result's name.

        function: any function of expressions except to_bfloat16.
        shapes: the shapes of the arguments, if known.
        """
        if function == "constant":
            return self.constant(constants[0], dtype)
        if function in _SAME:
            return self.node(_SAME[function], [*arguments, *(
                self.constant(number, dtype) for number in constants)])
        if function in _WITH_ATTRIBUTES:
            operator, names = _WITH_ATTRIBUTES[function]
            return self.node(operator, arguments, **dict(zip(names, constants, strict=True)))
        if function == "fma":
            x, y, z = (self.cast(argument, "float64") for argument in arguments)
            return self.cast(self.node("Add", [self.node("Mul", [x, y]), z]), dtype)
        if function == "to_float16":
            return self.cast(self.cast(arguments[0], "float16"), dtype)
        if function == "fmod":
            return self.node("Mod", arguments, fmod=1)
        if function == "prelu":
            value, slope = arguments
            if shapes and np.broadcast_shapes(*shapes) == shapes[0]:
                return self.node("PRelu", [value, slope])
            negative = self.node("Less", [value, self.constant(0, dtype)])
            return self.node("Where", [negative, self.node("Mul", [value, slope]), value])
        # truth values are numbers in expressions, and booleans in ONNX
        if function in _COMPARISONS:
            return self.cast(self.node(_COMPARISONS[function], arguments), dtype)
        if function in _LOGIC:
            truths = [self.cast(argument, bool) for argument in arguments]
            return self.cast(self.node(_LOGIC[function], truths), dtype)
        condition, chosen, other = arguments
        return self.node("Where", [self.cast(condition, bool), chosen, other])

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """Add a reshape, and return the result's name."""
        return self.node("Reshape", [value, self.integers(shape)])

    def new_name(self) -> str:
        """Return a name that no other value of the graph has."""
        self._count += 1
        return f"{self.prefix}{self._count}"


def type_of(dtype: np.typing.DTypeLike) -> int:
    """Return the ONNX type of a dtype."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def as_float32(array: np.ndarray) -> np.ndarray:
    """Cast an array of any floating-point type, such as bfloat16, to float32; keep other arrays."""
    return array if array.dtype.kind in "biuUSO" else np.asarray(array, np.float32)


def with_advice(text: str) -> str:
    """Append the advice to install ONNX Runtime to an error's message.

    The message is unchanged if it already contains the advice, or if ONNX Runtime is installed.
    """
    return text if EXTRA in text or has_runtime() else f"{text}; {EXTRA}"


def has_runtime() -> bool:
    """Return whether ONNX Runtime can be imported."""
    return find_spec("onnxruntime") is not None


@functools.cache
def runtime() -> Any:
    """Return the module of ONNX Runtime, with telemetry disabled.

    Telemetry may have written a file if other code imported the module earlier. Raises ImportError
    if the module cannot be imported.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime as library

    if hasattr(library, "disable_telemetry_events"):
        library.disable_telemetry_events()
    return library
