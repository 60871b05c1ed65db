"""The networks of the suite mobilenet are those that were published."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from gossamer.ops.algorithm import Problem
from gossamer.plan.lower.rules import lower
from gossamer.plan.tune.network_reference import reference
from gossamer_bench.layer_tables import mobilenet_v2_blocks
from gossamer_bench.suites.mobile_networks import MOBILE_NETWORKS, inverted_residual, mobilenet_v2
from tests.tolerances import normalised_error, tolerance

PARAMETERS = {"mobilenetv1": 4.23e6, "mobilenetv2-0.5": 1.97e6, "mobilenetv2-1.4": 6.11e6,
              "mobilenetv3-small": 2.54e6, "mnasnet": 4.38e6, "efficientnet-b0": 5.29e6}
"""Parameters as published or as torchvision counts them, with two numbers of each batch norm where
a folded one has one."""


@pytest.mark.parametrize("name", MOBILE_NETWORKS)
def test_a_network_has_the_published_number_of_parameters(name: str) -> None:
    graph = MOBILE_NETWORKS[name]()
    count = sum(array.size for array in graph.constants.values())
    assert 0.98 * PARAMETERS[name] < count < PARAMETERS[name]
    assert resolve(graph, 2).shapes[graph.outputs[0].name] == (2, 1000)


def test_weights_are_the_same_each_time() -> None:
    one, other = (MOBILE_NETWORKS["mobilenetv3-small"]().constants for _ in range(2))
    assert all(np.array_equal(array, other[name]) for name, array in one.items())


def test_the_blocks_are_those_of_mobilenet_v2() -> None:
    blocks = list(mobilenet_v2_blocks())
    assert [block.name for block in blocks] == [
        f"mobilenetv2/block{number}" for number in range(1, 18)]
    alone = [problem for block in blocks
             for problem in convolutions(inverted_residual(block))]
    # between the first convolution and the last one
    assert alone == convolutions(mobilenet_v2(1.0))[1:-1]


def convolutions(graph: Graph) -> list[Problem | None]:
    """Returns the problems of a network's convolutions, with their residual sums."""
    layers, _ = lower(resolve(optimise(graph), 2))
    return [layer.problem for layer in layers if layer.op == "conv2d"]


def test_a_block_in_torch_computes_the_same() -> None:
    torch = pytest.importorskip("torch")
    from gossamer.bench.peers.graph_module import graph_module

    block = next(block for block in mobilenet_v2_blocks() if block.name.endswith("block16"))
    graph = inverted_residual(block)
    x = np.random.default_rng(0).standard_normal((2, 160, 7, 7)).astype(np.float32)
    (expected,) = reference(graph, {"image": x}).values()
    with torch.no_grad():
        y = graph_module(graph, 2)(torch.from_numpy(x)).numpy()
    assert expected.shape == x.shape and normalised_error(y, expected) <= tolerance("network")


def test_mobilenet_v3_in_torch_computes_the_same() -> None:
    torch = pytest.importorskip("torch")
    from gossamer.bench.peers.graph_module import graph_module

    graph = MOBILE_NETWORKS["mobilenetv3-small"]()
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    (expected,) = reference(graph, {"image": x}).values()
    with torch.no_grad():
        y = graph_module(graph, 1)(torch.from_numpy(x)).numpy()
    assert np.isfinite(expected).all()
    assert normalised_error(y, expected) <= tolerance("network")
