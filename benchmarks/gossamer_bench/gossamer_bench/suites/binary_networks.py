"""Makes cases of whole binary networks with the shapes of the literature.

The weights of a binary layer are drawn from 1 and -1. Each scale is a power of 2 or minus a power
of 2. Biases are multiples of 1/2, and inputs are multiples of 1/16. All sums before the classifier
are therefore exact in float32, and all contenders in float32 have the same signs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from gossamer.bench.networks import input_of
from gossamer.bench.work import PeerNetwork, Setting
from gossamer.expression import Expression, ExpressionStep
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.plan.program import Program
from gossamer.plan.report.bits import computes_on_bits
from gossamer_bench.suites.networks import network_case
from gossamer_bench.work import Case

SUITE = "binary-networks"
_SIGN = Expression(1, (
    ExpressionStep("constant", (), (0.0,)), ExpressionStep("greater_equal", (0, 1)),
    ExpressionStep("constant", (), (1.0,)), ExpressionStep("constant", (), (-1.0,)),
    ExpressionStep("where", (2, 3, 4))))
_INPUT_STEP = 2.0**-4
"""Inputs, and the weights of layers that are not binary, are multiples of this number."""


def binary_networks() -> Mapping[str, Callable[[], PeerNetwork]]:
    """Returns functions by name that make the networks."""
    return {name: partial(_network, name) for name in _BUILDS}


def binary_case(make: Callable[[], PeerNetwork], batch: int, setting: Setting) -> Case:
    """Makes the case of a binary network. The PyTorch module has the ops of the graph, one after
    another. In the case of the network that has only ResNet-18's blocks, float16 plans read and
    write float16 NHWC, the format between the layers of the whole network."""
    network = make()

    def module(constants: Mapping[str, np.ndarray]) -> object:
        from gossamer.bench.peers.graph_module import graph_module

        return graph_module(network.graph, batch)

    return network_case(SUITE, replace(network, torch=module), batch, setting, force_each=True,
                        between_layers=network.name == _BODY,
                        x=_steps(input_of(network, batch)),
                        described=lambda context: shares_text(context.program))


@cache
def _network(name: str) -> PeerNetwork:
    return PeerNetwork(name, _BUILDS[name](name))


def _steps(x: np.ndarray) -> np.ndarray:
    """Returns inputs rounded to multiples of a power of 2, which float16 holds exactly."""
    return (np.clip(np.rint(x / _INPUT_STEP), -64, 64) * _INPUT_STEP).astype(np.float32)


def vgg_cifar10(name: str, size: int = 32) -> Graph:
    """Returns BinaryNet's network for CIFAR-10 (M. Courbariaux, I. Hubara, D. Soudry, R. El-Yaniv
    and Y. Bengio, "Binarized neural networks", arXiv 1602.02830, 2016): images (N, 3, size, size)
    to 10 numbers. All layers except the first are binary."""
    build = _Builder(name, size)
    x = build.sign(build.conv("x", 128, 3, pad=1, binary=False))
    for channels in (128, 256, 512):
        if channels > 128:
            x = build.sign(build.conv(x, channels, 3, pad=1))
        x = build.pool(build.sign(build.conv(x, channels, 3, pad=1)), 2, 2)
    x = build.flat(x)
    for columns in (1024, 1024):
        x = build.sign(build.linear(x, columns))
    return build.finish(build.linear(x, 10))


def alexnet(name: str, size: int = 227) -> Graph:
    """Returns AlexNet as XNOR-Net binarises it (M. Rastegari, V. Ordonez, J. Redmon and A. Farhadi,
    "XNOR-Net", ECCV 2016): images (N, 3, size, size) to 1000 numbers. All layers except the first
    and the last are binary."""
    build = _Builder(name, size)
    x = build.sign(build.pool(build.conv("x", 96, 11, stride=4, binary=False), 3, 2))
    x = build.pool(build.sign(build.conv(x, 256, 5, pad=2)), 3, 2)
    for channels in (384, 384):
        x = build.sign(build.conv(x, channels, 3, pad=1))
    x = build.flat(build.pool(build.sign(build.conv(x, 256, 3, pad=1)), 3, 2))
    for columns in (4096, 4096):
        x = build.sign(build.linear(x, columns))
    return build.finish(build.linear(x, 1000, binary=False))


def resnet18(name: str, size: int = 224) -> Graph:
    """Returns ResNet-18 (K. He, X. Zhang, S. Ren and J. Sun, "Deep residual learning for image
    recognition", CVPR 2016) with binary layers except the first and the last: images (N, 3, size,
    size) to 1000 numbers. The sum at the end of a block is not binarised; the convolutions of the
    next block read the signs of this sum."""
    build = _Builder(name, size)
    x = build.pool(build.conv("x", 64, 7, stride=2, pad=3, binary=False), 3, 2, pad=1)
    return build.finish(build.linear(build.mean(_blocks(build, x)), 1000, binary=False))


def resnet18_body(name: str, size: int = 56) -> Graph:
    """Returns the blocks of `resnet18` alone, from the first to the last binary layer: images
    (N, 64, size, size) to the sums of the last block (N, 512, size / 8, size / 8)."""
    build = _Builder(name, size, 64)
    return build.finish(_blocks(build, "x"))


def _blocks(build: _Builder, x: str) -> str:
    """Appends the residual blocks of ResNet-18 and returns their result."""
    for channels in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if channels > 64 and block == 0 else 1
            signs = build.sign(x)
            y = build.sign(build.conv(signs, channels, 3, stride=stride, pad=1))
            y = build.conv(y, channels, 3, pad=1)
            x = build.add(y, x if stride == 1 else build.conv(signs, channels, 1, stride=stride))
    return x


_BODY = "resnet18-binary-body"
_BUILDS: dict[str, Callable[[str], Graph]] = {
    "vgg-cifar10": vgg_cifar10, "alexnet-binary": alexnet, "resnet18-binary": resnet18,
    _BODY: resnet18_body}


class _Builder:
    """Appends layers to a graph, with weights that are the same in every run. Remembers the
    channels and the size of each result."""

    def __init__(self, name: str, size: int, channels: int = 3) -> None:
        self._graph = GraphBuilder(name, file=name)
        self._graph.input("x", (None, channels, size, size))
        self._shapes = {"x": (channels, size)}
        self._random = np.random.default_rng(0)

    def conv(self, x: str, channels: int, kernel: int, *, stride: int = 1, pad: int = 0,
             binary: bool = True) -> str:
        before, size = self._shapes[x]
        weight = self._constant("weight", self._weight((channels, before, kernel, kernel), binary))
        y = self._graph.conv2d(x, weight, strides=(stride, stride), pads=(pad,) * 4)
        return self._shaped((channels, (size + 2 * pad - kernel) // stride + 1), y)

    def linear(self, x: str, columns: int, *, binary: bool = True) -> str:
        weight = self._constant("weight", self._weight((columns, self._shapes[x][0]), binary))
        return self._shaped((columns, 1), self._graph.gemm(x, weight, trans_b=True))

    def sign(self, x: str) -> str:
        """Appends scale and bias of each channel, as batch norm has them, and the sign of the
        result. The sign of 0 is 1."""
        channels, size = self._shapes[x]
        shape = (1, channels, 1, 1) if size > 1 else (1, channels)
        scale = self._drawn([-0.5, 0.25, 0.5, 1, 2], shape)
        bias = self._drawn([-6.5, -1.5, -0.5, 0.5, 2.5, 5.5], shape)
        y = self._graph.apply("mul", x, self._constant("scale", scale))
        y = self._graph.apply("add", y, self._constant("bias", bias))
        return self._shaped(self._shapes[x], self._graph.elementwise(_SIGN, y))

    def pool(self, x: str, kernel: int, stride: int, *, pad: int = 0) -> str:
        channels, size = self._shapes[x]
        y = self._graph.pool(x, "max", (kernel, kernel), strides=(stride, stride), pads=(pad,) * 4)
        return self._shaped((channels, (size + 2 * pad - kernel) // stride + 1), y)

    def add(self, a: str, b: str) -> str:
        return self._shaped(self._shapes[a], self._graph.apply("add", a, b))

    def mean(self, x: str) -> str:
        return self._shaped((self._shapes[x][0], 1),
                            self._graph.reduce(x, "mean", (2, 3), keepdims=False))

    def flat(self, x: str) -> str:
        channels, size = self._shapes[x]
        return self._shaped((channels * size**2, 1), self._graph.flatten(x))

    def finish(self, y: str) -> Graph:
        """Returns the graph, with y as its output."""
        channels, size = self._shapes[y]
        self._graph.output(y, (None, channels) if size == 1 else (None, channels, size, size))
        return self._graph.finish()

    def _weight(self, shape: tuple[int, ...], binary: bool) -> np.ndarray:
        if binary:
            return self._drawn([-1, 1], shape)
        return (self._random.integers(-8, 9, shape) * _INPUT_STEP).astype(np.float32)

    def _drawn(self, values: Sequence[float], shape: tuple[int, ...]) -> np.ndarray:
        return self._random.choice(np.asarray(values, np.float32), shape)

    def _constant(self, kind: str, array: np.ndarray) -> str:
        return self._graph.constant(f"{kind}{len(self._graph.graph.constants)}", array)

    def _shaped(self, shape: tuple[int, int], name: str) -> str:
        """Notes channels and size of a layer's result, and returns its name."""
        self._shapes[name] = shape
        return name


def shares_text(program: Program) -> str:
    """Returns the shares of the time that three parts of the program take, as text. The parts are
    the steps before the first step on bits (the stem), the steps from the first to the last step on
    bits, and the steps behind the last step on bits (the classifier). The time of each step was
    measured alone. Returns "" where a step was not measured or no step computes on bits."""
    if not all(step.candidates for step in program.steps):
        return ""
    times = [step.candidate_of(step.candidates).measured.median_us or 0.0 for step in program.steps]
    on_bits = [index for index, step in enumerate(program.steps) if computes_on_bits(step)]
    total = sum(times)
    if not on_bits or not total:
        return ""
    before, behind = sum(times[:on_bits[0]]), sum(times[on_bits[-1] + 1:])
    return (f"of the layers' {total:.1f} us alone the stem takes {before / total:.1%}, first to "
            f"last layer on bits {1 - (before + behind) / total:.1%}, what follows "
            f"{behind / total:.1%}")
