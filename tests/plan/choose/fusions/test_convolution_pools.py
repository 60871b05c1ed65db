"""First convolutions with a maximum behind them in whole networks: which are found and computed as
one."""

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
from gossamer.ops.fused.convolution_pool import ConvolutionPoolMma
from gossamer.ops.fused.problem import FusionProblem
from gossamer.plan.fusion import find_fusions
from gossamer.plan.lower.rules import lower
from gossamer.plan.tune.reference import reference
from tests.ops.recording import RecordingDevice
from tests.tolerances import normalised_error, tolerance

ALGORITHM = ConvolutionPoolMma()


def _network(*, reads_between: bool = False) -> Graph:
    """Returns a convolution of an image with ReLU, a maximum and another convolution.

    reads_between: whether the convolution's result is an output of the network, too.
    """
    rng = np.random.default_rng(5)
    build = GraphBuilder("stem")

    def conv(x: str, out: int, depth: int, kernel: int, stride: int) -> str:
        weight = rng.standard_normal((out, depth, kernel, kernel)) / np.sqrt(depth) / kernel
        return build.conv2d(
            x, build.constant(f"w{out}", weight.astype(np.float32)),
            build.constant(f"b{out}", rng.standard_normal(out).astype(np.float32)),
            name=f"conv{out}", pads=(kernel // 2,) * 4, strides=(stride, stride))

    x = build.input("x", (None, 3, 33, 47))
    first = build.apply("relu", conv(x, 32, 3, 7, 2))
    y = build.pool(first, "max", (3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    build.output(conv(y, 8, 32, 1, 1), (None, 8, 9, 12))
    if reads_between:
        build.output(first, (None, 32, 17, 24))
    return build.finish()


def _fusions(graph: Graph) -> list[FusionProblem]:
    """Returns the fusions of a network that the algorithm recognises."""
    graph = optimise(graph)
    layers, _ = lower(resolve(graph, 2))
    return [fusion.problem for fusion in find_fusions(layers, [out.name for out in graph.outputs])
            if isinstance(fusion.problem, FusionProblem) and ALGORITHM.recognises(fusion.problem)]


def test_a_first_convolution_with_its_maximum_is_found() -> None:
    (fusion,) = _fusions(_network())
    assert ALGORITHM.supports(fusion, RecordingDevice()) is None


def test_a_result_that_is_an_output_of_the_network_is_computed() -> None:
    (fusion,) = _fusions(_network(reads_between=True))
    assert ALGORITHM.supports(fusion, RecordingDevice()) == (
        "a value between the layers is read elsewhere")


@pytest.mark.parametrize("given", [None, "uint8"])
def test_a_plan_computes_them_as_one(cuda: Device, given: str | None, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    graph = _network()
    inputs = None if given is None else gossamer.InputFormat(given, "NHWC", scale=1 / 64)
    plan = gossamer.compile(graph, cuda, effort="quick", only="convolution_pool_mma",
                            precision="fp16", inputs=inputs)
    rng = np.random.default_rng(6)
    image = x = rng.standard_normal((3, 3, 33, 47)).astype(np.float32)
    if given is not None:
        image = rng.integers(0, 256, (3, 33, 47, 3), dtype=np.uint8)
        x = image.transpose(0, 3, 1, 2).astype(np.float32) / 64
    (expected,) = reference(graph, {"x": x}).values()
    assert normalised_error(plan(image), expected) <= tolerance("network", "fp16")
    assert "convolution_pool_mma" in [row["algorithm"] for row in plan.report(3).rows]
