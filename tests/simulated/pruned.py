"""Random pruned networks: convolutions of any geometry and bottleneck blocks, whose zeros are
spread unevenly."""

from __future__ import annotations

import numpy as np
import onnx

from tests.ops.conv2d.sparse.sparse_weights import AWKWARD
from tests.simulated.networks import Network


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
