"""Blocks of MobileNet in whole networks: what is found, computed as one and reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gossamer
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.plan.tune.reference import reference
from tests.plan.choose.fusions.toy import make_plan, no_comparison
from tests.tolerances import normalised_error, tolerance

DEVICE = "opencl:0"
ACTIVATIONS = ("relu6", "hard_swish", "silu")


class _Blocks:
    """Builds inverted residual blocks one after another, with weights of a seed."""

    def __init__(self, channels: int, size: int) -> None:
        self._rng = np.random.default_rng(2)
        self.graph = GraphBuilder("blocks")
        self.x = self.graph.input("x", (None, channels, size, size))
        self._channels, self._size, self._count = channels, size, 0

    def conv(self, x: str, out: int, depth: int, kernel: int = 1, **options: object) -> str:
        self._count += 1
        weight = self._rng.standard_normal((out, depth, kernel, kernel)) / np.sqrt(depth) / kernel
        name = f"conv{self._count}"
        return self.graph.conv2d(
            x, self.graph.constant(f"{name}.weight", weight.astype(np.float32)),
            self.graph.constant(f"{name}.bias", self._rng.standard_normal(out).astype(np.float32)),
            name=name, **options)

    def activated(self, x: str, activation: str) -> str:
        if activation == "relu6":
            return self.graph.apply("clip", x, constants=(0.0, 6.0))
        function, constants = (("sigmoid", ()) if activation == "silu"
                               else ("hard_sigmoid", (1 / 6, 0.5)))
        return self.graph.apply("mul", x, self.graph.apply(function, x, constants=constants))

    def add_block(self, activation: str, *, dilation: int = 1, expands: bool = True) -> None:
        hidden = 2 * self._channels if expands else self._channels
        y = self.x
        if expands:
            y = self.activated(self.conv(y, hidden, self._channels), activation)
        y = self.activated(self.conv(
            y, hidden, 1, 3, pads=(dilation,) * 4, dilations=(dilation,) * 2, groups=hidden),
            activation)
        y = self.conv(y, self._channels, hidden)
        self.x = self.graph.apply("add", self.x, y)

    def finish(self) -> Graph:
        self.graph.output(self.x, (None, self._channels, self._size, self._size))
        return self.graph.finish()


def _images(graph: Graph) -> np.ndarray:
    shape = (2, *graph.inputs[0].shape[1:])
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_blocks_are_computed_as_one(activation: str) -> None:
    build = _Blocks(8, 9)
    build.add_block(activation)
    build.add_block(activation)
    graph = build.finish()
    plan = gossamer.compile(graph, DEVICE, only="inverted_residual")
    x = _images(graph)
    (expected,) = reference(graph, {"x": x}).values()
    assert normalised_error(plan(x), expected) <= tolerance("network")
    assert [row["algorithm"] for row in plan.report(2).rows
            if row["op"] != "copy"] == ["inverted_residual"] * 2


@pytest.mark.slow
def test_a_depthwise_and_a_pointwise_convolution_are_computed_as_one() -> None:
    build = _Blocks(8, 9)
    build.add_block("relu6", expands=False)
    graph = build.finish()
    plan = gossamer.compile(graph, DEVICE, only="separable")
    x = _images(graph)
    (expected,) = reference(graph, {"x": x}).values()
    assert normalised_error(plan(x), expected) <= tolerance("network")
    assert "separable" in [row["algorithm"] for row in plan.report(2).rows]


@pytest.mark.slow
def test_the_report_says_why_a_block_is_not_computed_as_one(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_comparison(monkeypatch)
    build = _Blocks(8, 9)
    build.add_block("relu6", dilation=2)
    plan = make_plan(build.finish(), tmp_path, DEVICE)
    row = next(row for row in plan.report(2).rows if row["layer"] == "conv1")
    assert row["rejected"]["inverted_residual"] == (
        "the depthwise convolution has dilation (2, 2), takes none")


@pytest.mark.slow
def test_nothing_is_said_of_layers_that_are_no_block(monkeypatch: pytest.MonkeyPatch,
                                                     tmp_path: Path) -> None:
    no_comparison(monkeypatch)
    build = _Blocks(8, 5)
    for _ in range(3):
        build.x = build.conv(build.x, 8, 8)
    plan = make_plan(build.finish(), tmp_path, DEVICE)
    for row in plan.report(2).rows:
        assert not {"inverted_residual", "separable"} & set(row["rejected"])
