"""Tests that the binary networks of the suite are the published ones, exact and the same for all
contenders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gossamer
from gossamer.bench.contender import PeerNetwork
from gossamer.bench.reference import reference
from gossamer.bench.suites.binary_networks import (
    _steps,
    alexnet,
    binary_case,
    memory_text,
    resnet18,
    vgg_cifar10,
)
from gossamer.bench.suites.catalogue import select
from gossamer.device.registry import find
from gossamer.model.graph import Graph
from gossamer.model.onnx_writer import to_onnx
from gossamer.plan.report.memory import memory_use
from tests.bench.conftest import setting
from tests.model.onnx_models import runtime

BUILDS: dict[str, Callable[..., Graph]] = {
    "vgg-cifar10": vgg_cifar10, "alexnet-binary": alexnet, "resnet18-binary": resnet18}
SMALL = {"vgg-cifar10": 8, "alexnet-binary": 67, "resnet18-binary": 32}


def images(graph: Graph) -> np.ndarray:
    shape = (2, *graph.inputs[0].shape[1:])
    return _steps(np.random.default_rng(0).standard_normal(shape, np.float32))


@pytest.mark.parametrize(("name", "parameters", "layers"), [
    # the published numbers of weights: of AlexNet without groups, of ResNet-18 without biases
    ("vgg-cifar10", 14_022_016, 9), ("alexnet-binary", 62_367_776, 8),
    ("resnet18-binary", 11_678_912, 21)])
def test_shapes_are_the_published_ones(name: str, parameters: int, layers: int) -> None:
    graph = BUILDS[name](name)
    weights = [array for key, array in graph.constants.items() if key.startswith("weight")]
    assert (len(weights), sum(array.size for array in weights)) == (layers, parameters)


@pytest.mark.parametrize("name", BUILDS)
def test_every_contender_has_the_same_signs(name: str) -> None:
    """Before the classifier all numbers are exact, so that only its sums are rounded."""
    torch = pytest.importorskip("torch")
    from gossamer.bench.peers.graph_module import graph_module

    graph = BUILDS[name](name, SMALL[name])
    x = images(graph)
    expected = reference(graph, x)
    assert np.unique(expected).size > 10
    with torch.inference_mode():
        of_torch = graph_module(graph, 2)(torch.from_numpy(x)).numpy()
    of_plans = [gossamer.compile(graph, "host", only=only)(x)
                for only in ("host_im2col", "host_popcount")]
    for result in (of_torch, *runtime(to_onnx(graph), {"x": x}), *of_plans):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_a_case_measures_the_network_and_states_its_memory(tmp_path: Path) -> None:
    graph = vgg_cifar10("small", 8)
    case = binary_case(lambda: PeerNetwork("small", graph), 1,
                       setting(find("host"), tmp_path, ["torch-eager"]))
    names = set(case.contenders)
    assert {"gossamer", "gossamer:host_popcount", "torch-eager"} <= names
    (forced,) = case.contenders["gossamer:host_popcount"]()
    ready = forced.make()
    assert "host_popcount 8" in ready.config and "in fp32" in ready.config
    ready.work(None)
    np.testing.assert_allclose(ready.output(1), case.expected, rtol=1e-5)


def test_rows_state_the_memory_of_the_context() -> None:
    graph = vgg_cifar10("small", 8)
    context = gossamer.compile(graph, "host", only="host_popcount").context(2)
    use = memory_use(context.program, context.builds)
    assert memory_text(context) == str(use) and "in fp32" in str(use)
    floats = gossamer.compile(graph, "host", only="host_im2col").context(2)
    assert memory_text(floats) == "no layer on bits"


def test_files_are_cases_beside_the_networks_of_the_literature(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    path.write_bytes(to_onnx(vgg_cifar10("own", 8)).SerializeToString())
    items = select(["binary-networks"], [1, 8], models=[path])
    assert [(item.name, item.batch) for item in items][::2] == [
        (name, 1) for name in ("vgg-cifar10", "alexnet-binary", "resnet18-binary", "own")]
