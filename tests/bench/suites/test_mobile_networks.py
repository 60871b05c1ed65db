"""The networks of the suite mobilenet are those that were published."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.bench.suites.mobile_networks import MOBILE_NETWORKS
from gossamer.model.infer.resolve import resolve
from gossamer.plan.tune.reference import reference
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
