"""Tests of products that skip the zeros of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.expression import apply
from gossamer.ops.algorithm import Algorithm, Epilogue, Variant
from gossamer.ops.gemm import OP
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.gemm.sparse import SparseGemm, SparseRows
from gossamer.ops.weights import Weights, WeightsInfo
from tests.fixtures import is_slow
from tests.ops.harness import check_variants, random_inputs, random_weights, run_variant

BIAS_RELU = Epilogue(apply("add").then(apply("relu")), ("channel",))
RESIDUAL = Epilogue(apply("add").then(apply("tanh")), ("tensor",))


def algorithm_of(device: Device) -> Algorithm:
    return SparseRows() if device.compiles else SparseGemm()


def sparse(problem: GemmProblem, density: float) -> dict[str, np.ndarray]:
    weights = random_weights(problem)
    mask = np.random.default_rng(2).random(weights["weight"].shape) < density
    return {**weights, "weight": weights["weight"] * mask}


def of(weights: dict[str, np.ndarray], problem: GemmProblem) -> GemmProblem:
    density = float((weights["weight"] != 0).mean())
    return replace(problem, weights_info=WeightsInfo(density, "a pattern"))


def check(problem: GemmProblem, weights: dict[str, np.ndarray], device: Device,
          variants: Sequence[Variant] | None = None) -> None:
    """Compares the outputs of variants (default: all) with the reference."""
    problem = of(weights, problem)
    algorithm = algorithm_of(device)
    if variants is None:
        variants = list(algorithm.variants(problem, device))
    check_variants(algorithm, problem, device, variants, weights, supported=False)


@given(rows=st.sampled_from([0, 1, 3, 8]), columns=st.sampled_from([1, 4, 33]),
       depth=st.sampled_from([1, 30, 67, 400]), density=st.sampled_from([0.0, 0.1, 0.7]),
       choice=st.integers(0, 7))
@settings(max_examples=20)
def test_any_size(device: Device, rows: int, columns: int, depth: int, density: float,
                  choice: int) -> None:
    problem = GemmProblem(rows, columns, depth, BIAS_RELU)
    variants = list(algorithm_of(device).variants(problem, device))
    check(problem, sparse(problem, density), device, [variants[choice % len(variants)]])


@pytest.mark.sanitize
@pytest.mark.parametrize("epilogue", [Epilogue(), RESIDUAL], ids=["none", "residual"])
def test_every_form(device: Device, epilogue: Epilogue) -> None:
    problem = GemmProblem(3, 12, 300, epilogue)
    check(problem, sparse(problem, 0.3), device)


def test_a_pruned_classifier(device: Device) -> None:
    if is_slow(device):
        pytest.skip("Oclgrind interprets: small shapes only")
    problem = GemmProblem(1, 1000, 4096, BIAS_RELU)
    check(problem, sparse(problem, 0.1), device)


def test_places_beyond_16_bits(device: Device) -> None:
    problem = GemmProblem(1, 2, 2**16 + 9)
    weights = sparse(problem, 0.001)
    weights["weight"][1, -1] = 3.0
    check(problem, weights, device)


def test_rows_of_uneven_length(device: Device) -> None:
    problem = GemmProblem(2, 9, 500, BIAS_RELU)
    weights = sparse(problem, 0.02)
    weights["weight"][4] = 1.5
    weights["weight"][[0, 8]] = 0
    check(problem, weights, device)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_only_what_meets_weights_spreads(device: Device, value: float) -> None:
    problem = GemmProblem(2, 3, 40)
    weights = sparse(problem, 0.4)
    weights["weight"][:, 7] = [0.0, 2.0, 0.0]
    problem = of(weights, problem)
    (x,) = random_inputs(problem)
    x[1, 7] = value
    algorithm = algorithm_of(device)
    for variant in algorithm.variants(problem, device):
        (y,) = run_variant(algorithm, problem, variant, device, Weights(weights, device), [x])
        assert np.isfinite(y).tolist() == [[True] * 3, [True, False, True]]


def test_reasons(device: Device) -> None:
    problem = GemmProblem(1, 30, 40, weights_info=WeightsInfo(0.1, "a pattern"))
    algorithm, unsupported = ((SparseRows(), SparseGemm()) if device.compiles
                              else (SparseGemm(), SparseRows()))
    assert algorithm.supports(problem, device) is None
    assert unsupported.supports(problem, device)
    dense = replace(problem, weights_info=WeightsInfo(0.8, "a pattern"))
    assert "density 0.80" in (algorithm.supports(dense, device) or "")
    many = algorithm.supports(replace(problem, rows=9), device)
    assert many == ("9 rows, takes at most 8" if device.compiles else None)
    first = next(algorithm for algorithm in OP.algorithms
                 if algorithm.supports(problem, device) is None)
    assert first.dense, "a plan that does not measure stays dense"
