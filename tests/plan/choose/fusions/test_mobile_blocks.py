"""Blocks of mobile networks: what is found, computed as one and reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import gossamer
from gossamer.device.registry import find
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.ops.fused.inverted_residual.squeeze_excite import SqueezeExcite
from gossamer.plan.fusion import find_fusions
from gossamer.plan.lower.rules import lower
from gossamer.plan.tune.reference import reference
from tests.model.onnx_models import model, runtime, save, weights
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
        "the depthwise convolution has dilation (2, 2); needs none")


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


FORMS = ("hard sigmoid", "parts of a hard sigmoid", "mean and swish", "gates first",
         "average pool")


def _block(form: str, *, others: bool = False) -> onnx.ModelProto:
    """Returns a block of 6 to 12 to 6 channels at 7x7 that is added to its input. others: whether
    the gates are an output of the network as well."""
    node = helper.make_node
    mean = {"mean and swish": node("ReduceMean", ["d"], ["m"], axes=[2, 3], keepdims=1),
            "average pool": node("AveragePool", ["d"], ["m"], kernel_shape=[7, 7])}
    inner = ([node("Sigmoid", ["s"], ["e"]), node("Mul", ["s", "e"], ["a"])]
             if form == "mean and swish" else [node("Relu", ["s"], ["a"])])
    gate = [node("HardSigmoid", ["g"], ["gate"], alpha=1 / 6, beta=0.5)]
    if form == "mean and swish":
        gate = [node("Sigmoid", ["g"], ["gate"])]
    elif form == "parts of a hard sigmoid":
        gate = [node("Add", ["g", "three"], ["g3"]), node("Clip", ["g3", "zero", "six"], ["g6"]),
                node("Div", ["g6", "six"], ["gate"])]
    operands = ["gate", "d"] if form == "gates first" else ["d", "gate"]
    nodes = [node("Conv", ["x", "w0"], ["c"], "expand"), node("Relu", ["c"], ["e0"]),
             node("Conv", ["e0", "w1", "b1"], ["d0"], "depthwise", group=12, pads=[1, 1, 1, 1]),
             node("Relu", ["d0"], ["d"]), mean.get(form, node("GlobalAveragePool", ["d"], ["m"])),
             node("Conv", ["m", "w2", "b2"], ["s"], "squeeze"), *inner,
             node("Conv", ["a", "w3", "b3"], ["g"], "excite"), *gate,
             node("Mul", operands, ["scaled"]),
             node("Conv", ["scaled", "w4"], ["p"], "project"), node("Add", ["x", "p"], ["y"])]
    constants = {"w0": weights(12, 6, 1, 1), "w1": weights(12, 1, 3, 3, seed=1),
                 "b1": weights(12, seed=2), "w2": weights(4, 12, 1, 1, seed=3),
                 "b2": weights(4, seed=4), "w3": weights(12, 4, 1, 1, seed=5),
                 "b3": weights(12, seed=6), "w4": weights(6, 12, 1, 1, seed=8),
                 "three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}
    outputs = {"y": 4, **({"gate": 4} if others else {})}
    used = {name for made in nodes for name in made.input}
    return model(nodes, {"x": ["N", 6, 7, 7]}, outputs,
                 {name: array for name, array in constants.items() if name in used})


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_computed_as_one(form: str, tmp_path: Path) -> None:
    proto = _block(form)
    plan = gossamer.compile(save(proto, tmp_path), DEVICE, only="squeeze_excite")
    x = np.random.default_rng(3).standard_normal((2, 6, 7, 7)).astype(np.float32)
    assert normalised_error(plan(x), runtime(proto, {"x": x})[0]) <= tolerance("network")
    assert [row["algorithm"] for row in plan.report(2).rows
            if row["op"] != "copy"] == ["squeeze_excite"]


def test_gates_that_others_read_are_the_reason_why_a_block_is_not_one(tmp_path: Path) -> None:
    graph = optimise(load(save(_block("hard sigmoid", others=True), tmp_path)))
    layers, _ = lower(resolve(graph, 2))
    fusions = find_fusions(layers, [info.name for info in graph.outputs])
    (block,) = [fusion for fusion in fusions if len(fusion.covers) == 7]
    assert SqueezeExcite().supports(block.problem, find(DEVICE)) == (
        "a value inside the block is read elsewhere")
