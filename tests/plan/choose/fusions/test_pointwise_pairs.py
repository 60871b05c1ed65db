"""Pairs of convolutions of single pixels in whole networks: which are found and computed as one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from gossamer.ops.fused.pointwise_pair import BOTH, PointwisePairMma
from gossamer.ops.fused.problem import FusionProblem
from gossamer.plan.fusion import find_fusions
from gossamer.plan.lower.rules import lower
from gossamer.plan.tune.reference import reference
from tests.ops.recording import RecordingDevice
from tests.tolerances import normalised_error, tolerance

ALGORITHM = PointwisePairMma()


def _network() -> Graph:
    """Returns the end of a bottleneck block and the next block, which adds its own input."""
    rng = np.random.default_rng(5)
    build = GraphBuilder("pairs")

    def conv(x: str, out: int, depth: int, name: str, kernel: int = 1) -> str:
        weight = rng.standard_normal((out, depth, kernel, kernel)) / np.sqrt(depth) / kernel
        return build.conv2d(
            x, build.constant(f"w_{name}", weight.astype(np.float32)),
            build.constant(f"b_{name}", rng.standard_normal(out).astype(np.float32)),
            name=name, pads=(kernel // 2,) * 4)

    x = build.input("x", (None, 64, 9, 11))
    shortcut = conv(x, 128, 64, "projection")
    wide = build.apply("relu", build.apply("add", conv(x, 128, 64, "expansion"), shortcut))
    y = build.apply("relu", conv(wide, 64, 128, "reduction"))
    y = build.apply("relu", conv(y, 64, 64, "window", 3))
    y = build.apply("relu", build.apply("add", conv(y, 128, 64, "last"), wide))
    build.output(y, (None, 128, 9, 11))
    return build.finish()


def test_a_pair_whose_first_result_is_added_later_is_found() -> None:
    graph = optimise(_network())
    layers, _ = lower(resolve(graph, 2))
    pairs = [fusion.problem for fusion in find_fusions(layers, [out.name for out in graph.outputs])
             if isinstance(fusion.problem, FusionProblem) and len(fusion.problem.parts) == 2
             and ALGORITHM.recognises(fusion.problem)]
    supported = [pair for pair in pairs if ALGORITHM.supports(pair, RecordingDevice()) is None]
    assert [pair.exits for pair in supported] == [BOTH]


def test_a_plan_computes_them_as_one(cuda: Device, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    if not cuda.limits.wgmma:
        pytest.skip("the device has no wgmma")
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    graph = _network()
    plan = gossamer.compile(graph, cuda, effort="quick", only="pointwise_pair_mma",
                            precision="fp16")
    x = np.random.default_rng(6).standard_normal((3, 64, 9, 11)).astype(np.float32)
    (expected,) = reference(graph, {"x": x}).values()
    assert normalised_error(plan(x), expected) <= tolerance("network", "fp16")
    assert "pointwise_pair_mma" in [row["algorithm"] for row in plan.report(3).rows]
