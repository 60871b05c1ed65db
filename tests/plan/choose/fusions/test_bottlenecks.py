"""Bottleneck blocks in whole networks: which are found, and where they are not, why."""

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
from gossamer.ops.fused.bottleneck.bottleneck_mma import BottleneckMma
from gossamer.ops.fused.problem import FusionProblem, entry
from gossamer.plan.fusion import find_fusions
from gossamer.plan.lower.rules import lower
from gossamer.plan.tune.reference import reference
from tests.ops.recording import RecordingDevice
from tests.tolerances import normalised_error, tolerance

ALGORITHM = BottleneckMma()


def _network(*, stride: int = 1, size: tuple[int, int] = (11, 9), density: float = 1.0,
             projects_first: bool = True) -> Graph:
    """Returns a block from 16 to 24 channels with a projection, and one behind it that adds its
    input.

    stride: of the first block. density: share of the weights that are not zero. projects_first:
    whether the projection stands before the block's other layers, and its result is added to
    theirs, rather than the other way round.
    """
    rng = np.random.default_rng(5)
    build = GraphBuilder("bottlenecks")

    def conv(x: str, out: int, depth: int, kernel: int = 1, **options: object) -> str:
        weight = rng.standard_normal((out, depth, kernel, kernel)) / np.sqrt(depth) / kernel
        weight *= rng.random(weight.shape) < density
        count = len(names)
        names.append(f"conv{count}")
        return build.conv2d(
            x, build.constant(f"w{count}", weight.astype(np.float32)),
            build.constant(f"b{count}", rng.standard_normal(out).astype(np.float32)),
            name=names[-1], **options)

    names: list[str] = []
    x = build.input("x", (None, 16, *size))
    for depth, first in ((16, True), (24, False)):
        step = stride if first else 1
        shortcut = x
        if first and projects_first:
            shortcut = conv(x, 24, 16, strides=(step, step))
        y = build.apply("relu", conv(x, 8, depth))
        y = build.apply("relu", conv(y, 8, 8, 3, pads=(1,) * 4, strides=(step, step)))
        y = conv(y, 24, 8)
        if first and not projects_first:
            shortcut = conv(x, 24, 16, strides=(step, step))
        x = build.apply("relu", build.apply("add", y, shortcut))
    build.output(x, (None, 24, *(-(-length // stride) for length in size)))
    return build.finish()


def _blocks(graph: Graph) -> list[FusionProblem]:
    """Returns the fusions of a network that the algorithm recognises."""
    graph = optimise(graph)
    layers, _ = lower(resolve(graph, 2))
    return [fusion.problem for fusion in find_fusions(layers, [out.name for out in graph.outputs])
            if isinstance(fusion.problem, FusionProblem) and len(fusion.problem.parts) == 3
            and ALGORITHM.recognises(fusion.problem)]


@pytest.mark.parametrize("projects_first", [True, False])
def test_blocks_with_and_without_a_projection_are_found(projects_first: bool) -> None:
    blocks = _blocks(_network(projects_first=projects_first))
    assert [ALGORITHM.supports(block, RecordingDevice()) for block in blocks] == [None, None]
    projected, identity = blocks
    assert projected.sources[2] == (((1, 0), entry(1)) if projects_first else ((1, 0),))
    assert identity.sources[2] == ((1, 0), entry(0))


def test_a_block_with_a_stride_gives_a_reason() -> None:
    strided, identity = _blocks(_network(stride=2))
    assert ALGORITHM.supports(strided, RecordingDevice()) == (
        "the convolution with windows has stride (2, 2) and dilation (1, 1), takes neither")
    assert ALGORITHM.supports(identity, RecordingDevice()) is None


@pytest.mark.parametrize("density", [1.0, 0.1])
def test_a_plan_computes_them_as_one(cuda: Device, density: float, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    graph = _network(density=density)
    plan = gossamer.compile(graph, cuda, effort="quick", only="bottleneck_mma", precision="fp16")
    x = np.random.default_rng(6).standard_normal((3, 16, 11, 9)).astype(np.float32)
    (expected,) = reference(graph, {"x": x}).values()
    assert normalised_error(plan(x), expected) <= tolerance("network", "fp16")
    assert [row["algorithm"] for row in plan.report(3).rows].count("bottleneck_mma") == 2
