"""The four networks of MLPerf Tiny with random weights.

Source: C. Banbury et al., "MLPerf Tiny Benchmark", NeurIPS 2021, Datasets and Benchmarks, with the
reference models that it names. The weights are the same in every run, with the magnitudes of K. He
et al., "Delving Deep into Rectifiers", ICCV 2015. Batch norms are folded, so that each layer has a
bias. Images are padded as TensorFlow's padding "same" does: of an odd number of rows or columns the
larger half is at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph

SUITE = "mlperf-tiny"
_SEED = 7
_BIAS = 0.1
"""Standard deviation of biases."""


def ds_cnn() -> Graph:
    """Returns the network that spots keywords: 49 frames of 10 coefficients to 12 shares."""
    network = _Network("ds-cnn", 1, 49, 10)
    x = network.conv(network.input, 64, (10, 4), stride=2)
    for _ in range(4):
        x = network.separable(x, 64)
    return network.classifier(x, 12)


def mobilenet_v1_quarter() -> Graph:
    """Returns the network that sees persons, MobileNetV1 of width 0.25: images of 96x96 to 2
    shares."""
    network = _Network("mobilenetv1-0.25", 3, 96, 96)
    x = network.conv(network.input, 8, stride=2)
    for out, stride in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5,
                        (256, 2), (256, 1)):
        x = network.separable(x, out, stride)
    return network.classifier(x, 2)


def resnet_8() -> Graph:
    """Returns the network that classifies CIFAR-10: images of 32x32 to 10 shares."""
    network = _Network("resnet-8", 3, 32, 32)
    x = network.conv(network.input, 16)
    for out, stride in ((16, 1), (32, 2), (64, 2)):
        y = network.conv(network.conv(x, out, stride=stride), out, relu=False)
        if stride > 1:
            x = network.conv(x, out, (1, 1), stride=stride, relu=False)
        x = network.sum(x, y)
    return network.classifier(x, 10)


def autoencoder() -> Graph:
    """Returns the network that detects anomalies in sounds: 5 frames of 128 bands to the same."""
    network = _Network("autoencoder", 640)
    x = network.input
    for size in (*[128] * 4, 8, *[128] * 4):
        x = network.dense(x, size)
    return network.finish(network.dense(x, 640, relu=False))


MLPERF_TINY_NETWORKS: Mapping[str, Callable[[], Graph]] = {
    "ds-cnn": ds_cnn, "mobilenetv1-0.25": mobilenet_v1_quarter, "resnet-8": resnet_8,
    "autoencoder": autoencoder}
"""Functions that build each network, by its name as a case."""


class _Network:
    """A network under construction, which remembers the shape of each result."""

    def __init__(self, name: str, *shape: int) -> None:
        self._random = np.random.default_rng(_SEED)
        self._graph = GraphBuilder(name)
        self.input = self._graph.input("x", (None, *shape))
        self._shapes = {self.input: shape}

    def conv(self, x: str, out: int, kernel: tuple[int, int] = (3, 3), *, stride: int = 1,
             groups: int = 1, relu: bool = True) -> str:
        """Appends a convolution with a bias and, by default, a ReLU, and returns its result."""
        channels, *image = self._shapes[x]
        rows, columns = (-(-size // stride) for size in image)
        high, wide = (max(0, (result - 1) * stride + extent - size) for result, extent, size in
                      zip((rows, columns), kernel, image, strict=True))
        weight, bias = self._constants(out, channels // groups, *kernel)
        y = self._graph.conv2d(
            x, weight, bias, strides=(stride, stride), groups=groups,
            pads=(high // 2, wide // 2, high - high // 2, wide - wide // 2))
        return self._shaped(self._graph.apply("relu", y) if relu else y, out, rows, columns)

    def separable(self, x: str, out: int, stride: int = 1) -> str:
        """Appends a depthwise and a 1x1 convolution, and returns their result."""
        channels = self._shapes[x][0]
        return self.conv(self.conv(x, channels, stride=stride, groups=channels), out, (1, 1))

    def sum(self, a: str, b: str) -> str:
        """Appends the sum of two results with a ReLU."""
        y = self._graph.apply("relu", self._graph.apply("add", a, b))
        return self._shaped(y, *self._shapes[a])

    def dense(self, x: str, out: int, *, relu: bool = True) -> str:
        """Appends a fully connected layer and, by default, a ReLU."""
        weight, bias = self._constants(out, *self._shapes[x])
        y = self._graph.gemm(x, weight, bias, trans_b=True)
        return self._shaped(self._graph.apply("relu", y) if relu else y, out)

    def classifier(self, x: str, classes: int) -> Graph:
        """Appends the mean over the image, a fully connected layer and a softmax; returns the
        graph."""
        mean = self._shaped(self._graph.reduce(x, "mean", "spatial", keepdims=False),
                            self._shapes[x][0])
        logits = self.dense(mean, classes, relu=False)
        return self.finish(self._shaped(self._graph.softmax(logits), classes))

    def finish(self, y: str) -> Graph:
        """Returns the graph, with `y` as its output."""
        self._graph.output(y, (None, *self._shapes[y]))
        return self._graph.finish()

    def _constants(self, *shape: int) -> tuple[str, str]:
        """Adds a weight of this shape, and a bias, and returns their names."""
        number = len(self._shapes)
        weight = self._random.standard_normal(shape, np.float32) * np.float32(
            np.sqrt(2 / np.prod(shape[1:])))
        bias = _BIAS * self._random.standard_normal(shape[0], np.float32)
        return (self._graph.constant(f"weight{number}", weight),
                self._graph.constant(f"bias{number}", bias))

    def _shaped(self, name: str, *shape: int) -> str:
        """Notes the shape of a result, and returns its name."""
        self._shapes[name] = shape
        return name
