"""Blocks of mobile networks: what is found, computed as one and reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import gossamer
from gossamer.device.registry import find
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.ops.fused.inverted_residual.squeeze_excite import SqueezeExcite
from gossamer.plan.fusion import find_fusions
from gossamer.plan.lower.rules import lower
from tests.model.onnx_models import model, runtime, save, weights
from tests.plan.choose.fusions.toy import make_plan, no_comparison
from tests.tolerances import normalised_error, tolerance

DEVICE = "opencl:0"

FORMS = ("hard sigmoid", "parts of a hard sigmoid", "mean and swish", "gates first",
         "average pool")


def _block(form: str, *, others: bool = False, dilation: int = 1) -> onnx.ModelProto:
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
             node("Conv", ["e0", "w1", "b1"], ["d0"], "depthwise", group=12, pads=[dilation] * 4,
                  dilations=[dilation] * 2),
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


@pytest.mark.slow
def test_the_report_says_why_a_block_is_not_computed_as_one(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_comparison(monkeypatch)
    graph = load(save(_block("hard sigmoid", dilation=2), tmp_path))
    plan = make_plan(graph, tmp_path, DEVICE)
    row = next(row for row in plan.report(2).rows if row["layer"] == "depthwise")
    assert row["rejected"]["squeeze_excite"] == (
        "the depthwise convolution has dilation (2, 2); needs none")


@pytest.mark.slow
def test_nothing_is_said_of_layers_that_are_no_block(monkeypatch: pytest.MonkeyPatch,
                                                     tmp_path: Path) -> None:
    no_comparison(monkeypatch)
    nodes = [helper.make_node("Conv", [f"x{i or ''}", f"w{i}"], [f"x{i + 1}"], f"conv{i}")
             for i in range(3)]
    graph = load(save(model(nodes, {"x": ["N", 8, 5, 5]}, {"x3": 4}, {
        f"w{i}": weights(8, 8, 1, 1, seed=i) for i in range(3)}), tmp_path))
    plan = make_plan(graph, tmp_path, DEVICE)
    for row in plan.report(2).rows:
        assert "squeeze_excite" not in row["rejected"]


def test_gates_that_others_read_are_the_reason_why_a_block_is_not_one(tmp_path: Path) -> None:
    graph = optimise(load(save(_block("hard sigmoid", others=True), tmp_path)))
    layers, _ = lower(resolve(graph, 2))
    fusions = find_fusions(layers, [info.name for info in graph.outputs])
    (block,) = [fusion for fusion in fusions if len(fusion.covers) == 7]
    assert SqueezeExcite().supports(block.problem, find(DEVICE)) == (
        "a value inside the block is read elsewhere")
