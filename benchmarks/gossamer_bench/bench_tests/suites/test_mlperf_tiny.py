"""Tests that the networks of the suite mlperf-tiny are those that were published."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from bench_tests.conftest import PEAKS, setting
from gossamer.bench.networks import reference
from gossamer.bench.rows import Stamp
from gossamer.device.registry import find
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.onnx_writer import to_onnx
from gossamer_bench import contest
from gossamer_bench.suites.catalogue import select
from gossamer_bench.suites.mlperf_tiny import MLPERF_TINY_NETWORKS
from tests.model.onnx_models import runtime
from tests.tolerances import normalised_error, tolerance

PARAMETERS = {"ds-cnn": 24_908, "mobilenetv1-0.25": 221_794, "resnet-8": 78_666,
              "autoencoder": 269_992}
"""Parameters of the reference models, with a bias and four numbers of each batch norm where a
folded one has the bias alone."""
CHANNELS = {"ds-cnn": 576, "mobilenetv1-0.25": 2_736, "resnet-8": 240, "autoencoder": 1_032}
"""Channels of the reference models' batch norms together."""
MULTIPLY_ADDS = {"ds-cnn": 2.7e6, "mobilenetv1-0.25": 7.5e6, "resnet-8": 12.5e6,
                 "autoencoder": 0.264e6}
SHAPES = {"ds-cnn": ((1, 49, 10), (12,)), "mobilenetv1-0.25": ((3, 96, 96), (2,)),
          "resnet-8": ((3, 32, 32), (10,)), "autoencoder": ((640,), (640,))}


def multiply_adds(graph: Graph) -> int:
    """Returns the multiply-adds of the convolutions and products for one input."""
    shapes = resolve(graph, 1).shapes
    return sum(math.prod(shapes[node.outputs[0]]) * math.prod(shapes[node.inputs[1]][1:])
               for node in graph.nodes if node.op in ("conv2d", "gemm"))


def inputs(name: str) -> np.ndarray:
    shape, _ = SHAPES[name]
    return np.random.default_rng(0).standard_normal((2, *shape), np.float32)


@pytest.mark.parametrize("name", MLPERF_TINY_NETWORKS)
def test_a_network_has_the_published_size(name: str) -> None:
    graph = MLPERF_TINY_NETWORKS[name]()
    count = sum(array.size for array in graph.constants.values())
    assert count == PARAMETERS[name] - 4 * CHANNELS[name]
    assert multiply_adds(graph) == pytest.approx(MULTIPLY_ADDS[name], rel=0.02)
    shapes = resolve(graph, 2).shapes
    assert (shapes[graph.inputs[0].name][1:], shapes[graph.outputs[0].name][1:]) == SHAPES[name]


@pytest.mark.parametrize("name", MLPERF_TINY_NETWORKS)
def test_onnxruntime_computes_the_same(name: str) -> None:
    pytest.importorskip("onnxruntime")
    graph = MLPERF_TINY_NETWORKS[name]()
    x = inputs(name)
    expected = reference(graph, x)
    (result,) = runtime(to_onnx(graph), {"x": x})
    assert normalised_error(result, expected) < tolerance("network")
    # neither saturated nor the same for each input
    assert normalised_error(expected[0], expected[1]) > 0.01


def test_keywords_are_padded_as_tensorflow_does() -> None:
    """Of 9 rows around 49, and of 2 columns around 10, the larger half is at the end."""
    graph = MLPERF_TINY_NETWORKS["ds-cnn"]()
    assert graph.nodes[0].attributes["pads"] == (4, 1, 5, 1)


def test_weights_are_the_same_each_time() -> None:
    one, other = (MLPERF_TINY_NETWORKS["resnet-8"]().constants for _ in range(2))
    assert all(np.array_equal(array, other[name]) for name, array in one.items())


def test_a_case_has_the_plan_and_the_peers(tmp_path: Path) -> None:
    """The smallest network is measured beside ONNX Runtime and OpenVINO."""
    for library in ("onnxruntime", "openvino"):
        pytest.importorskip(library)
    (item,) = select(["mlperf-tiny"], [1], "autoencoder")
    case = item.make(setting(find("host"), tmp_path, ["onnxruntime", "openvino"]))
    result = contest.run(case, PEAKS, Stamp({}, "gossamer bench", None, "run"))
    assert not result.failed
    assert [(row.suite, row.case, row.batch) for row in result.rows] == [
        ("mlperf-tiny", "autoencoder", 1)] * 3
    assert {row.contender for row in result.rows} == {"gossamer", "onnxruntime", "openvino"}
