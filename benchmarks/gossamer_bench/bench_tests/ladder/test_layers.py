"""The layers of the published program, read from graphs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bench_tests.ladder.networks import every_layer
from gossamer.errors import UnsupportedError
from gossamer.expression import apply
from gossamer.model import zoo
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer_bench.ladder.layers import Convolution, Mean, Product, Sum, published_layers


def test_mobilenet_has_the_published_layers() -> None:
    layers = published_layers(resolve(zoo.build("mobilenet_v2", seed=3), 1))
    assert Counter(map(type, layers)) == {Convolution: 52, Sum: 10, Mean: 1, Product: 1}
    convolutions = [layer for layer in layers if isinstance(layer, Convolution)]
    assert Counter((layer.low, layer.high) for layer in convolutions) == {
        (0.0, 6.0): 35, (-np.inf, np.inf): 17}
    # the parameters of MobileNetV2, with one bias where a batch norm has two numbers
    count = sum(layer.weight.size + layer.bias.size for layer in layers
                if isinstance(layer, Convolution | Product))
    norms = sum(layer.bias.size for layer in convolutions)
    assert count + norms == 3_504_872


def test_norms_and_bounds_belong_to_convolutions() -> None:
    static = resolve(every_layer(), 2)
    layers = {layer.output: layer for layer in published_layers(static)}
    assert [type(layer).__name__ for layer in layers.values()] == [
        "Convolution", "Convolution", "Convolution", "Sum", "Convolution", "Convolution",
        "Convolution", "Mean", "Product", "Product"]
    stem, wide, point, *_ = layers.values()
    assert isinstance(stem, Convolution) and (stem.low, stem.high) == (-0.5, 0.75)
    assert isinstance(wide, Convolution) and (wide.low, wide.high) == (0.0, np.inf)
    assert isinstance(point, Convolution) and not point.is_bounded
    graph = every_layer().constants
    scale = graph["norm.gamma"].astype(np.float64) / np.sqrt(graph["norm.variance"] + 1e-5)
    np.testing.assert_allclose(
        stem.weight, graph["stem.weight"] * scale.reshape(-1, 1, 1, 1), rtol=1e-6)
    np.testing.assert_allclose(stem.bias, graph["norm.beta"] - graph["norm.mean"] * scale,
                               rtol=1e-5)
    assert [layer.weight.shape for layer in layers.values() if isinstance(layer, Product)] == [
        (9, 14), (5, 9)]


def _after_convolution(kind: str) -> Graph:
    """A convolution and a layer that the published program does not have."""
    graph = GraphBuilder("other", file="other.onnx")
    x = graph.input("x", (None, 3, 4, 4))
    weight = graph.constant("weight", np.ones((3, 3, 1, 1), np.float32))
    y = graph.conv2d(x, weight, name="conv")
    if kind == "softmax":
        y = graph.softmax(y, name="last")
    elif kind == "sigmoid":
        y = graph.apply("sigmoid", y, name="last")
    elif kind == "bounded twice":
        y = graph.apply("relu", graph.apply("relu", y), name="last")
    elif kind == "read twice":
        y = graph.apply("add", graph.apply("relu", y, name="last"), y)
    elif kind == "maximum":
        y = graph.reduce(y, "max", "spatial", keepdims=True, name="last")
    elif kind == "rows":
        y = graph.reduce(y, "mean", (2,), keepdims=True, name="last")
    elif kind == "constant added":
        y = graph.apply("add", y, graph.constant("c", np.ones((3, 4, 4), np.float32)), name="last")
    elif kind == "product":
        y = graph.gemm(y, graph.constant("c", np.ones((4, 4), np.float32)), name="last")
    graph.output(y, (None, 3, *{"maximum": (1, 1), "rows": (1, 4)}.get(kind, (4, 4))))
    return graph.finish()


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "bounded twice", "read twice", "maximum",
                                  "rows", "constant added", "product"])
def test_other_layers_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedError, match=r"^other\.onnx: .*last.*: the published program has "
                                               r"convolutions with batch norm"):
        published_layers(resolve(_after_convolution(kind), 1))


def test_other_epilogues_are_refused() -> None:
    graph = every_layer()
    stem = graph.nodes[0]
    graph.nodes[0] = replace(stem, attributes={**stem.attributes, "epilogue": apply("relu")})
    with pytest.raises(UnsupportedError, match="stem"):
        published_layers(resolve(graph, 1))
