"""Fusions on tensor cores in whole networks: which are found and computed as one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.convolution_pool import ConvolutionPoolMma
from gossamer.ops.fused.pointwise_pair import BOTH, PointwisePairMma
from gossamer.ops.fused.problem import FusionProblem
from gossamer.plan.fusion import find_fusions
from gossamer.plan.lower.rules import lower
from gossamer.plan.tune.network_reference import reference
from tests.ops.recording import RecordingDevice
from tests.tolerances import normalised_error, tolerance

POOL = ConvolutionPoolMma()


def _stem(*, reads_between: bool = False) -> Graph:
    """Returns a convolution of an image with ReLU, a maximum and another convolution.

    reads_between: whether the convolution's result is an output of the network, too.
    """
    rng = np.random.default_rng(5)
    build = GraphBuilder("stem")
    x = build.input("x", (None, 3, 33, 47))
    first = build.apply("relu", _conv(build, rng, x, 32, 3, "first", 7, strides=(2, 2)))
    y = build.pool(first, "max", (3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    build.output(_conv(build, rng, y, 8, 32, "last"), (None, 8, 9, 12))
    if reads_between:
        build.output(first, (None, 32, 17, 24))
    return build.finish()


def _fusions(graph: Graph, algorithm: FusionAlgorithm) -> list[FusionProblem]:
    """Returns the fusions of a network that an algorithm recognises."""
    graph = optimise(graph)
    layers, _ = lower(resolve(graph, 2))
    return [fusion.problem for fusion in find_fusions(layers, [out.name for out in graph.outputs])
            if isinstance(fusion.problem, FusionProblem) and algorithm.recognises(fusion.problem)]


def _conv(build: GraphBuilder, rng: np.random.Generator, x: str, out: int, depth: int, name: str,
          kernel: int = 1, **options: Any) -> str:
    """Adds a convolution with drawn weights, which keeps the size at stride 1."""
    weight = rng.standard_normal((out, depth, kernel, kernel)) / np.sqrt(depth) / kernel
    return build.conv2d(x, build.constant(f"w_{name}", weight.astype(np.float32)),
                        build.constant(f"b_{name}", rng.standard_normal(out).astype(np.float32)),
                        name=name, pads=(kernel // 2,) * 4, **options)


def _assert_computed_as_one(graph: Graph, algorithm: str, device: Device, image: np.ndarray,
                            x: np.ndarray | None = None,
                            inputs: gossamer.InputFormat | None = None) -> None:
    """x: the image as the network takes it, by default the image itself."""
    plan = gossamer.compile(graph, device, effort="quick", only=algorithm, precision="fp16",
                            inputs=inputs)
    (expected,) = reference(graph, {"x": image if x is None else x}).values()
    assert normalised_error(plan(image), expected) <= tolerance("network", "fp16")
    assert algorithm in [row["algorithm"] for row in plan.report(3).rows]


def test_a_first_convolution_with_its_maximum_is_found() -> None:
    (fusion,) = _fusions(_stem(), POOL)
    assert POOL.supports(fusion, RecordingDevice()) is None


def test_a_result_that_is_an_output_of_the_network_is_computed() -> None:
    (fusion,) = _fusions(_stem(reads_between=True), POOL)
    assert POOL.supports(fusion, RecordingDevice()) == (
        "a value between the layers is read elsewhere")


@pytest.mark.parametrize("given", [None, "uint8"])
def test_a_plan_computes_a_convolution_and_its_maximum_as_one(
        cuda: Device, given: str | None, own_cache: Path) -> None:
    inputs = None if given is None else gossamer.InputFormat(given, "NHWC", scale=1 / 64)
    rng = np.random.default_rng(6)
    image = x = rng.standard_normal((3, 3, 33, 47)).astype(np.float32)
    if given is not None:
        image = rng.integers(0, 256, (3, 33, 47, 3), dtype=np.uint8)
        x = image.transpose(0, 3, 1, 2).astype(np.float32) / 64
    _assert_computed_as_one(_stem(), "convolution_pool_mma", cuda, image, x, inputs)


PAIR = PointwisePairMma()


def _bottlenecks() -> Graph:
    """Returns the end of a bottleneck block and the next block, which adds its own input."""
    rng = np.random.default_rng(5)
    build = GraphBuilder("pairs")
    conv = partial(_conv, build, rng)
    x = build.input("x", (None, 64, 9, 11))
    shortcut = conv(x, 128, 64, "projection")
    wide = build.apply("relu", build.apply("add", conv(x, 128, 64, "expansion"), shortcut))
    y = build.apply("relu", conv(wide, 64, 128, "reduction"))
    y = build.apply("relu", conv(y, 64, 64, "window", 3))
    y = build.apply("relu", build.apply("add", conv(y, 128, 64, "last"), wide))
    build.output(y, (None, 128, 9, 11))
    return build.finish()


def test_a_pair_whose_first_result_is_added_later_is_found() -> None:
    supported = [pair for pair in _fusions(_bottlenecks(), PAIR)
                 if PAIR.supports(pair, RecordingDevice()) is None]
    assert [(len(pair.parts), pair.exits) for pair in supported] == [(2, BOTH)]


def test_a_plan_computes_a_pair_as_one(cuda: Device, own_cache: Path) -> None:
    if not cuda.limits.wgmma:
        pytest.skip("the device has no wgmma")
    x = np.random.default_rng(6).standard_normal((3, 64, 9, 11)).astype(np.float32)
    _assert_computed_as_one(_bottlenecks(), "pointwise_pair_mma", cuda, x)
