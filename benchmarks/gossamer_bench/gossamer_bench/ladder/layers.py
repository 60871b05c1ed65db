"""Reads the layers of the published program from a graph: convolutions with bias and bounds, sums,
means over the image, and matrix products."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from gossamer.errors import UnsupportedError
from gossamer.expression import Expression, apply, identity
from gossamer.model.graph import Node, StaticGraph
from gossamer.model.opset.normalisation import AFFINE
from gossamer.ops.conv2d.problem import Conv2dProblem


@dataclass(frozen=True)
class Convolution:
    """A convolution with a bias, and with bounds on the results, as by ReLU6.

    problem: the convolution without an epilogue.
    weight: (M, C/groups, R, S) float64.
    bias: (M,) float64.
    low, high: bounds of the results, infinite where there are none.
    """

    inputs: tuple[str, ...]
    output: str
    problem: Conv2dProblem
    weight: np.ndarray
    bias: np.ndarray
    low: float = -np.inf
    high: float = np.inf

    @property
    def is_bounded(self) -> bool:
        """True where the results have bounds, so that nothing more can be fused."""
        return (self.low, self.high) != (-np.inf, np.inf)


@dataclass(frozen=True)
class Sum:
    """The sum of two tensors of the same shape."""

    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Mean:
    """The mean of each channel over the image."""

    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Product:
    """A fully connected layer.

    weight: (M, K) float64.
    bias: (M,) float64.
    """

    inputs: tuple[str, ...]
    output: str
    weight: np.ndarray
    bias: np.ndarray


PublishedLayer = Convolution | Sum | Mean | Product


def published_layers(static: StaticGraph) -> list[PublishedLayer]:
    """Returns the layers of a graph in order, with batch norm and bounds fused into convolutions.

    Batch norm is folded in float64. Raises UnsupportedError, which names the node, where the
    published program has no layer for a node.
    """
    readers = Counter(name for node in static.nodes for name in node.inputs)
    readers.update(info.name for info in static.graph.outputs)
    layers: dict[str, PublishedLayer] = {}
    for node in static.nodes:
        layer = _layer(static, node)
        source = layers.get(node.inputs[0])
        if layer is None and isinstance(source, Convolution) and readers[source.output] == 1:
            layer = _fused(static, node, source)
            layers.pop(source.output)
        if layer is None:
            raise UnsupportedError(
                f"{static.graph.file}: {node.source or node.name}: the published program has "
                "convolutions with batch norm and ReLU6, sums, means over the image and matrix "
                "products only")
        layers[layer.output] = layer
    return list(layers.values())


def _layer(static: StaticGraph, node: Node) -> PublishedLayer | None:
    """Returns the layer that a node makes by itself. Returns None for a node that can only be fused
    into a convolution, and for a node that the published program does not have."""
    inputs = tuple(node.inputs)
    shapes = [static.shapes[name] for name in inputs]
    attributes = node.attributes
    constant = [name in static.constants for name in inputs]
    output = node.outputs[0]
    if node.op == "conv2d" and not constant[0] and all(constant[1:]) and _is_biased(node):
        n, c, h, w = shapes[0]
        weight, bias = _constants(static, node)
        problem = Conv2dProblem(
            n, c, h, w, len(weight), weight.shape[2:], tuple(attributes["strides"]),
            tuple(attributes["pads"]), tuple(attributes["dilations"]), attributes["groups"])
        return Convolution(inputs[:1], output, problem, weight, bias)
    if (node.op == "gemm" and not constant[0] and all(constant[1:]) and _is_biased(node)
            and not attributes["trans_a"] and len(shapes[0]) == 2):
        weight, bias = _constants(static, node)
        return Product(inputs[:1], output, weight if attributes["trans_b"] else weight.T, bias)
    if node.op == "reduce" and attributes["kind"] == "mean" and len(shapes[0]) == 4 and sorted(
            axis % 4 for axis in attributes["axes"]) == [2, 3]:
        return Mean(inputs, output)
    if (node.op == "elementwise" and attributes["expression"] == apply("add")
            and not any(constant) and shapes[0] == shapes[1] and len(shapes[0]) == 4):
        return Sum(inputs, output)
    return None


def _is_biased(node: Node) -> bool:
    """Whether a node adds at most a bias to its results."""
    return node.attributes["epilogue"] == (apply("add") if len(node.inputs) == 3 else identity())


def _constants(static: StaticGraph, node: Node) -> tuple[np.ndarray, np.ndarray]:
    """Returns the weight and the bias of a node in float64; the bias is 0 where the node has no
    bias."""
    weight, *bias = (static.constants[name].astype(np.float64) for name in node.inputs[1:])
    outputs = weight.shape[1 if node.op == "gemm" and not node.attributes["trans_b"] else 0]
    return weight, bias[0].reshape(-1) if bias else np.zeros(outputs)


def _fused(static: StaticGraph, node: Node, convolution: Convolution) -> Convolution | None:
    """Returns the convolution fused with an element-wise node that reads its output; None where
    they cannot be fused."""
    if node.op != "elementwise" or convolution.is_bounded:
        return None
    expression = node.attributes["expression"]
    if expression == AFFINE and all(name in static.constants for name in node.inputs[1:]):
        mean, scale, shift = (static.constants[name].astype(np.float64).reshape(-1)
                              for name in node.inputs[1:])
        return replace(convolution, output=node.outputs[0],
                       weight=convolution.weight * scale.reshape(-1, 1, 1, 1),
                       bias=(convolution.bias - mean) * scale + shift)
    bounds = _bounds(expression)
    if bounds is None:
        return None
    return replace(convolution, output=node.outputs[0], low=bounds[0], high=bounds[1])


def _bounds(expression: Expression) -> tuple[float, float] | None:
    """Returns the bounds to which an expression limits its input; None where the expression does
    anything else."""
    if expression == apply("relu"):
        return 0.0, np.inf
    (step, *others) = expression.steps or (None,)
    if step is None or others or step.function != "clip":
        return None
    low, high = step.constants
    return low, high
