"""Random networks of signs: layers with weights of -1 and 1, or of one magnitude, on signs."""

from __future__ import annotations

import numpy as np
import onnx

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
