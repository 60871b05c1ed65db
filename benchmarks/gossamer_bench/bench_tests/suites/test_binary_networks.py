"""Tests that the binary networks of the suite are the published ones, exact and the same for all
contenders."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gossamer
from bench_tests.conftest import setting
from gossamer.bench.networks import reference
from gossamer.bench.work import PeerNetwork
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.model.graph import Graph
from gossamer.model.onnx_writer import to_onnx
from gossamer.plan.report.bits import computes_on_bits
from gossamer_bench.suites.binary_networks import (
    _steps,
    alexnet,
    binary_case,
    resnet18,
    resnet18_body,
    shares_text,
    vgg_cifar10,
)
from gossamer_bench.suites.catalogue import select
from tests.fixtures import is_slow
from tests.model.onnx_models import runtime
from tests.plan.choose.fusions.toy import make_plan
from tests.plan.same_classes import forced

BUILDS: dict[str, Callable[..., Graph]] = {
    "vgg-cifar10": vgg_cifar10, "alexnet-binary": alexnet, "resnet18-binary": resnet18,
    "resnet18-binary-body": resnet18_body}
SMALL = {"vgg-cifar10": 8, "alexnet-binary": 67, "resnet18-binary": 32,
         "resnet18-binary-body": 8}


def images(graph: Graph) -> np.ndarray:
    shape = (2, *graph.inputs[0].shape[1:])
    return _steps(np.random.default_rng(0).standard_normal(shape, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters", "layers"), [
    # the published numbers of weights: of AlexNet without groups, of ResNet-18 without biases
    ("vgg-cifar10", 14_022_016, 9), ("alexnet-binary", 62_367_776, 8),
    ("resnet18-binary", 11_678_912, 21), ("resnet18-binary-body", 11_157_504, 19)])
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
                for only in ("host_im2col", "host_direct_popcount")]
    for result in (of_torch, *runtime(to_onnx(graph), {"x": x}), *of_plans):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_a_case_measures_the_network_and_counts_its_layers_on_bits(tmp_path: Path) -> None:
    graph = vgg_cifar10("small", 8)
    case = binary_case(lambda: PeerNetwork("small", graph), 1,
                       setting(find("host"), tmp_path, ["torch-eager"]))
    names = set(case.contenders)
    assert {"gossamer", "gossamer:host_direct_popcount", "torch-eager"} <= names
    (forced,) = case.contenders["gossamer:host_direct_popcount"]()
    ready = forced.make()
    assert "host_direct_popcount 8" in ready.config
    ready.work(None)
    np.testing.assert_allclose(ready.output(1), case.expected, rtol=1e-5)


@pytest.mark.slow
def test_rows_state_the_share_of_the_stem(tmp_path: Path) -> None:
    plan = make_plan(resnet18("small", 32), tmp_path, "host", only="host_direct_popcount")
    program = plan.program(1)
    text = shares_text(program)
    shares = [float(share) for share in re.findall(r"([0-9.]+)%", text)]
    # a share of less than 0.05% is 0.0%
    assert len(shares) == 3 and max(shares) > 0 and abs(sum(shares) - 100) < 0.2
    total = sum(step.candidate_of(step.candidates).measured.median_us for step in program.steps)
    assert text.startswith(f"of the layers' {total:.1f} us alone the stem takes ")
    assert shares_text(gossamer.compile(vgg_cifar10("small", 8), "host").program(1)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("build", [resnet18, resnet18_body])
def test_every_binary_layer_of_resnet18_stays_packed(build: Callable[..., Graph],
                                                     device: Device) -> None:
    """No step is between those on bits, and each but the first reads words."""
    if is_slow(device):
        pytest.skip("Oclgrind interprets: a network takes minutes")
    graph = build("small", 64 if build is resnet18 else 16)
    x = images(graph)
    plan = gossamer.compile(graph, device, only=forced(device))
    expected = reference(graph, x)
    np.testing.assert_allclose(plan(x), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    steps = plan.program(2).steps
    on_bits = [index for index, step in enumerate(steps) if computes_on_bits(step)]
    assert len(on_bits) == 19
    assert on_bits == list(range(on_bits[0], on_bits[-1] + 1))
    assert all(steps[index].variant.inputs[0].format.is_packed for index in on_bits[1:])


def test_files_are_cases_beside_the_networks_of_the_literature(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    path.write_bytes(to_onnx(vgg_cifar10("own", 8)).SerializeToString())
    items = select(["binary-networks"], [1, 8], models=[path])
    assert [(item.name, item.batch) for item in items][::2] == [
        (name, 1) for name in ("vgg-cifar10", "alexnet-binary", "resnet18-binary",
                      "resnet18-binary-body", "own")]
