"""A network with every kind of layer and shape that the kernels of the ladder treat differently."""

from __future__ import annotations

import numpy as np

from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph


def every_layer() -> Graph:
    """Returns a network from 3x7x6 to 5 with asymmetric padding, strides, dilation, groups, a
    tensor that several layers read with different padding, and each way to bound results."""
    rng = np.random.default_rng(7)
    graph = GraphBuilder("every layer", file="every-layer.onnx")

    def values(name: str, *shape: int, low: float = -1.0) -> str:
        return graph.constant(name, rng.uniform(low, 1.0, shape).astype(np.float32))

    def norm(x: str, name: str, channels: int) -> str:
        return graph.batch_norm(x, *(values(f"{name}.{part}", channels, low=low)
                                     for part, low in (("gamma", -1.0), ("beta", -1.0),
                                                       ("mean", -1.0), ("variance", 0.5))),
                                name=name)

    x = graph.input("x", (None, 3, 7, 6))
    stem = graph.conv2d(x, values("stem.weight", 6, 3, 3, 2), strides=(2, 1), pads=(1, 0, 2, 1),
                        name="stem")
    stem = graph.apply("clip", norm(stem, "norm", 6), constants=(-0.5, 0.75), name="bounds")
    wide = graph.conv2d(stem, values("wide.weight", 6, 1, 3, 3), values("wide.bias", 6),
                        pads=(2, 2, 2, 2), dilations=(2, 2), groups=6, name="wide")
    wide = graph.apply("relu", wide, name="relu")
    point = norm(graph.conv2d(stem, values("point.weight", 6, 6, 1, 1), name="point"), "last", 6)
    both = graph.apply("add", wide, point, name="both")
    halves = graph.conv2d(both, values("halves.weight", 8, 3, 2, 2), strides=(1, 2),
                          pads=(0, 1, 1, 0), groups=2, name="halves")
    expand = graph.conv2d(halves, values("expand.weight", 7, 8, 1, 1),
                          values("expand.bias", 7), name="expand")
    deep = graph.conv2d(expand, values("deep.weight", 14, 1, 3, 3), pads=(1, 1, 1, 1), groups=7,
                        name="deep")
    mean = graph.reduce(deep, "mean", "spatial", keepdims=False, name="mean")
    inner = graph.gemm(mean, values("inner.weight", 14, 9), name="inner")
    classes = graph.gemm(inner, values("classes.weight", 5, 9), values("classes.bias", 5),
                         trans_b=True, name="classes")
    graph.output(classes, (None, 5))
    return graph.finish()
