"""Builds graphs node by node for the tests of rewrites, and checks that these keep results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gossamer.expression import apply, identity
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from tests.model.executor import execute
from tests.tolerances import FLOAT32, normalised_error

SIZE = 5
CHANNELS = 4


class Builder:
    """Appends nodes to a graph, whose values have the shape (N, 4, 5, 5) by default."""

    def __init__(self, outputs: Sequence[str] = ("y",)) -> None:
        self.graph = Graph("test", [ValueInfo("x", (None, CHANNELS, SIZE, SIZE))],
                           [ValueInfo(name, ()) for name in outputs], [], {})
        self.random = np.random.default_rng(11)

    def constant(self, *shape: int, positive: bool = False) -> str:
        name = f"c{len(self.graph.constants)}"
        array = self.random.standard_normal(shape)
        self.graph.constants[name] = (np.abs(array) + 0.5 if positive else array).astype("f4")
        return name

    def scalar(self, value: float, *shape: int) -> str:
        name = self.constant(*shape)
        self.graph.constants[name] = np.full(shape, value, np.float32)
        return name

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        index = len(self.graph.nodes)
        output = output or f"v{index}"
        self.graph.nodes.append(Node(op, f"n{index}", list(inputs), [output], attributes, op))
        return output

    def conv(self, x: str, output: str = "", into: int = CHANNELS, out: int = CHANNELS,
             size: int = 3, pad: int | None = None, groups: int = 1, bias: bool = True) -> str:
        inputs = [x, self.constant(out, into // groups, size, size)]
        if bias:
            inputs.append(self.constant(out))
        return self.add("conv2d", inputs, output, strides=(1, 1),
                        pads=(size // 2 if pad is None else pad,) * 4, dilations=(1, 1),
                        groups=groups, epilogue=apply("add") if bias else identity())

    def norm(self, x: str, output: str = "", channels: int = CHANNELS) -> str:
        moments = [self.constant(channels, positive=part == 3) for part in range(4)]
        return self.add("batch_norm", [x, *moments], output, epsilon=1e-5)

    def apply(self, function: str, *inputs: str, output: str = "", constants: Any = ()) -> str:
        return self.add("elementwise", inputs, output, expression=apply(function, *constants))

    def pool(self, x: str, output: str = "", kind: str = "max") -> str:
        return self.add("pool", [x], output, kind=kind, kernel=(3, 3), strides=(1, 1),
                        pads=(1, 1, 1, 1), dilations=(1, 1), ceil_mode=False,
                        count_include_pad=False)

    def mean(self, x: str) -> str:
        return self.add("reduce", [x], kind="mean", axes="spatial", keepdims=True)

    def binarise(self, x: str, output: str = "") -> str:
        signs = [self.scalar(value) for value in (0, 1, -1)]
        return self.apply("where", self.apply("greater_equal", x, signs[0]), *signs[1:],
                          output=output)


def check(build: Builder, ops: Sequence[str] | None = None) -> list[Node]:
    """Asserts that optimising keeps the outputs and leaves these ops; returns the nodes."""
    graph = build.graph
    before = [(node.op, list(node.inputs), dict(node.attributes)) for node in graph.nodes]
    better = optimise(graph)
    assert before == [(node.op, node.inputs, node.attributes) for node in graph.nodes]
    for batch in (0, 2):
        x = np.random.default_rng(batch).standard_normal((batch, *graph.inputs[0].shape[1:]))
        feeds = {"x": x.astype(np.float32)}
        expected = execute(resolve(graph, batch), feeds)
        results = execute(resolve(better, batch), feeds)
        for info in graph.outputs:
            assert normalised_error(results[info.name], expected[info.name]) <= FLOAT32
    if ops is not None:
        assert [node.op for node in better.nodes] == list(ops)
    return better.nodes


def functions(node: Node) -> list[str]:
    expression = node.attributes.get("epilogue") or node.attributes["expression"]
    return [step.function for step in expression.steps]
