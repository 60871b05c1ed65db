"""Random binary networks, and pruned ones whose zeros are spread unevenly."""

from __future__ import annotations

import numpy as np
import onnx

from tests.ops.conv2d.sparse.sparse_weights import AWKWARD
from tests.simulated.networks import Network


class BinaryNetwork(Network):
    """A network of signs. Biases lie between integers, so that rounding moves no sum across zero.
    """

    def weights(self, *shape: int) -> np.ndarray:
        """Returns signs, perhaps times a power of two for each output channel."""
        signs = np.where(self.rng.random(shape) < 0.5, np.float32(-1), np.float32(1))
        if self.rng.random() < 0.3:
            scales = 2.0 ** self.rng.integers(-2, 2, shape[0])
            signs *= scales.reshape(-1, *[1] * (len(shape) - 1)).astype(np.float32)
        return signs

    def signed(self, x: str) -> str:
        """Adds the sign of each value, which is 1 for zero."""
        shape = self.shapes[x]
        if self.rng.random() < 0.5:
            return self.add("Sign", [self.add(
                "Add", [x, self.constant(np.float32(2.0**-9))], shape)], shape)
        zero, one, minus = (self.constant(np.float32(value)) for value in (0, 1, -1))
        return self.add("Where", [self.add("GreaterOrEqual", [x, zero], shape), one, minus], shape)

    def layer(self, x: str, channels: int) -> str:
        """Adds a convolution of signs, perhaps with a bias, a batch norm, or pads of ones."""
        c, h, w = self.shapes[x]
        kernel = self.pick(1, 3, 3) if min(h, w) > 2 else 1
        stride, pad = self.pick(1, 1, 2), self.pick(0, kernel // 2)
        if pad and self.rng.random() < 0.5:
            pads = self.constant(np.array([0, 0, pad, pad] * 2))
            x = self.add("Pad", [x, pads, self.constant(np.float32(1))],
                         (c, h + 2 * pad, w + 2 * pad))
            (c, h, w), pad = self.shapes[x], 0
        inputs = [x, self.constant(self.weights(channels, c, kernel, kernel))]
        if self.rng.random() < 0.6:
            inputs.append(self.constant(
                (self.rng.integers(-c, c, channels) + 0.125).astype(np.float32)))
        size = [(length + 2 * pad - kernel) // stride + 1 for length in (h, w)]
        y = self.add("Conv", inputs, (channels, *size), kernel_shape=[kernel] * 2,
                     strides=[stride] * 2, pads=[pad] * 4)
        if self.rng.random() < 0.3:
            ones, zeros = (self.constant(np.full(channels, value, np.float32))
                           for value in (1, 0))
            y = self.add("BatchNormalization", [y, ones, zeros, zeros, ones], (channels, *size))
        return y

    def pooled(self, x: str) -> str:
        """Adds a maximum of 2x2 values, where the value is large enough."""
        c, h, w = self.shapes[x]
        if min(h, w) < 2:
            return x
        return self.add("MaxPool", [x], (c, h // 2, w // 2), kernel_shape=[2, 2], strides=[2, 2])


def binary_network(seed: int) -> onnx.ModelProto:
    """Returns a random network of signs with the input x (N, C, H, W) and one output."""
    net = BinaryNetwork(seed)
    net.shapes["x"] = (net.pick(3, 8, 32, 33), net.pick(4, 7, 8), net.pick(4, 7, 8))
    x = net.signed("x")
    for _ in range(int(net.rng.integers(1, 5))):
        y = net.layer(x, net.pick(8, 32, 32, 64, 40))
        if net.shapes[y] == net.shapes[x] and net.rng.random() < 0.5:
            y = net.add("Add", [y, x], net.shapes[y])
        x = net.signed(y)
        x = net.pooled(x) if net.rng.random() < 0.3 else x
    if net.rng.random() < 0.5:
        count = int(np.prod(net.shapes[x]))
        x = net.add("Flatten", [x], (count,))
        for features in (32, 10)[net.pick(0, 1):]:
            x = net.add("Gemm", [x, net.constant(net.weights(features, net.shapes[x][0])),
                                 net.constant(np.full(features, 0.125, np.float32))],
                        (features,), transB=1)
            x = net.signed(x) if features == 32 else x
    return net.model(f"signs, seed {seed}", [x])


class PrunedNetwork(Network):
    """A network whose weights are of a kind of AWKWARD, all zero, or dense."""

    def weights(self, *shape: int) -> np.ndarray:
        scale = 1 / max(1.0, np.sqrt(np.prod(shape[1:])))
        weight = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        kind = self.pick(*AWKWARD, "zero", "dense")
        if kind == "zero":
            weight[...] = 0
        elif kind in AWKWARD:
            AWKWARD[kind](weight, self.rng)
        return weight

    def irregular(self, x: str) -> str:
        """Adds a convolution with groups, dilation, stride and uneven pads."""
        c, h, w = self.shapes[x]
        channels = self.pick(5, 8, 16, 33)
        groups = self.pick(*(count for count in (1, 2, 4, c)
                             if c % count == 0 and channels % count == 0))
        kernel = self.pick((1, 1), (3, 3), (3, 1), (2, 2), (5, 3))
        strides, dilations = ([self.pick(1, 1, 2) for _ in range(2)] for _ in range(2))
        pads = [int(self.rng.integers(0, size)) for size in (*kernel, *kernel)]
        size = [(length + before + behind - dilation * (taps - 1) - 1) // stride + 1
                for length, before, behind, dilation, taps, stride in zip(
                    (h, w), pads[:2], pads[2:], dilations, kernel, strides, strict=True)]
        if min(size) < 1:
            return self.conv(x, channels)
        weight = self.weights(channels, c // groups, *kernel)
        bias = self.rng.standard_normal(channels).astype(np.float32)
        return self.activated(self.add(
            "Conv", [x, self.constant(weight), self.constant(bias)], (channels, *size),
            kernel_shape=kernel, strides=strides, pads=pads, dilations=dilations, group=groups))

    def bottleneck(self, x: str) -> str:
        """Adds a bottleneck block, with a projection where the channels change."""
        c, inner = self.shapes[x][0], self.pick(8, 16, 24)
        channels = self.pick(c, c, 32)
        y = self.conv(self.conv(self.conv(x, inner), inner, 3), channels, activated=False)
        short = x if channels == c else self.conv(x, channels, activated=False)
        return self.add("Relu", [self.add("Add", [y, short], self.shapes[y])], self.shapes[y])


def pruned_network(seed: int) -> onnx.ModelProto:
    """Returns a random pruned network with the input x (N, C, H, W) and one output."""
    net = PrunedNetwork(seed)
    x = "x"
    net.shapes[x] = (net.pick(3, 7, 8, 16, 17), net.pick(5, 8, 14), net.pick(5, 8, 14))
    for _ in range(int(net.rng.integers(1, 4))):
        x = net.irregular(x) if net.rng.random() < 0.5 else net.bottleneck(x)
    return net.model(f"pruned, seed {seed}", [x])
