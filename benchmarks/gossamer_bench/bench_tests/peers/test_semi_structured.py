"""Tests that modules with weights in the pattern 2:4 compute the same as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gossamer.bench.networks import reference
from gossamer.bench.work import AbsentError
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer_bench.pruned_graphs import two_of_four
from tests.tolerances import normalised_error, tolerance

pytest.importorskip("torch")


def network() -> Graph:
    """Returns a 1x1 convolution of stride 2, a 3x3 one, a 1x1 one of few channels and a fully
    connected layer."""
    build, rng = GraphBuilder("network"), np.random.default_rng(4)

    def weight(*shape: int) -> str:
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return build.constant(f"w{shape}", values.astype(np.float32))

    y = build.conv2d(build.input("x", (None, 64, 6, 8)), weight(96, 64, 1, 1),
                     build.constant("b", rng.standard_normal(96).astype(np.float32)),
                     strides=(2, 1))
    y = build.conv2d(build.apply("relu", y), weight(64, 96, 3, 3), pads=(1, 1, 1, 1))
    y = build.conv2d(y, weight(64, 64, 1, 1))
    y = build.conv2d(y, weight(68, 64, 1, 1))
    y = build.reduce(y, "mean", (2, 3), keepdims=False)
    build.output(build.gemm(y, weight(12, 68), trans_b=True), (None, 12))
    return build.finish()


def test_pixels_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from gossamer.bench.peers.graph_module import graph_module
    from gossamer_bench.peers.semi_structured import semi_structured

    converted: list[tuple[int, ...]] = []

    def plain(matrix: Any) -> Any:
        assert matrix.is_contiguous()
        converted.append(tuple(matrix.shape))
        return matrix

    # torch has tensors of this kind on NVIDIA GPUs only
    monkeypatch.setattr(torch.sparse, "to_sparse_semi_structured", plain)
    graph = two_of_four(network())
    x = np.random.default_rng(5).standard_normal((2, 64, 6, 8), np.float32)
    module = graph_module(graph, 2).to(memory_format=torch.channels_last)
    result = semi_structured(module)(torch.from_numpy(x).contiguous(
        memory_format=torch.channels_last)).numpy()
    assert converted == [(96, 64), (64, 64)]
    assert normalised_error(result, reference(graph, x)) < tolerance("network")


def test_a_network_without_the_pattern_is_absent() -> None:
    from gossamer.bench.peers.graph_module import graph_module
    from gossamer_bench.peers.semi_structured import semi_structured

    with pytest.raises(AbsentError, match="in the pattern 2:4"):
        semi_structured(graph_module(network(), 2))
