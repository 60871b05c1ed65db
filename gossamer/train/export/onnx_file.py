"""Turn a trained network into a graph, and into an ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from gossamer.errors import InputError
from gossamer.io.output_files import replacing
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.model.metadata import ModelMetadata
from gossamer.model.node_builder import NodeNames
from gossamer.model.onnx_writer import to_onnx
from gossamer.train.data.dataset import Preparation

Layers = Sequence[tuple[np.ndarray, np.ndarray]]
"""Weights (units, units of the layer before) and biases (units,) of each layer."""


def model_metadata(activations: Sequence[str], classes: np.ndarray | None,
                   preparation: Preparation | None = None) -> ModelMetadata:
    """Return the metadata of a network: the names of the classes, whether the outputs are scores,
    and the meaning of the inputs where they are a grey picture or the columns of a table.

    classes: label of each output; None for regression.
    """
    picture_preparation = preparation if preparation and preparation.grey else Preparation()
    picture, brightness = picture_preparation.shape, picture_preparation.brightness
    columns = preparation.columns if preparation else ()
    if classes is None:
        return ModelMetadata(picture=picture, brightness=brightness, columns=columns)
    names = tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name)
                  for name in classes.tolist())
    return ModelMetadata(names, activations[-1] != "softmax", picture, brightness,
                         columns=columns)


def graph(layers: Layers, activations: Sequence[str], model_metadata: ModelMetadata) -> Graph:
    """Return the graph from the input x (N, inputs) to the output y (N, outputs): a product for
    each layer, and its activation.

    activations: name of each layer's activation; "linear" adds none.
    """
    build = GraphBuilder("mlp", file="mlp", metadata=model_metadata)
    value = build.input("x", (None, layers[0][0].shape[1]))
    for index, ((weight, bias), activation) in enumerate(zip(layers, activations, strict=True)):
        is_last = index == len(layers) - 1
        value = build.gemm(
            value, build.constant(f"{index}.weight", weight),
            build.constant(f"{index}.bias", bias), trans_b=True, name=f"{index}.gemm",
            output="y" if is_last and activation == "linear" else f"{index}.sum",
            source=f"Gemm '{index}.gemm'")
        if activation == "linear":
            continue
        names = NodeNames(name=f"{index}.activation",
                          output="y" if is_last else f"{index}.{activation}",
                          source=f"{activation.capitalize()} '{index}.activation'")
        value = (build.softmax(value, **names) if activation == "softmax"
                 else build.apply(activation, value, **names))
    build.output(value, (None, layers[-1][0].shape[0]))
    return build.finish()


def model(layers: Layers, activations: Sequence[str],
          model_metadata: ModelMetadata) -> onnx.ModelProto:
    """Return the graph of these layers as ONNX, with its metadata."""
    model_proto = to_onnx(graph(layers, activations, model_metadata))
    model_proto.producer_name = "gossamer"
    return model_proto


def write(path: Path, model_proto: onnx.ModelProto) -> None:
    """Write a model file, completely or not at all. Raises InputError that names the path."""
    if path.suffix != ".onnx":
        raise InputError(f"{path}: expected a name that ends in .onnx")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    with replacing(path) as file:
        file.write(model_proto.SerializeToString())
