"""Put the preparation of samples in front of a network, as nodes, so that the network's file takes
samples that are not prepared."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import InputError
from gossamer.train.data.dataset import WHITE, Preparation


def put_before(model: onnx.ModelProto, preparation: Preparation) -> None:
    """Put the steps of a preparation before a network. The shape of the input `x` becomes (N,
    numbers of a sample) instead of (N, inputs). Raises InputError where a prepared sample does
    not have as many numbers as the network has inputs."""
    size = model.graph.input[0].type.tensor_type.shape.dim[1]
    steps = _NodeChain("x")
    if preparation.threshold is not None:
        steps.add("GreaterOrEqual", least=np.array(least_that_counts(preparation), np.float32))
        steps.add("Cast", to=TensorProto.FLOAT)
    elif preparation.scale:
        steps.add("Div", white=np.array(WHITE, np.float32))
    if preparation.pad is not None:
        (top, bottom), (left, right) = preparation.margins("preparation")
        height, width = preparation.pad
        if height * width != size.dim_value:
            raise InputError(f"preparation: pads to {height}x{width}, the network takes "
                             f"{size.dim_value} numbers")
        shape = height - top - bottom, width - left - right
        # in the new shape, 0 keeps the size of this dimension, which is the number of samples
        steps.add("Reshape", picture=np.array([0, *shape], np.int64))
        steps.add("Pad", margins=np.array([0, top, left, 0, bottom, right], np.int64))
        steps.add("Reshape", sample=np.array([0, height * width], np.int64))
        size.dim_value = math.prod(shape)
    if preparation.shape is not None and math.prod(preparation.shape) != size.dim_value:
        height, width = preparation.shape
        raise InputError(f"preparation: its pictures are {height}x{width}, the network takes "
                         f"{size.dim_value} numbers")
    for node in model.graph.node:
        node.input[:] = [steps.value if name == "x" else name for name in node.input]
    nodes = [*steps.nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(steps.constants)


def least_that_counts(preparation: Preparation) -> np.float32:
    """Return the smallest number of a sample that the threshold turns into 1. A comparison with
    this number gives the same result as the scaling and a comparison with the threshold, even where
    a device does not round divisions correctly."""
    threshold, white = np.float32(preparation.threshold), np.float32(WHITE)
    if not preparation.scale:
        return threshold
    least = threshold * white
    while least / white >= threshold:
        least = np.nextafter(least, np.float32(-np.inf))
    while least / white < threshold:
        least = np.nextafter(least, np.float32(np.inf))
    return least


class _NodeChain:
    """A chain of nodes: each takes the output of the node before. `value` names the last output."""

    def __init__(self, value: str) -> None:
        self.value = value
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *, to: int | None = None, **constants: np.ndarray) -> None:
        """Add a node that takes the last output and constants, by name."""
        name = f"prepare.{len(self.nodes)}"
        inputs = [self.value, *(f"{name}.{constant}" for constant in constants)]
        self.constants += map(numpy_helper.from_array, constants.values(), inputs[1:])
        self.value = f"{name}.{operator.lower()}"
        self.nodes.append(helper.make_node(operator, inputs, [self.value], name, to=to))
