"""Networks of depthwise-separable convolutions as published, and their blocks. The random weights
are the same in every run.

Sources: A. Howard et al., "MobileNets", arXiv 1704.04861, 2017, table 1; M. Sandler et al.,
"MobileNetV2", CVPR 2018, table 2; A. Howard et al., "Searching for MobileNetV3", ICCV 2019, table
2; M. Tan et al., "MnasNet", CVPR 2019, figure 7 (B1, as in torchvision); M. Tan and Q. Le,
"EfficientNet", ICML 2019, table 1. Batch norms are folded, so that each convolution has a bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.model.zoo import INVERTED_RESIDUALS
from gossamer_bench.layer_tables import InvertedResidual

_SEED = 5
_CLASSES = 1000
_DIVISOR = 8
"""Where a number of channels is multiplied by a width or a share, the result is rounded to a
multiple of this number."""


@dataclass(frozen=True)
class _Block:
    """The sizes of an inverted residual block.

    kernel: rows and columns of the depthwise filters.
    hidden: number of hidden channels.
    channels: number of output channels.
    activation: "relu", "relu6", "hard_swish" or "silu".
    squeezed: channels of the squeeze-and-excite layer behind the depthwise convolution; 0 for none.
    """

    kernel: int
    hidden: int
    channels: int
    activation: str = "relu6"
    squeezed: int = 0


class _Network:
    """A network under construction, whose input is a square image."""

    def __init__(self, name: str, channels: int = 3, size: int = 224) -> None:
        self._rng = np.random.default_rng(_SEED)
        self._graph = GraphBuilder(name)
        self._count = 0
        self.x = self._graph.input("image", (None, channels, size, size))
        self.channels = channels

    def conv(self, x: str, out: int, *, into: int, kernel: int = 1, stride: int = 1,
             groups: int = 1, activation: str = "") -> str:
        """Appends a convolution with a bias and an activation, and returns its output's name."""
        name = f"conv{self._count}"
        self._count += 1
        depth = into // groups * kernel * kernel
        weight = self._graph.constant(f"{name}.weight", self._rng.standard_normal(
            (out, into // groups, kernel, kernel)).astype(np.float32) * np.sqrt(2 / depth))
        bias = self._graph.constant(
            f"{name}.bias", 0.1 * self._rng.standard_normal(out).astype(np.float32))
        y = self._graph.conv2d(x, weight, bias, strides=(stride, stride),
                               pads=(kernel // 2,) * 4, groups=groups, name=name)
        return self._activated(y, activation)

    def _activated(self, x: str, activation: str) -> str:
        apply = self._graph.apply
        if activation == "relu6":
            return apply("clip", x, constants=(0.0, 6.0))
        if activation == "hard_swish":
            return apply("mul", x, self._hard_sigmoid(x))
        if activation == "silu":
            return apply("mul", x, apply("sigmoid", x))
        return apply(activation, x) if activation else x

    def _hard_sigmoid(self, x: str) -> str:
        return self._graph.apply("hard_sigmoid", x, constants=(1 / 6, 0.5))

    def stem(self, out: int, activation: str) -> None:
        """Appends the first convolution, which halves the image."""
        self.x = self.conv(self.x, out, into=3, kernel=3, stride=2, activation=activation)
        self.channels = out

    def block(self, sizes: _Block, stride: int) -> None:
        """Appends an inverted residual block. A block whose hidden channels are as many as its
        input channels has no first 1x1 convolution."""
        y, hidden = self.x, sizes.hidden
        if hidden != self.channels:
            y = self.conv(y, hidden, into=self.channels, activation=sizes.activation)
        y = self.conv(y, hidden, into=hidden, kernel=sizes.kernel, stride=stride, groups=hidden,
                      activation=sizes.activation)
        if sizes.squeezed:
            y = self._excited(y, hidden, sizes)
        y = self.conv(y, sizes.channels, into=hidden)
        if stride == 1 and sizes.channels == self.channels:
            y = self._graph.apply("add", self.x, y)
        self.x, self.channels = y, sizes.channels

    def _excited(self, x: str, channels: int, sizes: _Block) -> str:
        """Appends a squeeze-and-excite layer: two small layers compute a factor for each channel
        from the means of all channels."""
        inner, gate = (("silu", "sigmoid") if sizes.activation == "silu"
                       else ("relu", "hard_sigmoid"))
        scale = self._graph.reduce(x, "mean", "spatial", keepdims=True)
        scale = self.conv(scale, sizes.squeezed, into=channels, activation=inner)
        scale = self.conv(scale, channels, into=sizes.squeezed)
        scale = (self._graph.apply("sigmoid", scale) if gate == "sigmoid"
                 else self._hard_sigmoid(scale))
        return self._graph.apply("mul", x, scale)

    def separable(self, out: int, stride: int, activation: str) -> None:
        """Appends a depthwise and a 1x1 convolution."""
        y = self.conv(self.x, self.channels, into=self.channels, kernel=3, stride=stride,
                      groups=self.channels, activation=activation)
        self.x = self.conv(y, out, into=self.channels, activation=activation)
        self.channels = out

    def head(self, channels: int, activation: str) -> None:
        """Appends the last 1x1 convolution."""
        self.x = self.conv(self.x, channels, into=self.channels, activation=activation)
        self.channels = channels

    def finish_image(self, size: int) -> Graph:
        """Returns the graph. Its output is the result of the last layer, an image with `size` rows
        and columns."""
        self._graph.output(self.x, (None, self.channels, size, size))
        return self._graph.finish()

    def finish(self, *hidden: tuple[int, str]) -> Graph:
        """Appends the mean over the image and fully connected layers; returns the graph. hidden:
        size and activation of each fully connected layer before the last one."""
        self.x = self._graph.reduce(self.x, "mean", "spatial", keepdims=False)
        for number, (size, activation) in enumerate((*hidden, (_CLASSES, ""))):
            weight = self._rng.standard_normal((size, self.channels)).astype(np.float32)
            self.x = self._activated(self._graph.gemm(
                self.x, self._graph.constant(f"fc{number}.weight",
                                             weight / np.sqrt(self.channels)),
                self._graph.constant(f"fc{number}.bias", np.zeros(size, np.float32)),
                trans_b=True, name=f"fc{number}"), activation)
            self.channels = size
        self._graph.output(self.x, (None, _CLASSES))
        return self._graph.finish()


def mobilenet_v1() -> Graph:
    """Returns MobileNet (V1) at width 1."""
    network = _Network("mobilenetv1")
    network.stem(32, "relu6")
    for out, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
                        *[(512, 1)] * 5, (1024, 2), (1024, 1)):
        network.separable(out, stride, "relu6")
    return network.finish()


def mobilenet_v2(width: float) -> Graph:
    """Returns MobileNetV2 at a width."""
    network = _Network(f"mobilenetv2-{width:g}")
    network.stem(_divisible(32 * width), "relu6")
    for expansion, channels, blocks, first_stride in INVERTED_RESIDUALS:
        for number in range(blocks):
            network.block(_Block(3, expansion * network.channels, _divisible(channels * width)),
                          1 if number else first_stride)
    network.head(_divisible(1280 * max(1.0, width)), "relu6")
    return network.finish()


def inverted_residual(block: InvertedResidual) -> Graph:
    """Returns a block of MobileNetV2 as a network of its own."""
    network = _Network(block.name, block.channels, block.size)
    network.block(_Block(3, block.hidden, block.out_channels), block.stride)
    return network.finish_image(block.out_size)


def mobilenet_v3_small() -> Graph:
    """Returns MobileNetV3-Small at width 1."""
    network = _Network("mobilenetv3-small")
    network.stem(16, "hard_swish")
    for kernel, hidden, channels, squeezes, activation, stride in (
            (3, 16, 16, True, "relu", 2), (3, 72, 24, False, "relu", 2),
            (3, 88, 24, False, "relu", 1), (5, 96, 40, True, "hard_swish", 2),
            (5, 240, 40, True, "hard_swish", 1), (5, 240, 40, True, "hard_swish", 1),
            (5, 120, 48, True, "hard_swish", 1), (5, 144, 48, True, "hard_swish", 1),
            (5, 288, 96, True, "hard_swish", 2), (5, 576, 96, True, "hard_swish", 1),
            (5, 576, 96, True, "hard_swish", 1)):
        squeezed = _divisible(hidden / 4) if squeezes else 0
        network.block(_Block(kernel, hidden, channels, activation, squeezed), stride)
    network.head(576, "hard_swish")
    return network.finish((1024, "hard_swish"))


def mnasnet() -> Graph:
    """Returns MnasNet-B1 at width 1."""
    network = _Network("mnasnet")
    network.stem(32, "relu")
    network.block(_Block(3, 32, 16, "relu"), 1)
    for kernel, expansion, channels, blocks, stride in (
            (3, 3, 24, 3, 2), (5, 3, 40, 3, 2), (5, 6, 80, 3, 2), (3, 6, 96, 2, 1),
            (5, 6, 192, 4, 2), (3, 6, 320, 1, 1)):
        for number in range(blocks):
            network.block(_Block(kernel, expansion * network.channels, channels, "relu"),
                          1 if number else stride)
    network.head(1280, "relu")
    return network.finish()


def efficientnet_b0() -> Graph:
    """Returns EfficientNet-B0."""
    network = _Network("efficientnet-b0")
    network.stem(32, "silu")
    for expansion, channels, blocks, stride, kernel in (
            (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
            (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)):
        for number in range(blocks):
            network.block(_Block(kernel, expansion * network.channels, channels, "silu",
                                 max(1, network.channels // 4)), 1 if number else stride)
    network.head(1280, "silu")
    return network.finish()


def _divisible(channels: float) -> int:
    """Returns the number of channels rounded to a multiple of 8. The result is at least 90% of
    `channels`."""
    rounded = max(_DIVISOR, int(channels + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return rounded if rounded >= 0.9 * channels else rounded + _DIVISOR


MOBILE_NETWORKS: dict[str, Callable[[], Graph]] = {
    "mobilenetv1": mobilenet_v1, "mobilenetv2-0.5": lambda: mobilenet_v2(0.5),
    "mobilenetv2-1.4": lambda: mobilenet_v2(1.4), "mobilenetv3-small": mobilenet_v3_small,
    "mnasnet": mnasnet, "efficientnet-b0": efficientnet_b0}
"""Functions that build each network, by its name as a case."""
