"""Small networks in place of those of the suites."""

from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.bench.work import PeerNetwork
from gossamer.expression import apply, identity
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer_bench.layer_tables import ConvLayer, LinearLayer

CLASSES = 5
LAYERS = (ConvLayer("tiny/3x3", 4, 6, 5, 3, 2, 1), ConvLayer("tiny/groups", 4, 5, 6, 1, groups=2),
          ConvLayer("tiny/depthwise", 4, 5, 4, 3, 1, 1, 4))
PRODUCTS = (LinearLayer("8", 8, 8, bias=False, rows=8), LinearLayer("tiny/fc", 12, 5, relu=True))


def tiny() -> PeerNetwork:
    """Returns a network from 3x8x8 to 5, in the forms of every contender: convolution, batch norm
    and ReLU6, depthwise convolution, mean, linear layer."""
    random = np.random.default_rng(11)

    def values(*shape: int, low: float = -1.0) -> np.ndarray:
        return random.uniform(low, 1.0, shape).astype(np.float32)

    first = values(4, 3, 3, 3)
    first[0, 0] = 0
    constants = {
        "0.weight": first, "1.weight": values(4), "1.bias": values(4),
        "1.running_mean": values(4), "1.running_var": values(4, low=0.5),
        "3.weight": values(4, 1, 3, 3), "6.weight": values(CLASSES, 4), "6.bias": values(CLASSES),
    }

    def conv(name: str, x: str, stride: int, groups: int) -> Node:
        return Node("conv2d", name, [x, f"{name}.weight"], [f"{name}.out"], {
            "strides": (stride, stride), "pads": (1,) * 4, "dilations": (1, 1),
            "groups": groups, "epilogue": identity()})

    nodes = [
        conv("0", "x", 2, 1),
        Node("batch_norm", "1", ["0.out", "1.weight", "1.bias", "1.running_mean",
                                 "1.running_var"], ["1.out"], {"epsilon": 1e-5}),
        Node("elementwise", "2", ["1.out"], ["2.out"], {"expression": apply("clip", 0.0, 6.0)}),
        conv("3", "2.out", 1, 4),
        Node("elementwise", "4", ["3.out", "2.out"], ["4.out"], {"expression": apply("add")}),
        Node("reduce", "5", ["4.out"], ["5.out"],
             {"kind": "mean", "axes": (2, 3), "keepdims": False}),
        Node("gemm", "6", ["5.out", "6.weight", "6.bias"], ["y"],
             {"trans_a": False, "trans_b": True, "epilogue": apply("add")}),
    ]
    graph = Graph("tiny", [ValueInfo("x", (None, 3, 8, 8))], [ValueInfo("y", (None, CLASSES))],
                  nodes, constants, "tiny")
    return PeerNetwork("tiny", graph, _torch_form)


def _torch_form(constants: dict[str, np.ndarray]) -> Any:
    from torch import nn

    from gossamer_bench.peers.torch_networks import with_weights

    class Tiny(nn.Sequential):
        def forward(self, x: Any) -> Any:
            x = self[2](self[1](self[0](x))) if len(self) == 7 else self[1](self[0](x))
            x = x + self[-4](x)
            return self[-1](x.mean((2, 3)))

    return with_weights(Tiny(
        nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU6(),
        nn.Conv2d(4, 4, 3, 1, 1, groups=4, bias=False), nn.Identity(), nn.Identity(),
        nn.Linear(4, CLASSES)), constants)
