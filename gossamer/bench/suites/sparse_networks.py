"""Whole pruned networks: CaffeNet, GoogLeNet and ResNet-50 with published sparsity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from gossamer.bench import sparse_data
from gossamer.bench.contender import PeerNetwork
from gossamer.bench.layer_tables import (
    CAFFENET,
    INCEPTIONS,
    ConvLayer,
    googlenet,
    resnet50,
)
from gossamer.bench.sparse_weights import drawn
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.model.graph import Graph, Node, ValueInfo

SUITE = "sparse-networks"
_NORMALISED, _ALPHA, _BETA = 5, 1e-4, 0.75
"""Channels, factor and exponent of the local response normalisation of CaffeNet and GoogLeNet."""
_BIAS = 0.1
"""Standard deviation of biases."""
_BEFORE_SUMS = 0.5
"""Factor of the weights of layers whose results are added up, so that sums do not grow from block
to block, as in a trained network."""

WeightOf = Callable[[ConvLayer], np.ndarray]
"""Function from a layer, named without its network, to its weight (M, C/groups, R, S); a classifier
is a 1x1 convolution."""


def sparse_networks(folder: Path | None) -> Mapping[str, Callable[[], PeerNetwork]]:
    """Returns functions by name that make the networks: SkimCaffe's with random weights of each
    layer's published density, and ResNet-50 with DLMC's masks. Raises InputError where files are
    missing."""
    folder = sparse_data.check(SUITE, folder, (sparse_data.SKIMCAFFE, *sparse_data.MASKS))
    return {
        "caffenet": partial(_skimcaffe, folder, "caffenet", caffenet),
        "googlenet": partial(_skimcaffe, folder, "googlenet", googlenet_v1),
        "resnet50": partial(_skimcaffe, folder, "resnet50", resnet),
        **{f"resnet50-dlmc-{share}": partial(_dlmc, folder, share)
           for share in sparse_data.SHARES}}


@cache
def _skimcaffe(folder: Path, name: str, build: Callable[[str, WeightOf], Graph]) -> PeerNetwork:
    """A network with random weights of the densities that SkimCaffe published."""
    published = sparse_data.skimcaffe(folder)

    def weight(layer: ConvLayer) -> np.ndarray:
        # classifiers are not among the published layers, so their weights are dense
        _, density = published.get(f"{name}/{layer.name}", (layer, 1.0))
        return drawn(layer, density)

    return PeerNetwork(name, build(name, weight))


@cache
def _dlmc(folder: Path, share: str) -> PeerNetwork:
    """ResNet-50 with DLMC's masks of this sparsity."""
    masked = sparse_data.masked_resnet50(folder, share)
    name = f"resnet50-dlmc-{share}"
    return PeerNetwork(name, resnet(name, lambda layer: masked[layer.name].weights(), halving=3))


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

    halving: as for layer_tables.resnet50.
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
    """The layers, renamed to their names within the network, by these names."""
    renamed = [replace(layer, name=layer.name.split("/", 1)[1]) for layer in layers]
    return {layer.name: layer for layer in renamed}


class _NetworkBuilder:
    """Appends nodes to a graph.

    Each method returns the name of its result; the builder knows the result's channels and size.
    Biases are small and random, the same in every run.
    """

    def __init__(self, name: str, weight: WeightOf, size: int) -> None:
        self.graph = Graph(name, [ValueInfo("x", (None, 3, size, size))], [], [], {}, name)
        self._weight = weight
        self._shapes = {"x": (3, size)}
        self._random = np.random.default_rng(0)

    def conv(self, x: str, layer: ConvLayer, relu: bool = True) -> str:
        channels, size = self._shapes[x]
        assert channels == layer.channels
        resized = replace(layer, size=size)
        inputs = self._with_constants(x, resized)
        if not relu:
            self.graph.constants[inputs[1]] *= np.float32(_BEFORE_SUMS)
        y = self._node("conv2d", layer.name, inputs, {
            "strides": (layer.stride,) * 2, "pads": (layer.pad,) * 4, "dilations": (1, 1),
            "groups": layer.groups, "epilogue": apply("add")}, (layer.out_channels,
                                                                resized.out_size))
        return self.relu(y) if relu else y

    def linear(self, x: str, name: str, columns: int) -> str:
        layer = ConvLayer(name, self._shapes[x][0], 1, columns, 1)
        inputs = self._with_constants(x, layer)
        self.graph.constants[inputs[1]] = self.graph.constants[inputs[1]].reshape(columns, -1)
        return self._node("gemm", name, inputs, {"trans_a": False, "trans_b": True,
                                                 "epilogue": apply("add")}, (columns, 1))

    def pool(self, x: str, kind: str, kernel: int, stride: int, pad: int = 0) -> str:
        """Appends a pool as Caffe computes it: a window that reaches beyond the end counts."""
        channels, size = self._shapes[x]
        return self._node("pool", f"{x}.pool{stride}", [x], _window((kernel,) * 2, stride,
                                                                    (pad,) * 4, kind),
                          (channels, -((kernel - size - 2 * pad) // stride) + 1))

    def normalised(self, x: str) -> str:
        """Appends a local response normalisation: x / (1 + alpha * mean of the squares of the
        neighbouring channels)^beta."""
        channels, size = self._shapes[x]
        square = self._elementwise(f"{x}.square", [x],
                                   Expression(1, (ExpressionStep("mul", (0, 0)),)))
        rows = self._node("reshape", f"{x}.rows", [square], {"shape": (0, 1, channels, -1)},
                          (1, channels))
        mean = self._node("pool", f"{x}.around", [rows], _window(
            (_NORMALISED, 1), 1, (_NORMALISED // 2, 0) * 2, "average"), (1, channels))
        back = self._node("reshape", f"{x}.back", [mean], {"shape": (0, channels, size, size)},
                          (channels, size))
        factor = Expression(2, (
            ExpressionStep("constant", (), (_ALPHA,)), ExpressionStep("mul", (1, 2)),
            ExpressionStep("constant", (), (1.0,)), ExpressionStep("add", (3, 4)),
            ExpressionStep("constant", (), (-_BETA,)), ExpressionStep("pow", (5, 6)),
            ExpressionStep("mul", (0, 7))))
        return self._elementwise(f"{x}.norm", [x, back], factor)

    def relu(self, x: str) -> str:
        return self._elementwise(f"{x}.relu", [x], apply("relu"))

    def add(self, a: str, b: str) -> str:
        return self._elementwise(f"{a}.add", [a, b], apply("add"))

    def concat(self, parts: list[str]) -> str:
        channels = sum(self._shapes[part][0] for part in parts)
        return self._node("concat", f"{parts[0]}.concat", parts, {"axis": 1},
                          (channels, self._shapes[parts[0]][1]))

    def mean(self, x: str) -> str:
        return self._node("reduce", f"{x}.mean", [x], {"kind": "mean", "axes": (2, 3),
                                                       "keepdims": False}, (self._shapes[x][0], 1))

    def flat(self, x: str) -> str:
        channels, size = self._shapes[x]
        return self._node("flatten", f"{x}.flat", [x], {"axis": 1}, (channels * size**2, 1))

    def finish(self, y: str) -> Graph:
        """Returns the graph, with y as its output."""
        self.graph.outputs.append(ValueInfo(y, (None, self._shapes[y][0])))
        return self.graph

    def _with_constants(self, x: str, layer: ConvLayer) -> list[str]:
        """The inputs of a layer's node, of which weight and bias are added to the graph."""
        weight, bias = f"{layer.name}.weight", f"{layer.name}.bias"
        self.graph.constants[weight] = self._weight(layer)
        self.graph.constants[bias] = _BIAS * self._random.standard_normal(layer.out_channels,
                                                                          np.float32)
        return [x, weight, bias]

    def _elementwise(self, name: str, inputs: list[str], expression: Expression) -> str:
        return self._node("elementwise", name, inputs, {"expression": expression},
                          self._shapes[inputs[0]])

    def _node(self, op: str, name: str, inputs: list[str], attributes: dict[str, object],
              shape: tuple[int, int]) -> str:
        """Appends a node. shape: channels and size of its result."""
        self.graph.nodes.append(Node(op, name, inputs, [name], attributes, f"{op} {name!r}"))
        self._shapes[name] = shape
        return name


def _window(kernel: tuple[int, int], stride: int, pads: tuple[int, ...],
            kind: str) -> dict[str, object]:
    """The attributes of a pool."""
    return {"kind": kind, "kernel": kernel, "strides": (stride,) * 2, "pads": pads,
            "dilations": (1, 1), "ceil_mode": True, "count_include_pad": True}
