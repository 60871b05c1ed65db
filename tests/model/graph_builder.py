"""Builds graphs of random weights for the tests of rewrites, and checks that these keep
results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gossamer.model.builder import GraphBuilder, NodeNames
from gossamer.model.graph import Node
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from tests.model.executor import execute
from tests.tolerances import FLOAT32, normalised_error

SIZE = 5
CHANNELS = 4


class Builder:
    """Appends layers with random weights to a graph, whose values have the shape (N, 4, 5, 5) by
    default; its nodes are n0, n1, ... and make v0, v1, ..."""

    def __init__(self, outputs: Sequence[str] = ("y",)) -> None:
        self.build = GraphBuilder("test")
        self.build.input("x", (None, CHANNELS, SIZE, SIZE))
        for name in outputs:
            self.build.output(name, ())
        self.graph = self.build.graph
        self.random = np.random.default_rng(11)

    def constant(self, *shape: int, positive: bool = False) -> str:
        array = self.random.standard_normal(shape)
        return self.build.constant(f"c{len(self.graph.constants)}",
                                   np.abs(array) + 0.5 if positive else array)

    def scalar(self, value: float, *shape: int) -> str:
        return self.build.constant(f"c{len(self.graph.constants)}",
                                   np.full(shape, value, np.float32))

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        return self.build.add(op, inputs, **self._names(output), **attributes)

    def conv(self, x: str, output: str = "", into: int = CHANNELS, out: int = CHANNELS,
             size: int = 3, pad: int | None = None, groups: int = 1, bias: bool = True) -> str:
        weight = self.constant(out, into // groups, size, size)
        return self.build.conv2d(x, weight, self.constant(out) if bias else "",
                                 pads=(size // 2 if pad is None else pad,) * 4, groups=groups,
                                 **self._names(output))

    def norm(self, x: str, output: str = "", channels: int = CHANNELS) -> str:
        moments = [self.constant(channels, positive=part == 3) for part in range(4)]
        return self.build.batch_norm(x, *moments, **self._names(output))

    def apply(self, function: str, *inputs: str, output: str = "",
              constants: Sequence[float] = ()) -> str:
        return self.build.apply(function, *inputs, constants=constants, **self._names(output))

    def pool(self, x: str, output: str = "", kind: str = "max") -> str:
        return self.build.pool(x, kind, (3, 3), pads=(1, 1, 1, 1), **self._names(output))

    def _names(self, output: str) -> NodeNames:
        index = len(self.graph.nodes)
        return NodeNames(name=f"n{index}", output=output or f"v{index}")

    def mean(self, x: str) -> str:
        return self.build.reduce(x, "mean", **self._names(""))

    def binarise(self, x: str, output: str = "") -> str:
        signs = [self.scalar(value) for value in (0, 1, -1)]
        return self.apply("where", self.apply("greater_equal", x, signs[0]), *signs[1:],
                          output=output)


def check(build: Builder, ops: Sequence[str] | None = None, *,
          channels_first: bool = False, for_gpu: bool = False) -> list[Node]:
    """Asserts that optimising keeps the outputs and leaves these ops; returns the nodes."""
    graph = build.build.finish()
    before = [(node.op, list(node.inputs), dict(node.attributes)) for node in graph.nodes]
    better = optimise(graph, channels_first=channels_first,
                      for_gpu=for_gpu)
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
