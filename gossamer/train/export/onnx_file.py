"""A trained network as a graph, and as an ONNX file."""

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
"""Weights (units, units of the layer before) and biases (units,) of each layer."""


def model_metadata(activations: Sequence[str], classes: np.ndarray | None,
                   preparation: Preparation | None = None) -> ModelMetadata:
    """Returns the metadata of a network: the names of the classes, whether the outputs are scores,
    and the form of the inputs where they are a grey picture.

    classes: label of each output; None for regression.
    """
    picture_preparation = preparation if preparation and preparation.grey else Preparation()
    picture, brightness = picture_preparation.shape, picture_preparation.brightness
    if classes is None:
        return ModelMetadata(picture=picture, brightness=brightness)
    names = tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name)
                  for name in classes.tolist())
    return ModelMetadata(names, activations[-1] != "softmax", picture, brightness)


def graph(layers: Layers, activations: Sequence[str], model_metadata: ModelMetadata) -> Graph:
    """Returns the graph from the input x (N, inputs) to the output y (N, outputs); it is the one
    that a file of model() holds.

    activations: name of each layer's activation; "none" where it has none.
    """
    network = Graph("mlp", [ValueInfo("x", (None, layers[0][0].shape[1]))],
                    [ValueInfo("y", (None, layers[-1][0].shape[0]))], [], {}, "mlp",
                    metadata=model_metadata)
    value = "x"
    for index, ((weight, bias), activation) in enumerate(zip(layers, activations, strict=True)):
        names = [f"{index}.weight", f"{index}.bias"]
        network.constants.update(zip(names, (weight, bias), strict=True))
        target = f"{index}.sum"
        network.nodes.append(Node("gemm", f"{index}.gemm", [value, *names], [target],
                                  {"trans_a": False, "trans_b": True, "epilogue": apply("add")},
                                  f"Gemm '{index}.gemm'"))
        value = target
        if activation != "none":
            value = f"{index}.{activation}"
            attributes = ({"axis": -1, "log": False} if activation == "softmax"
                          else {"expression": apply(activation)})
            network.nodes.append(Node("softmax" if activation == "softmax" else "elementwise",
                                      f"{index}.activation", [target], [value], attributes,
                                      f"{_OPERATORS[activation]} '{index}.activation'"))
    network.nodes[-1].outputs = ["y"]
    return network


def model(layers: Layers, activations: Sequence[str],
          model_metadata: ModelMetadata) -> onnx.ModelProto:
    """Returns the network as ONNX, from the input x (N, inputs) to the output y (N, outputs): a
    Gemm for each layer, and its activation.

    activations: name of each layer's activation; "none" where it has none.
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
    model_proto = helper.make_model(network, opset_imports=[helper.make_opsetid("", _OPSET)],
                                    ir_version=_IR_VERSION, producer_name="gossamer")
    helper.set_model_props(model_proto, dict(metadata.entries(model_metadata)))
    return model_proto


def write(path: Path, model_proto: onnx.ModelProto) -> None:
    """Writes a model file, completely or not at all. Raises InputError that names the path."""
    if path.suffix != ".onnx":
        raise InputError(f"{path}: expected a name that ends in .onnx")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    with replacing(path) as file:
        file.write(model_proto.SerializeToString())
