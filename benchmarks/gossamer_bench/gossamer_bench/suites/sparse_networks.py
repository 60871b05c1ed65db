"""Whole pruned networks: CaffeNet, GoogLeNet and ResNet-50 with published sparsity, and networks
pruned by magnitude."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from gossamer.bench.work import PeerNetwork
from gossamer.expression import Expression, ExpressionStep
from gossamer.model import zoo
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer_bench import sparse_data
from gossamer_bench.layer_tables import CAFFENET, INCEPTIONS, ConvLayer, googlenet, resnet50
from gossamer_bench.pruned_graphs import pruned, pruned_pointwise, two_of_four
from gossamer_bench.sparse_weights import drawn
from gossamer_bench.suites.mobile_networks import mobilenet_v1

SUITE = "sparse-networks"
_NORMALISED, _ALPHA, _BETA = 5, 1e-4, 0.75
"""Channels, factor and exponent of the local response normalisation of CaffeNet and GoogLeNet."""
_BIAS = 0.1
"""Standard deviation of biases."""
_BEFORE_SUMS = 0.5
"""Factor of the weights of layers whose results are added to a shortcut. The factor keeps the sums
from growing from block to block, as in a trained network."""

WeightOf = Callable[[ConvLayer], np.ndarray]
"""Function that returns the weight (M, C/groups, R, S) of a layer. The layer's name does not begin
with the network's name; a classifier is a 1x1 convolution."""


def sparse_networks(folder: Path | None) -> Mapping[str, Callable[[], PeerNetwork]]:
    """Returns functions by name that make the networks: SkimCaffe's networks with random weights of
    each layer's published density, ResNet-50 with DLMC's masks and with masks drawn from DLMC's,
    and networks pruned by magnitude. Raises InputError where files are missing."""
    folder = sparse_data.check(SUITE, folder, (sparse_data.SKIMCAFFE, *sparse_data.MASKS))
    return {
        "caffenet": partial(_skimcaffe, folder, "caffenet", caffenet),
        "googlenet": partial(_skimcaffe, folder, "googlenet", googlenet_v1),
        "resnet50": partial(_skimcaffe, folder, "resnet50", resnet),
        **_masked_networks(folder, (*sparse_data.SHARES, *sparse_data.DRAWN_FROM)),
        **{name: partial(_pruned, name) for name in _PRUNED}}


def dlmc_networks(suite: str, folder: Path) -> Mapping[str, Callable[[], PeerNetwork]]:
    """Returns functions by name that make ResNet-50 with DLMC's masks. Raises InputError, which
    names the suite, where files are missing."""
    return _masked_networks(sparse_data.check(suite, folder, sparse_data.MASKS),
                            sparse_data.SHARES)


def _masked_networks(folder: Path,
                     shares: Iterable[str]) -> dict[str, Callable[[], PeerNetwork]]:
    return {sparse_data.masked_name(share): partial(_masked, folder, share) for share in shares}


@cache
def dense_resnet50() -> PeerNetwork:
    """Returns ResNet-50 with the shapes of DLMC's ResNet-50 and random weights, none of them
    zero."""
    return PeerNetwork("resnet50", resnet("resnet50", lambda layer: drawn(layer, 1.0), halving=3))


@cache
def _skimcaffe(folder: Path, name: str, build: Callable[[str, WeightOf], Graph]) -> PeerNetwork:
    """Returns a network with random weights of the densities that SkimCaffe published."""
    published = sparse_data.skimcaffe(folder)

    def weight(layer: ConvLayer) -> np.ndarray:
        # classifiers are not among the published layers, so their weights are dense
        _, density = published.get(f"{name}/{layer.name}", (layer, 1.0))
        return drawn(layer, density)

    return PeerNetwork(name, build(name, weight))


@cache
def _masked(folder: Path, share: str) -> PeerNetwork:
    """Returns ResNet-50 with masks of this sparsity."""
    masked = sparse_data.masked_resnet50(folder, share)
    name = sparse_data.masked_name(share)
    return PeerNetwork(name, resnet(name, lambda layer: masked[layer.name].weights(), halving=3))


@cache
def _pruned(name: str) -> PeerNetwork:
    """Returns a network of _PRUNED."""
    return PeerNetwork(name, _PRUNED[name]())


_PRUNED: dict[str, Callable[[], Graph]] = {
    "mobilenetv1-1x1-0.90": lambda: pruned_pointwise(mobilenet_v1(), 0.9),
    "mobilenetv2-1x1-0.90": lambda: pruned_pointwise(zoo.build("mobilenet_v2"), 0.9),
    "yolov4-tiny-0.90": lambda: pruned(zoo.build("yolov4-tiny"), 0.9),
    "resnet50-2:4": lambda: two_of_four(dense_resnet50().graph)}
"""Functions that make networks pruned by magnitude, by name. The weights that are set to zero are
90% of the weights of 1x1 convolutions, 90% of the weights of all convolutions, or two of every four
weights."""


def caffenet(name: str, weight: WeightOf, size: int = 227) -> Graph:
    """Returns CaffeNet, Caffe's variant of AlexNet: images (N, 3, size, size) to 1000 logits."""
    build = _NetworkBuilder(name, weight, size)
    conv = _by_name(CAFFENET)
    x = build.pool(build.conv("x", conv["conv1"]), "max", 3, 2)
    x = build.pool(build.conv(build.normalised(x), conv["conv2"]), "max", 3, 2)
    x = build.normalised(x)
    for layer in ("conv3", "conv4", "conv5"):
        x = build.conv(x, conv[layer])
    x = build.flat(build.pool(x, "max", 3, 2))
    for layer, columns in (("fc6", 4096), ("fc7", 4096)):
        x = build.relu(build.linear(x, layer, columns))
    return build.finish(build.linear(x, "fc8", 1000))


def googlenet_v1(name: str, weight: WeightOf, size: int = 224) -> Graph:
    """Returns GoogLeNet (see layer_tables.googlenet) without the auxiliary classifiers: images
    (N, 3, size, size) to 1000 logits."""
    build = _NetworkBuilder(name, weight, size)
    conv = _by_name(googlenet())
    x = build.pool(build.conv("x", conv["conv1/7x7_s2"]), "max", 3, 2)
    x = build.conv(build.normalised(x), conv["conv2/3x3_reduce"])
    x = build.normalised(build.conv(x, conv["conv2/3x3"]))
    for module, *_ in INCEPTIONS:
        if module in ("3a", "4a", "5a"):
            x = build.pool(x, "max", 3, 2)
        prefix = f"inception_{module}"
        three, five = (build.conv(x, conv[f"{prefix}/{kind}_reduce"]) for kind in ("3x3", "5x5"))
        x = build.concat([build.conv(x, conv[f"{prefix}/1x1"]),
                          build.conv(three, conv[f"{prefix}/3x3"]),
                          build.conv(five, conv[f"{prefix}/5x5"]),
                          build.conv(build.pool(x, "max", 3, 1, 1), conv[f"{prefix}/pool_proj"])])
    return build.finish(build.linear(build.mean(x), "classifier", 1000))


def resnet(name: str, weight: WeightOf, size: int = 224, halving: int = 1) -> Graph:
    """Returns ResNet-50 with batch norm folded: images (N, 3, size, size) to 1000 logits.

    halving: kernel size, 1 or 3, of the convolution that halves the image at the start of a stage;
    see layer_tables.resnet50.
    """
    build = _NetworkBuilder(name, weight, size)
    conv = _by_name(resnet50(halving))
    x = build.pool(build.conv("x", conv["conv1"]), "max", 3, 2)
    for block in [layer.removesuffix("2a") for layer in conv if layer.endswith("2a")]:
        y = x
        for part in ("2a", "2b"):
            y = build.conv(y, conv[block + part])
        y = build.conv(y, conv[f"{block}2c"], relu=False)
        short = build.conv(x, conv[f"{block}1"], relu=False) if f"{block}1" in conv else x
        x = build.relu(build.add(y, short))
    return build.finish(build.linear(build.mean(x), "fc1000", 1000))


def _by_name(layers: Iterable[ConvLayer]) -> dict[str, ConvLayer]:
    """Removes the network's name from the names of layers, and returns the layers by their new
    names."""
    renamed = [replace(layer, name=layer.name.split("/", 1)[1]) for layer in layers]
    return {layer.name: layer for layer in renamed}


class _NetworkBuilder:
    """Appends layers to a graph, with weights from a function and small random biases, which are
    the same in every run.

    Each method returns the name of its result; the builder knows the result's channels and size.
    """

    def __init__(self, name: str, weight: WeightOf, size: int) -> None:
        self._graph = GraphBuilder(name, file=name)
        self._graph.input("x", (None, 3, size, size))
        self._weight = weight
        self._shapes = {"x": (3, size)}
        self._random = np.random.default_rng(0)

    def conv(self, x: str, layer: ConvLayer, relu: bool = True) -> str:
        channels, size = self._shapes[x]
        assert channels == layer.channels
        resized = replace(layer, size=size)
        weight = self._weight(resized)
        if not relu:
            weight = weight * np.float32(_BEFORE_SUMS)
        pad = layer.pad
        y = self._graph.conv2d(
            x, *self._constants(resized, weight), strides=(layer.stride, layer.stride),
            pads=(pad, pad, pad, pad), groups=layer.groups, name=layer.name)
        self._shapes[y] = (layer.out_channels, resized.out_size)
        return self.relu(y) if relu else y

    def linear(self, x: str, name: str, columns: int) -> str:
        layer = ConvLayer(name, self._shapes[x][0], 1, columns, 1)
        weight = self._weight(layer).reshape(columns, -1)
        return self._shaped((columns, 1), self._graph.gemm(
            x, *self._constants(layer, weight), trans_b=True, name=name))

    def pool(self, x: str, kind: str, kernel: int, stride: int, pad: int = 0) -> str:
        """Appends a pool as Caffe computes it: its last windows may reach beyond the padded image,
        and padding counts in an average."""
        channels, size = self._shapes[x]
        y = self._graph.pool(x, kind, (kernel, kernel), strides=(stride, stride),
                             pads=(pad, pad, pad, pad), ceil_mode=True, count_include_pad=True,
                             name=f"{x}.pool{stride}")
        return self._shaped((channels, -((kernel - size - 2 * pad) // stride) + 1), y)

    def normalised(self, x: str) -> str:
        """Appends a local response normalisation: x / (1 + alpha * mean of the squares of the
        neighbouring channels)^beta."""
        channels, size = self._shapes[x]
        graph, margin = self._graph, _NORMALISED // 2
        square = graph.elementwise(Expression(1, (ExpressionStep("mul", (0, 0)),)), x,
                                   name=f"{x}.square")
        rows = graph.reshape(square, (0, 1, channels, -1), name=f"{x}.rows")
        mean = graph.pool(rows, "average", (_NORMALISED, 1), pads=(margin, 0, margin, 0),
                          ceil_mode=True, count_include_pad=True, name=f"{x}.around")
        back = graph.reshape(mean, (0, channels, size, size), name=f"{x}.back")
        factor = Expression(2, (
            ExpressionStep("constant", (), (_ALPHA,)), ExpressionStep("mul", (1, 2)),
            ExpressionStep("constant", (), (1.0,)), ExpressionStep("add", (3, 4)),
            ExpressionStep("constant", (), (-_BETA,)), ExpressionStep("pow", (5, 6)),
            ExpressionStep("mul", (0, 7))))
        return self._shaped(self._shapes[x],
                            graph.elementwise(factor, x, back, name=f"{x}.norm"))

    def relu(self, x: str) -> str:
        return self._shaped(self._shapes[x], self._graph.apply("relu", x, name=f"{x}.relu"))

    def add(self, a: str, b: str) -> str:
        return self._shaped(self._shapes[a], self._graph.apply("add", a, b, name=f"{a}.add"))

    def concat(self, parts: list[str]) -> str:
        channels = sum(self._shapes[part][0] for part in parts)
        return self._shaped((channels, self._shapes[parts[0]][1]),
                            self._graph.concat(parts, name=f"{parts[0]}.concat"))

    def mean(self, x: str) -> str:
        return self._shaped((self._shapes[x][0], 1), self._graph.reduce(
            x, "mean", (2, 3), keepdims=False, name=f"{x}.mean"))

    def flat(self, x: str) -> str:
        channels, size = self._shapes[x]
        return self._shaped((channels * size**2, 1), self._graph.flatten(x, name=f"{x}.flat"))

    def finish(self, y: str) -> Graph:
        """Returns the graph, with y as its output."""
        self._graph.output(y, (None, self._shapes[y][0]))
        return self._graph.finish()

    def _constants(self, layer: ConvLayer, weight: np.ndarray) -> tuple[str, str]:
        """Adds the weight of a layer and a random bias to the graph, and returns their names."""
        bias = _BIAS * self._random.standard_normal(layer.out_channels, np.float32)
        return (self._graph.constant(f"{layer.name}.weight", weight),
                self._graph.constant(f"{layer.name}.bias", bias))

    def _shaped(self, shape: tuple[int, int], name: str) -> str:
        """Notes channels and size of a layer's result, and returns its name."""
        self._shapes[name] = shape
        return name
