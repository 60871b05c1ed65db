"""The float64 reference of a network, and the error against it."""

from __future__ import annotations

import itertools
import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.accuracy import normalised_error
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.ops.registry import OPS
from gossamer.plan.lower.rules import lower
from gossamer.plan.tune import network_reference as reference_module
from gossamer.plan.tune.network_reference import reference
from tests.model.onnx_models import save
from tests.plan import mixing
from tests.plan.mixing import MIXING, network, node
from tests.plan.small import expected, images, small
from tests.tolerances import tolerance


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return gossamer.load(str(save(small(), tmp_path)))


def test_the_reference_is_the_network(graph: Graph) -> None:
    x = images(3)
    y = reference(graph, {"x": x})["y"]
    assert y.dtype == np.float64
    assert normalised_error(expected(x), y) <= tolerance("network")


@pytest.mark.parametrize("batch", [1, 3, 5, 7])
def test_the_reference_is_computed_in_parts(graph: Graph, batch: int,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(batch)
    expected_y = reference(graph, {"x": x})["y"]
    seen: list[int] = []
    op = OPS["pool"]

    def watched(problem: Any, *arguments: Any) -> list[np.ndarray]:
        seen.append(problem.outputs[0].shape[0])
        return op.reference(problem, *arguments)

    monkeypatch.setitem(OPS, "pool", replace(op, reference=watched))
    monkeypatch.setattr(reference_module, "_BYTES_AT_ONCE", 2 * _bytes_of_an_image(graph))
    np.testing.assert_allclose(reference(graph, {"x": x})["y"], expected_y, rtol=1e-12)
    # the last part is filled up
    pools = len(seen) // math.ceil(batch / 2)
    assert seen[::pools] == [min(2, batch)] * math.ceil(batch / 2)


def _bytes_of_an_image(graph: Graph) -> int:
    layers, _ = lower(resolve(graph, 1))
    return sum(8 * spec.size for layer in layers for spec in layer.problem.outputs)


@pytest.mark.parametrize("name", MIXING)
def test_the_reference_of_mixed_images_is_computed_at_once(
        name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = gossamer.load(str(save(MIXING[name], tmp_path)))
    x = mixing.images(6)
    expected_y = reference(graph, {"x": x})["y"]
    monkeypatch.setattr(reference_module, "_BYTES_AT_ONCE", 1)
    np.testing.assert_array_equal(reference(graph, {"x": x})["y"], expected_y)


def test_the_reference_keeps_what_is_still_read_only(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of twenty layers has at most two values of neighbouring layers at a time, and the
    first value, which the last layer reads."""
    chain = ["x", *(f"v{index}" for index in range(20))]
    proto = network(*(node("Softmax", [a], [b], axis=1)
                    for a, b in itertools.pairwise(chain)),
                  node("Add", [chain[1], chain[-1]], ["y"]))
    graph = gossamer.load(str(save(proto, tmp_path)))
    alive: list[weakref.ref[np.ndarray]] = []
    most = [0]
    op = OPS["softmax"]

    def watched(*arguments: Any) -> list[np.ndarray]:
        results = op.reference(*arguments)
        alive.extend(map(weakref.ref, results))
        most[0] = max(most[0], sum(values() is not None for values in alive))
        return results

    monkeypatch.setitem(OPS, "softmax", replace(op, reference=watched))
    reference(graph, {"x": np.ones((2, 3, 4, 4), np.float32)})
    assert len(alive) == 20 and most[0] <= 4
