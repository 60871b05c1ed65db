"""Tests that programs and tables of sparse convolutions are cached for repeated builds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.device.registry import find
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.generated import direct_sparse_compiled as module
from gossamer.ops.conv2d.sparse.mma_batch.order import KINDS
from gossamer.ops.conv2d.sparse.mma_batch.tables import BatchTables, Geometry
from gossamer.ops.lru_cache import LruCache
from gossamer.ops.weights import Weights
from tests.ops.conv2d.sparse.sparse_weights import sparse, with_density
from tests.ops.conv2d.sparse.test_direct_sparse_compiled import PtxDevice

PROBLEM = with_density(Conv2dProblem(64, 8, 6, 6, 8, (3, 3), pads=(1, 1, 1, 1)), 0.2)


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    programs: list[Any] = []
    generate = module.generate

    def counting(*arguments: Any) -> Any:
        programs.append(generate(*arguments))
        return programs[-1]

    monkeypatch.setattr(module, "generate", counting)
    monkeypatch.setattr(module, "_PROGRAMS", LruCache(2**27, module._PROGRAMS._size))
    return programs


def prepared(arrays: dict[str, np.ndarray], problem: Conv2dProblem = PROBLEM,
             variant: int = 0) -> list[Any]:
    algorithm, device = module.DirectSparseCompiled(), PtxDevice()
    chosen = list(algorithm.variants(problem, device))[variant]
    state = algorithm.prepare(Weights(arrays, device), problem, chosen, device)
    return [(launch.kernel, launch.work_groups) for launch in state.launches]


def test_a_layer_that_is_built_again_is_not_generated_again(generated: list[Any]) -> None:
    arrays = sparse(PROBLEM, 0.2)
    again = {name: array.copy() for name, array in arrays.items()}
    assert prepared(arrays) == prepared(again)
    assert len(generated) == 1


def test_programs_larger_than_the_cache_are_not_cached(generated: list[Any],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = sparse(PROBLEM, 0.2)
    monkeypatch.setattr(module._PROGRAMS, "max_bytes", 100)
    assert prepared(arrays) == prepared(arrays)
    assert len(generated) == 2


def test_other_weights_and_variants_have_programs_of_their_own(generated: list[Any]) -> None:
    arrays = sparse(PROBLEM, 0.2)
    first = prepared(arrays)
    other = {**arrays, "weight": arrays["weight"] * 2}
    assert prepared(other) != first
    assert prepared(arrays, variant=1) != first
    assert prepared(arrays, replace(PROBLEM, batch=32)) != first
    assert len(generated) == 4


def test_the_least_recently_used_are_dropped(generated: list[Any],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [{"weight": sparse(PROBLEM, 0.2)["weight"] * scale} for scale in (1, 2, 3)]
    prepared(layers[0])
    length = sum(len(kernel.program.text) for kernel in generated[0])
    monkeypatch.setattr(module._PROGRAMS, "max_bytes", 2.5 * length)
    for index in (1, 0, 2, 0):
        prepared(layers[index])
    assert len(generated) == 3
    prepared(layers[1])
    assert len(generated) == 4


def test_tables_for_tensor_cores_are_made_once_for_equal_weights() -> None:
    def parts(weight: np.ndarray, tiles: int = 1,
              problem: Conv2dProblem = PROBLEM) -> dict[str, np.ndarray]:
        weights = Weights({"weight": weight}, find("host"))
        geometry = Geometry(4, 4, 8, 1)
        return BatchTables(problem, weights, KINDS["tf32"], tiles, 2, 1, geometry).parts

    weight = sparse(PROBLEM, 0.2)["weight"]
    first = parts(weight)
    assert parts(weight.copy()) is first
    assert parts(weight, problem=replace(PROBLEM, batch=32)) is first
    assert parts(weight, problem=replace(PROBLEM, dilation=(2, 1))) is not first
    assert parts(weight, tiles=2) is not first
    assert not np.array_equal(parts(2 * weight)["weights"], first["weights"])
