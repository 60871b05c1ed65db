"""A trained network as a graph, and as ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import InputError
from gossamer.expression import apply
from gossamer.io.output_files import replacing
from gossamer.model.graph import Graph, ModelMetadata, Node, ValueInfo
from gossamer.model.readers.onnx import metadata
from gossamer.train.data.preparation import Preparation

_OPSET, _IR_VERSION = 17, 8
_OPERATORS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "softmax": "Softmax"}
Layers = Sequence[tuple[np.ndarray, np.ndarray]]
"""(weights (units, units before), biases (units,)) of each."""


def model_metadata(activations: Sequence[str], classes: np.ndarray | None,
            preparation: Preparation | None = None) -> ModelMetadata:
    """What the outputs stand for, and the inputs where they are a picture. classes: the labels,
    by output; None for regression."""
    taken = preparation if preparation and preparation.grey else Preparation()
    picture, brightness = taken.shape, taken.brightness
    if classes is None:
        return ModelMetadata(picture=picture, brightness=brightness)
    names = tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name)
                  for name in classes.tolist())
    return ModelMetadata(names, activations[-1] != "softmax", picture, brightness)


def graph(layers: Layers, activations: Sequence[str], model_metadata: ModelMetadata) -> Graph:
    """The network from input x (N, inputs) to output y (N, outputs), as a file of model() has it.

    activations: of each layer, "none" for none.
    """
    made = Graph("mlp", [ValueInfo("x", (None, layers[0][0].shape[1]))],
                 [ValueInfo("y", (None, layers[-1][0].shape[0]))], [], {}, "mlp",
                 metadata=model_metadata)
    value = "x"
    for index, ((weight, bias), activation) in enumerate(zip(layers, activations, strict=True)):
        names = [f"{index}.weight", f"{index}.bias"]
        made.constants.update(zip(names, (weight, bias), strict=True))
        target = f"{index}.sum"
        made.nodes.append(Node("gemm", f"{index}.gemm", [value, *names], [target],
                               {"trans_a": False, "trans_b": True, "epilogue": apply("add")},
                               f"Gemm '{index}.gemm'"))
        value = target
        if activation != "none":
            value = f"{index}.{activation}"
            attributes = ({"axis": -1, "log": False} if activation == "softmax"
                          else {"expression": apply(activation)})
            made.nodes.append(Node("softmax" if activation == "softmax" else "elementwise",
                                   f"{index}.activation", [target], [value], attributes,
                                   f"{_OPERATORS[activation]} '{index}.activation'"))
    made.nodes[-1].outputs = ["y"]
    return made


def model(layers: Layers, activations: Sequence[str], model_metadata: ModelMetadata) -> onnx.ModelProto:
    """Gemm and activation for each layer, from input x (N, inputs) to output y (N, outputs).

    model_metadata: kept in the metadata.
    """
    nodes: list[onnx.NodeProto] = []
    constants = []
    value = "x"
    for index, ((weight, bias), activation) in enumerate(zip(layers, activations, strict=True)):
        constants += [numpy_helper.from_array(np.ascontiguousarray(weight), f"{index}.weight"),
                      numpy_helper.from_array(np.ascontiguousarray(bias), f"{index}.bias")]
        target = f"{index}.sum"
        nodes.append(helper.make_node("Gemm", [value, f"{index}.weight", f"{index}.bias"],
                                      [target], f"{index}.gemm", transB=1))
        value = target
        if activation != "none":
            value = f"{index}.{activation}"
            nodes.append(helper.make_node(_OPERATORS[activation], [target], [value],
                                          f"{index}.activation"))
    nodes[-1].output[0] = "y"
    inputs, outputs = layers[0][0].shape[1], layers[-1][0].shape[0]
    network = helper.make_graph(
        nodes, "mlp", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", outputs])], constants)
    made = helper.make_model(network, opset_imports=[helper.make_opsetid("", _OPSET)],
                             ir_version=_IR_VERSION, producer_name="gossamer")
    helper.set_model_props(made, dict(metadata.entries(model_metadata)))
    return made


def write(path: Path, made: onnx.ModelProto) -> None:
    """Writes a file, whole or not at all. Raises InputError that names the path."""
    if path.suffix != ".onnx":
        raise InputError(f"{path}: expected a name that ends in .onnx")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    with replacing(path) as file:
        file.write(made.SerializeToString())
