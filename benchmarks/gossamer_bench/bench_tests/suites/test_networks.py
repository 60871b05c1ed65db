"""Tests that the peers' networks compute the same as gossamer's."""

from __future__ import annotations

import numpy as np
import pytest

from bench_tests.networks import tiny
from gossamer.accuracy import normalised_error as own_error
from gossamer.bench.networks import reference
from gossamer.errors import UnsupportedError
from gossamer.model import zoo
from gossamer.model.graph import Node
from gossamer.model.onnx_writer import to_onnx
from tests.model.onnx_models import runtime
from tests.tolerances import normalised_error, tolerance

X = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)


def test_reference_is_onnxruntimes() -> None:
    network = tiny()
    (expected,) = runtime(to_onnx(network.graph), {"x": X})
    ours = reference(network.graph, X)
    assert ours.dtype == np.float64
    assert normalised_error(expected, ours) < tolerance("network")


def test_mobilenet_in_torch_and_onnx_is_the_zoos() -> None:
    torch = pytest.importorskip("torch")
    from gossamer.bench.peers.torch_calls import folded
    from gossamer_bench.peers.torch_networks import mobilenet_v2

    graph = zoo.build("mobilenet_v2", seed=3)
    x = np.random.default_rng(2).standard_normal((1, 3, 224, 224)).astype(np.float32)
    network = mobilenet_v2(graph.constants)
    with torch.inference_mode():
        expected = network.double()(torch.from_numpy(x).double()).numpy()
        slim = folded(network)
        again = slim(torch.from_numpy(x).double()).numpy()
    assert not any("BatchNorm" in type(module).__name__ for module in slim.modules())
    assert normalised_error(again, expected) < 1e-9
    (from_onnx,) = runtime(to_onnx(graph), {"image": x})
    assert normalised_error(from_onnx, expected) < tolerance("network")


def test_weights_must_fit() -> None:
    pytest.importorskip("torch")
    from gossamer_bench.peers.torch_networks import mobilenet_v2

    constants = dict(zoo.build("mobilenet_v2", seed=3).constants)
    del constants["classifier.1.bias"]
    with pytest.raises(RuntimeError, match=r"classifier\.1\.bias"):
        mobilenet_v2(constants)


def test_other_nodes_have_no_onnx_form() -> None:
    graph = tiny().graph
    graph.nodes.append(Node("gather", "last", ["y", "y"], ["z"], {"axis": 1}, "Gather 'last'"))
    with pytest.raises(UnsupportedError, match="no ONNX nodes for Gather 'last'"):
        to_onnx(graph)


def test_error_is_the_worst_image_and_infinite_for_nan() -> None:
    expected = np.array([[3.0, 4.0], [30.0, 40.0]])
    assert own_error(expected + np.array([0.5, 0.0]), expected) == pytest.approx(0.1)
    assert own_error(np.full((2, 2), np.nan), expected) == float("inf")
    with pytest.raises(ValueError, match="shape"):
        own_error(np.zeros((1, 2)), expected)
