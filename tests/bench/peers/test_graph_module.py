"""Tests that a graph computes the same as a module of PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.bench.reference import reference
from gossamer.errors import UnsupportedError
from gossamer.model.builder import GraphBuilder
from tests.bench.networks import detector
from tests.tolerances import normalised_error, tolerance

pytest.importorskip("torch")


def test_detectors() -> None:
    import torch

    from gossamer.bench.peers.graph_module import graph_module

    graph = detector()
    x = np.random.default_rng(5).standard_normal((2, 4, 8, 8), np.float32)
    results = graph_module(graph, 2)(torch.from_numpy(x))
    assert [tuple(y.shape) for y in results] == [(2, 5, 8, 8), (2, 6, 4, 4)]
    assert normalised_error(results[0].numpy(), reference(graph, x)) < tolerance("network")


def test_an_op_without_a_form_is_named() -> None:
    from gossamer.bench.peers.graph_module import graph_module

    build = GraphBuilder("image")
    y = build.resize(build.input("x", (None, 4, 7, 6)), (1, 1, 2, 2), mode="linear")
    build.output(y, (None, 4, 14, 12))
    with pytest.raises(UnsupportedError, match=r"image: .*\(resize\) has no form in PyTorch here"):
        graph_module(build.finish(), 1)
