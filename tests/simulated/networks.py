"""Random networks as people build them: blocks of published architectures, with a few irregular
nodes between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MOST_BLOCKS = 4


class Network:
    """An ONNX graph while blocks are added to it. Every value that is named in `shapes` is an
    image tensor (C, H, W) without its batch."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def pick(self, *choices: Any) -> Any:
        """Returns one of the choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def constant(self, array: np.ndarray) -> str:
        """Adds a constant and returns its name."""
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...], count: int = 1,
            **attributes: Any) -> Any:
        """Adds a node and returns the name of its output, or of its outputs, of this shape."""
        names = [f"v{len(self.shapes) + index}" for index in range(count)]
        self.nodes.append(helper.make_node(op, inputs, names, f"n{len(self.nodes)}_{op}",
                                           **attributes))
        self.shapes.update(dict.fromkeys(names, shape))
        return names if count > 1 else names[0]

    def weights(self, *shape: int) -> np.ndarray:
        """Returns weights that keep the size of values: dense, pruned, 2:4 sparse, with dead
        channels, or all zero."""
        scale = 1 / max(1.0, np.sqrt(np.prod(shape[1:])))
        weights = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        kind = self.pick("dense", "dense", "dense", "pruned", "pruned", "2:4", "dead", "zero")
        if kind == "pruned":
            weights *= self.rng.random(shape) < self.pick(0.02, 0.1, 0.5)
        elif kind == "2:4" and len(shape) > 1:
            weights[:, np.arange(shape[1]) % 4 < 2] = 0
        elif kind == "dead":
            weights[self.rng.random(shape[0]) < 0.5] = 0
        elif kind == "zero" and self.rng.random() < 0.5:
            weights[...] = 0
        return weights

    def activated(self, x: str) -> str:
        """Adds an activation, or none."""
        kind = self.pick("", "Relu", "Relu", "Clip", "HardSwish", "Swish", "Sigmoid")
        shape = self.shapes[x]
        if kind == "":
            return x
        if kind == "Clip":
            low, high = (self.constant(np.float32(limit)) for limit in (0, 6))
            return self.add("Clip", [x, low, high], shape)
        if kind == "Swish":
            return self.add("Mul", [x, self.add("Sigmoid", [x], shape)], shape)
        return self.add(kind, [x], shape)

    def conv(self, x: str, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1,
             activated: bool = True) -> str:
        """Adds a convolution, perhaps with a batch norm and an activation."""
        c, h, w = self.shapes[x]
        inputs = [x, self.constant(self.weights(channels, c // groups, kernel, kernel))]
        if self.rng.random() < 0.5:
            inputs.append(self.constant(self.rng.standard_normal(channels).astype(np.float32)))
        size = [(length + 2 * (kernel // 2) - kernel) // stride + 1 if length else 0
                for length in (h, w)]
        y = self.add("Conv", inputs, (channels, *size), kernel_shape=[kernel] * 2,
                     strides=[stride] * 2, pads=[kernel // 2] * 4, group=groups)
        if self.rng.random() < 0.3:
            y = self.add("BatchNormalization", [y, *(
                self.constant((low + (high - low) * self.rng.random(channels)).astype(np.float32))
                for low, high in ((0.5, 1.5), (-0.5, 0.5), (-0.5, 0.5), (0.5, 1.5)))],
                (channels, *size))
        return self.activated(y) if activated else y

    def join(self, values: list[str]) -> str:
        """Concatenates values along their channels."""
        _, h, w = self.shapes[values[0]]
        return self.add("Concat", values, (sum(self.shapes[x][0] for x in values), h, w), axis=1)

    def part(self, x: str, first: int, last: int) -> str:
        """Takes some channels."""
        _, h, w = self.shapes[x]
        limits = [self.constant(np.array([number])) for number in (first, last, 1)]
        return self.add("Slice", [x, *limits], (last - first, h, w))

    def model(self, name: str, outputs: list[str]) -> onnx.ModelProto:
        """Returns the network as a model with the input x (N, C, H, W)."""
        inputs, results = ([helper.make_tensor_value_info(
            value, TensorProto.FLOAT, ["N", *self.shapes[value]]) for value in values]
            for values in (["x"], outputs))
        graph = helper.make_graph(self.nodes, name, inputs, results, [
            numpy_helper.from_array(array, constant)
            for constant, array in self.constants.items()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def plain(net: Network, x: str) -> str:
    kernel = net.pick(1, 3, 3, 5)
    return net.conv(x, net.pick(4, 8, 12, 16, 33), kernel, net.pick(1, 1, 2))


def separable(net: Network, x: str) -> str:
    c = net.shapes[x][0]
    return net.conv(net.conv(x, c, net.pick(3, 5), net.pick(1, 2), groups=c),
                    net.pick(8, 16, 24))


def inverted_residual(net: Network, x: str) -> str:
    c = net.shapes[x][0]
    wide = c * net.pick(2, 4)
    y = net.conv(net.conv(x, wide), wide, 3, groups=wide)
    y = net.conv(y, c, activated=False)
    return net.add("Add", [x, y] if net.rng.random() < 0.5 else [y, x], net.shapes[x])


def squeeze_excite(net: Network, x: str) -> str:
    c = net.shapes[x][0]
    y = net.conv(x, c, 3, groups=c)
    if 0 in net.shapes[y]:
        return y
    s = net.add("GlobalAveragePool", [y], (c, 1, 1))
    s = net.add("Relu", [net.conv(s, max(1, c // 4), activated=False)], (max(1, c // 4), 1, 1))
    s = net.add(net.pick("Sigmoid", "HardSigmoid"), [net.conv(s, c, activated=False)], (c, 1, 1))
    return net.conv(net.add("Mul", [y, s], net.shapes[y]), net.pick(8, c), activated=False)


def residual(net: Network, x: str) -> str:
    c = net.shapes[x][0]
    y = net.conv(net.conv(net.conv(x, max(1, c // 2)), max(1, c // 2), 3), c, activated=False)
    return net.add("Relu", [net.add("Add", [y, x], net.shapes[x])], net.shapes[x])


def parallel(net: Network, x: str) -> str:
    """RepVGG and MobileOne, as they are trained: branches of the same input, which are added."""
    c = net.shapes[x][0]
    stride, groups = net.pick(1, 1, 2), net.pick(1, c)
    channels = net.pick(8, c) if groups == 1 else c
    values = [net.conv(x, channels, kernel, stride, groups, activated=False)
              for kernel in [1, 3, 3, 5][:net.pick(2, 3, 4)]]
    if net.shapes[values[0]] == net.shapes[x]:
        values.append(x)
    y = values.pop(int(net.rng.integers(len(values))))
    for value in values:
        y = net.add("Add", [y, value], net.shapes[y])
    return net.activated(y)


def shuffled(net: Network, x: str) -> str:
    """ShuffleNetV2: half of the channels pass, and all are shuffled."""
    c, h, w = net.shapes[x]
    if c % 2 or c < 4:
        x, c = net.conv(x, 8), 8
    half = c // 2
    if net.rng.random() < 0.5:
        left, right = net.add("Split", [x, net.constant(np.array([half, half]))],
                              (half, h, w), 2, axis=1)
    else:
        left, right = net.part(x, 0, half), net.part(x, half, c)
    right = net.conv(net.conv(right, half), half, 3, groups=half, activated=False)
    right = net.conv(right, half)
    y = net.join([left, right])
    five = net.constant(np.array([0, 2, half, h, w]))
    y = net.add("Reshape", [y, five], (2, half, h, w))
    y = net.add("Transpose", [y], (half, 2, h, w), perm=[0, 2, 1, 3, 4])
    return net.add("Reshape", [y, net.constant(np.array([0, c, h, w]))], (c, h, w))


def ghost(net: Network, x: str) -> str:
    """GhostNet: cheap maps beside the others."""
    y = net.conv(x, net.pick(4, 8))
    c = net.shapes[y][0]
    joined = net.join([y, net.conv(y, c, 3, groups=c)])
    return net.part(joined, 0, 2 * c - 1) if net.rng.random() < 0.5 else joined


def dense(net: Network, x: str) -> str:
    """DenseNet: each layer reads all before it."""
    values = [x]
    for _ in range(net.pick(2, 3)):
        joined = net.join(values) if len(values) > 1 else x
        values.append(net.conv(joined, net.pick(4, 8), 3))
    return net.join(values)


def inception(net: Network, x: str) -> str:
    _, h, w = net.shapes[x]
    values = [net.conv(x, net.pick(4, 6)), net.conv(net.conv(x, 4), 8, 3)]
    if h and w:
        pooled = net.add(net.pick("MaxPool", "AveragePool"), [x], net.shapes[x],
                         kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
        values.append(net.conv(pooled, 4))
    if net.rng.random() < 0.3:
        values.append(net.pick(*values))  # one tensor twice
    return net.join(values)


def hierarchical(net: Network, x: str) -> str:
    """Res2Net: each part of the channels is convolved with the part before it."""
    _, h, w = net.shapes[x]
    y = net.conv(x, 24)
    values = [net.conv(net.part(y, 0, 8), 8, 3)]
    for first in (8, 16):
        part = net.part(y, first, first + 8)
        values.append(net.conv(net.add("Add", net.pick([values[-1], part], [part, values[-1]]),
                                       (8, h, w)), 8, 3))
    return net.join(values)


def pre_activated(net: Network, x: str) -> str:
    """Pre-activation ResNet: the norm of a sum that is read again, and of averages of it."""
    c, h, w = net.shapes[x]
    y = net.add("Add", [net.conv(x, c, net.pick(1, 3), activated=False), x], (c, h, w))
    z = net.add("Mul", [y, net.constant(net.weights(c, 1, 1))], (c, h, w))
    z = net.conv(net.add("Relu", [z], (c, h, w)), 8, net.pick(1, 3), 2)
    if h < 2 or w < 2 or h % 2 or w % 2:
        return y
    y = net.add("AveragePool", [y], (c, h // 2, w // 2), kernel_shape=[2, 2], strides=[2, 2])
    y = net.conv(y, 8, activated=False)
    return net.add("Add", [y, z], net.shapes[y])


def u_net(net: Network, x: str) -> str:
    """U-Net: down, up and a concatenation with what was before."""
    _, h, w = net.shapes[x]
    if h < 2 or w < 2 or h % 2 or w % 2:
        return net.conv(x, 8, 3)
    y = net.add("MaxPool", [x], (net.shapes[x][0], h // 2, w // 2), kernel_shape=[2, 2],
                strides=[2, 2])
    y = net.conv(y, 8, 3)
    empty = net.constant(np.zeros(0, np.float32))
    y = net.add("Resize", [y, empty, net.constant(np.float32([1, 1, 2, 2]))],
                (net.shapes[y][0], h, w), mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return net.conv(net.join([x, y]), 8, 3)


def cross_stage(net: Network, x: str) -> str:
    """CSP of YOLO: a slice of the channels, sums, and concatenations that are read again."""
    y = net.conv(x, 8, 3)
    part = net.part(y, 4, 8)
    z = net.conv(part, 4, 3)
    if net.rng.random() < 0.5:
        z = net.add("Add", [part, net.conv(z, 4, 3, activated=False)], net.shapes[part])
    z = net.conv(net.join([net.conv(z, 4, 3), z]), 8)
    return net.join([y, z])


def attention(net: Network, x: str) -> str:
    c, h, w = net.shapes[x]
    if not h * w:
        return x
    rows = net.add("Transpose", [net.add("Reshape", [x, net.constant(np.array([0, c, h * w]))],
                                         (c, h * w))], (h * w, c), perm=[0, 2, 1])
    q, k, v = (net.add("MatMul", [rows, net.constant(net.weights(c, c))], (h * w, c))
               for _ in range(3))
    scores = net.add("MatMul", [q, net.add("Transpose", [k], (c, h * w), perm=[0, 2, 1])],
                     (h * w, h * w))
    y = net.add("MatMul", [net.add("Softmax", [scores], (h * w, h * w), axis=-1), v], (h * w, c))
    y = net.add("Add", [y, rows], (h * w, c))
    y = net.add("Transpose", [y], (c, h * w), perm=[0, 2, 1])
    return net.add("Reshape", [y, net.constant(np.array([0, c, h, w]))], (c, h, w))


BLOCKS: tuple[Callable[[Network, str], str], ...] = (
    plain, separable, inverted_residual, squeeze_excite, residual, parallel, shuffled, ghost,
    dense, inception, hierarchical, pre_activated, u_net, cross_stage, attention)


def random_network(seed: int) -> onnx.ModelProto:
    """Returns a random network with the input x (N, C, H, W) and one output or more."""
    net = Network(seed)
    size = net.pick(1, 2, 4, 6, 7, 8, 8, 8, 14)
    height = size if net.rng.random() < 0.9 else net.pick(1, 3, 5)
    x = "x"
    net.shapes[x] = (net.pick(1, 3, 3, 4, 16), height, size)
    blocks = [net.pick(*BLOCKS) for _ in range(int(net.rng.integers(1, MOST_BLOCKS + 1)))]
    values = [x]
    for block in blocks:
        source = values[-1] if net.rng.random() < 0.85 else net.pick(*values)
        values.append(block(net, source))
    outputs = [values[-1]]
    if net.rng.random() < 0.5 and min(net.shapes[values[-1]]):
        c = net.shapes[values[-1]][0]
        y = net.add("Flatten", [net.add("GlobalAveragePool", [values[-1]], (c, 1, 1))], (c,))
        outputs = [net.add("Gemm", [y, net.constant(net.weights(5, c)),
                                    net.constant(net.weights(5))], (5,), transB=1)]
    if net.rng.random() < 0.3:
        # an output that is read again, or an input that is passed through
        outputs.append(net.pick(*values))
    named = [net.add("Identity", [name], net.shapes[name]) if name == x or name in outputs[:index]
             else name for index, name in enumerate(outputs)]
    return net.model(f"seed {seed}", named)
