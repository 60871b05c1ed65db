"""The preparation of samples as nodes in front of a network, so that its file takes them raw."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import InputError
from gossamer.train.data.preparation import WHITE, Preparation


def put_before(made: onnx.ModelProto, preparation: Preparation) -> None:
    """Changes a network from input `x` (N, inputs), prepared samples, to `x` (N, numbers of a
    sample). Raises InputError where the steps do not end in what the network takes."""
    size = made.graph.input[0].type.tensor_type.shape.dim[1]
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
        # 0 keeps the number of samples
        steps.add("Reshape", picture=np.array([0, *shape], np.int64))
        steps.add("Pad", margins=np.array([0, top, left, 0, bottom, right], np.int64))
        steps.add("Reshape", sample=np.array([0, height * width], np.int64))
        size.dim_value = math.prod(shape)
    if preparation.shape is not None and math.prod(preparation.shape) != size.dim_value:
        height, width = preparation.shape
        raise InputError(f"preparation: its pictures are {height}x{width}, the network takes "
                         f"{size.dim_value} numbers")
    for node in made.graph.node:
        node.input[:] = [steps.value if name == "x" else name for name in node.input]
    nodes = [*steps.nodes, *made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    made.graph.initializer.extend(steps.constants)


def least_that_counts(preparation: Preparation) -> np.float32:
    """The least number of a sample that becomes 1 at the threshold. One comparison gives the same
    as a division and a comparison, also where divisions are not rounded correctly."""
    threshold, white = np.float32(preparation.threshold), np.float32(WHITE)
    if not preparation.scale:
        return threshold
    found = threshold * white
    while found / white >= threshold:
        found = np.nextafter(found, np.float32(-np.inf))
    while found / white < threshold:
        found = np.nextafter(found, np.float32(np.inf))
    return found


class _NodeChain:
    """Nodes one after the other. value: what the last one makes."""

    def __init__(self, value: str) -> None:
        self.value = value
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *, to: int | None = None, **constants: np.ndarray) -> None:
        """A node of the last value and constants, which are named by what they are."""
        name = f"prepare.{len(self.nodes)}"
        inputs = [self.value, *(f"{name}.{what}" for what in constants)]
        self.constants += map(numpy_helper.from_array, constants.values(), inputs[1:])
        self.value = f"{name}.{operator.lower()}"
        self.nodes.append(helper.make_node(operator, inputs, [self.value], name, to=to))
