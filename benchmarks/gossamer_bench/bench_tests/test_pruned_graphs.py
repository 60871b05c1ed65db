"""Tests of networks with their smallest weights set to zero, and of zeros that are drawn anew."""

from __future__ import annotations

import numpy as np
import pytest

from bench_tests.networks import tiny
from gossamer.bench.networks import reference
from gossamer.model.graph import Graph
from gossamer_bench.layer_tables import InvertedResidual
from gossamer_bench.pruned_graphs import pruned, pruned_pointwise, two_of_four, without_zeros
from gossamer_bench.suites.mobile_networks import inverted_residual


def weights(graph: Graph) -> list[np.ndarray]:
    """Returns the weights of the convolutions and matrix products, in the network's order."""
    return [graph.constants[node.inputs[1]] for node in graph.nodes
            if node.op in ("conv2d", "gemm")]


def block() -> Graph:
    return inverted_residual(InvertedResidual("block", 8, 6, 16, 8, 1))


def test_all_but_depthwise_convolutions_are_pruned() -> None:
    first, depthwise, last = weights(pruned(block(), 0.75))
    assert np.count_nonzero(depthwise) == depthwise.size
    for weight, original in ((first, weights(block())[0]), (last, weights(block())[2])):
        assert np.count_nonzero(weight) == weight.size // 4
        assert np.abs(original[weight == 0]).max() <= np.abs(weight[weight != 0]).min()


def test_only_convolutions_of_single_pixels_are_pruned() -> None:
    graph = pruned_pointwise(tiny().graph, 0.9)
    # the network has a 3x3, a depthwise 3x3 and a fully connected layer
    assert all(np.array_equal(*pair) for pair in zip(weights(graph), weights(tiny().graph),
                                                     strict=True))
    assert [np.count_nonzero(weight) / weight.size
            for weight in weights(pruned_pointwise(block(), 0.75))] == [0.25, 1, 0.25]


def test_two_of_every_four_input_channels_are_left() -> None:
    first, depthwise, last = weights(two_of_four(block()))
    assert np.count_nonzero(depthwise) == depthwise.size
    for weight in (first, last):
        fours = (weight != 0).reshape(len(weight), -1, 4)
        assert (fours.sum(axis=2) == 2).all()


@pytest.mark.parametrize("sparsity", [0.5, 0.98])
def test_a_network_without_zeros_keeps_the_size_of_its_values(sparsity: float) -> None:
    sparse = pruned(block(), sparsity)
    dense = without_zeros(sparse)
    x = np.random.default_rng(2).standard_normal((2, 8, 6, 6), np.float32)
    for before, after in zip(weights(sparse), weights(dense), strict=True):
        assert np.count_nonzero(after) == after.size and after.dtype == np.float32
        assert np.linalg.norm(after) == pytest.approx(np.linalg.norm(before), rel=1e-3)
    assert reference(dense, x).std() == pytest.approx(reference(sparse, x).std(), rel=1)
    again = without_zeros(sparse).constants
    assert all(np.array_equal(array, again[name]) for name, array in dense.constants.items())
    # biases and what the network is called stay
    assert dense.name == sparse.name == block().name
    assert np.array_equal(dense.constants["conv0.bias"], sparse.constants["conv0.bias"])


def test_a_layer_of_zeros_only_stays() -> None:
    graph = block()
    graph.constants["conv0.weight"] = np.zeros_like(graph.constants["conv0.weight"])
    assert not without_zeros(graph).constants["conv0.weight"].any()
