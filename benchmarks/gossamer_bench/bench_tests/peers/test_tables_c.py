"""Tests of the peer in C for pruned networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench_tests.networks import tiny
from gossamer.bench.networks import reference
from gossamer.bench.work import AbsentError, PeerNetwork
from gossamer.device.registry import find
from gossamer_bench.layer_tables import ConvLayer
from gossamer_bench.peers import c_code
from gossamer_bench.peers.inference import PEERS
from gossamer_bench.sparse_weights import drawn
from gossamer_bench.suites.sparse_networks import resnet
from tests.tolerances import normalised_error, tolerance


@pytest.fixture(autouse=True)
def built() -> None:
    try:
        c_code.compiler()
    except AbsentError as reason:
        pytest.skip(str(reason))


def contender(network: PeerNetwork, x: np.ndarray) -> Any:
    (way,) = PEERS["c-tables"](network, x, find("host"), ("fp32",))
    return way.make()


@pytest.mark.parametrize("halving", [1, 3])
def test_a_pruned_network_as_the_reference(halving: int) -> None:
    """Sizes of a single pixel to several tiles, strides in windows of 1, 3 and 7."""
    def weight(layer: ConvLayer) -> np.ndarray:
        return drawn(layer, 0.1)

    network = PeerNetwork("small", resnet("small", weight, 96, halving))
    x = np.random.default_rng(3).standard_normal((2, 3, 96, 96), np.float32)
    ready = contender(network, x)
    # what planes hold of the images before must not reach the results
    for _ in range(2):
        ready.work(None)
    assert normalised_error(ready.output(2), reference(network.graph, x)) < tolerance("network")


def test_other_layers_are_a_reason() -> None:
    with pytest.raises(AbsentError, match="has no step for what comes behind '0'"):
        contender(tiny(), np.zeros((1, 3, 8, 8), np.float32))
