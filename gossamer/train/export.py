"""A trained network as a graph, and as an ONNX file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gossamer.errors import InputError
from gossamer.io.output_files import replacing
from gossamer.model.builder import GraphBuilder, NodeNames
from gossamer.model.graph import Graph
from gossamer.model.metadata import ModelMetadata
from gossamer.model.onnx_writer import to_onnx
from gossamer.train.data.dataset import WHITE, Preparation

Layers = Sequence[tuple[np.ndarray, np.ndarray]]
"""Weights (units, units of the layer before) and biases (units,) of each layer."""


def model_metadata(activations: Sequence[str], classes: np.ndarray | None,
                   preparation: Preparation | None = None) -> ModelMetadata:
    """Return the metadata of a network's inputs and outputs.

    The metadata describes inputs only if these are the pixels of a grey picture or the columns of a
    table.

    activations: name of each layer's activation.
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


def graph(layers: Layers, activations: Sequence[str], model_metadata: ModelMetadata,
          preparation: Preparation | None = None) -> Graph:
    """Return the graph of a trained network.

    The input x has the shape (N, inputs) or, with a preparation, (N, size of an unprepared sample).
    The output y has the shape (N, outputs).

    activations: name of each layer's activation; "linear" adds no node.
    preparation: steps that the graph applies to x before the first layer.
    Raises InputError if a prepared sample does not have the network's number of inputs.
    """
    build = GraphBuilder("mlp", file="mlp", metadata=model_metadata)
    value = _prepared(build, preparation or Preparation(), layers[0][0].shape[1])
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


def _prepared(build: GraphBuilder, preparation: Preparation, inputs: int) -> str:
    """Add the input x with its preparation; return its name.

    inputs: number of inputs of the network.
    """
    numbers = inputs
    margins = (0, 0), (0, 0)
    if preparation.pad is not None:
        margins = preparation.margins("preparation")
        height, width = preparation.pad
        if height * width != inputs:
            raise InputError(f"preparation: pads to {height}x{width}, but the network has "
                             f"{inputs} inputs")
        shape = height - sum(margins[0]), width - sum(margins[1])
        numbers = math.prod(shape)
    if preparation.shape is not None and math.prod(preparation.shape) != numbers:
        height, width = preparation.shape
        raise InputError(f"preparation: its images are {height}x{width}, but the network needs "
                         f"images of {numbers} pixels")
    value = build.input("x", (None, numbers))
    if preparation.threshold is not None:
        value = build.apply("greater_equal", value, build.constant(
            "prepare.least", least_that_counts(preparation)))
    elif preparation.scale:
        value = build.apply("div", value, build.constant("prepare.white", np.float32(WHITE)))
    if preparation.pad is not None:
        (top, bottom), (left, right) = margins
        value = build.reshape(value, (0, *shape))
        value = build.add("pad", [value], pads=(0, top, left, 0, bottom, right), mode="constant",
                          value=0.0)
        value = build.reshape(value, (0, inputs))
    return value


def least_that_counts(preparation: Preparation) -> np.float32:
    """Return the smallest unprepared value that a preparation turns into 1.

    The graph compares values with this number. If it divided the values by 255 and compared them
    with the threshold, results could differ, because not every device rounds divisions correctly.
    """
    threshold, white = np.float32(preparation.threshold), np.float32(WHITE)
    if not preparation.scale:
        return threshold
    least = threshold * white
    while least / white >= threshold:
        least = np.nextafter(least, np.float32(-np.inf))
    while least / white < threshold:
        least = np.nextafter(least, np.float32(np.inf))
    return least


def write(path: Path, network: Graph) -> None:
    """Write a network to an ONNX file atomically.

    Raises InputError if the file cannot be written.
    """
    if path.suffix != ".onnx":
        raise InputError(f"{path}: expected a name that ends in .onnx")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    model = to_onnx(network)
    model.producer_name = "gossamer"
    with replacing(path) as file:
        file.write(model.SerializeToString())
