"""Tests of gemm: products of any size, large products, and products that skip zeros."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.expression import apply
from gossamer.ops.algorithm import Algorithm, Epilogue, Variant
from gossamer.ops.gemm import OP
from gossamer.ops.gemm.dense import FewRows
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.gemm.sparse import SparseGemm, SparseRows
from gossamer.ops.weights import Weights, WeightsInfo
from tests.fixtures import is_slow
from tests.ops.conv2d.sparse.sparse_weights import sparse
from tests.ops.fused.blocks import BIAS_RELU
from tests.ops.harness import (
    check,
    check_variants,
    quick,
    random_inputs,
    random_weights,
    run_variant,
)
from tests.ops.recording import RecordingDevice

RESIDUAL = Epilogue(apply("add").then(apply("tanh")), ("tensor",))


def enough(device: Device, part: int = 0, parts: int = 1
           ) -> Callable[[list[Variant]], list[Variant]]:
    """Returns a function that selects the variants which the device runs in seconds: all on a GPU,
    else a part of them, with only one config of 16-bit floats."""
    if device.api == "cuda":
        return list

    def some(variants: list[Variant]) -> list[Variant]:
        few = quick(variants) if is_slow(device) else [
            *(v for v in variants if v.precision == "fp32"),
            *quick([v for v in variants if v.precision == "fp16"])[:1]]
        return few[part % min(parts, len(few)):: parts] if few else []

    return some


@given(rows=st.sampled_from([0, 1, 2, 4, 5, 19]), columns=st.sampled_from([1, 4, 10, 33]),
       depth=st.sampled_from([1, 8, 30, 67]), part=st.integers(0, 3))
@example(rows=1, columns=1, depth=8, part=0)
@settings(max_examples=8)
def test_any_size(device: Device, rows: int, columns: int, depth: int, part: int) -> None:
    check(GemmProblem(rows, columns, depth, BIAS_RELU), device, taken=enough(device, part, 4))


@pytest.mark.sanitize
@pytest.mark.parametrize("rows", [3, 37])
def test_epilogues(device: Device, rows: int) -> None:
    for part, epilogue in enumerate((Epilogue(), RESIDUAL, BIAS_RELU)):
        check(GemmProblem(rows, 12, 20, epilogue), device, taken=enough(device, part, 3),
              vendors=False)


@pytest.mark.parametrize("rows", [1, 4, 37])
def test_a_classifier(quick_device: Device, rows: int) -> None:
    # processors compute products of every size with the same tiles
    columns, depth = (250, 320) if quick_device.api == "opencl" else (1000, 1280)
    check(GemmProblem(rows, columns, depth, BIAS_RELU), quick_device, taken=enough(quick_device),
          vendors=False)


@pytest.mark.sanitize
@pytest.mark.parametrize("rows", [1, 4, 37])
def test_a_few_tiles(device: Device, rows: int) -> None:
    """Long sums of few columns are split into more parts than others."""
    for columns, depth in [(10, 64)] if is_slow(device) else [(300, 320), (20, 1280)]:
        check(GemmProblem(rows, columns, depth, BIAS_RELU), device, taken=enough(device),
              vendors=False)


def test_configs_come_in_both_precisions(compiled_device: Device) -> None:
    problem = GemmProblem(3, 12, 20, RESIDUAL)
    in_both = 0
    for algorithm in OP.algorithms:
        if (algorithm.vendor or algorithm.by_name_only
                or algorithm.supports(problem, compiled_device) is not None):
            continue
        variants = list(algorithm.variants(problem, compiled_device))
        precisions = {variant.precision for variant in variants}
        if precisions != {"fp32", "fp16"}:
            continue
        in_both += 1
        for _, group in itertools.groupby(variants, key=lambda v: v.config):
            precise, as_fp16 = group
            assert precise.as_fp16 == as_fp16
            assert {spec.dtype for spec in (*as_fp16.inputs, *as_fp16.outputs)} == {"float16"}
    assert in_both


@pytest.mark.parametrize(("depth", "vector", "held"), [
    (20, 4, {64: 1, 128: 1, 256: 1}), (999, 1, {64: 16, 128: 8, 256: 4}),
    (1000, 4, {64: 4, 128: 2, 256: 1}), (10_000, 4, {64: 8, 128: 8, 256: 8}),
    (10_001, 1, {64: 32, 128: 32, 256: 32})])
def test_a_work_item_holds_no_more_weights_than_it_reads(depth: int, vector: int,
                                                         held: dict[int, int]) -> None:
    """The weights that a work-item holds while the previous kernel executes take registers, of
    which 32 are enough."""
    problem, found = GemmProblem(2, 3, depth), {}
    weights = random_weights(problem)
    for variant in FewRows().variants(problem, RecordingDevice()):
        device = RecordingDevice()
        FewRows().prepare(Weights(weights, device), problem, variant, device)
        (source,) = device.sources
        macros = dict(source.defines)
        assert macros["VECTOR"] == str(vector)
        found.setdefault(variant["work_group"], set()).add(int(macros["HELD"]))
    assert found == {work_group: {count} for work_group, count in held.items()}


def sparse_algorithm_of(device: Device) -> Algorithm:
    return SparseRows() if device.compiles else SparseGemm()


def pruned(weights: dict[str, np.ndarray], problem: GemmProblem) -> GemmProblem:
    density = float((weights["weight"] != 0).mean())
    return replace(problem, weights_info=WeightsInfo(density, "a pattern"))


def check_sparse(problem: GemmProblem, weights: dict[str, np.ndarray], device: Device,
          variants: Sequence[Variant] | None = None) -> None:
    """Compares the outputs of variants (default: all) with the reference."""
    problem = pruned(weights, problem)
    algorithm = sparse_algorithm_of(device)
    if variants is None:
        variants = list(algorithm.variants(problem, device))
    check_variants(algorithm, problem, device, variants, weights, supported=False)


@given(rows=st.sampled_from([0, 1, 3, 8]), columns=st.sampled_from([1, 4, 33]),
       depth=st.sampled_from([1, 30, 67, 400]), density=st.sampled_from([0.0, 0.1, 0.7]),
       choice=st.integers(0, 7))
@settings(max_examples=20)
def test_any_size_of_pruned_weights(device: Device, rows: int, columns: int, depth: int,
                                    density: float, choice: int) -> None:
    problem = GemmProblem(rows, columns, depth, BIAS_RELU)
    variants = list(sparse_algorithm_of(device).variants(problem, device))
    check_sparse(problem, sparse(problem, density), device, [variants[choice % len(variants)]])


@pytest.mark.sanitize
@pytest.mark.parametrize("epilogue", [Epilogue(), RESIDUAL], ids=["none", "residual"])
def test_every_form_of_pruned_weights(device: Device, epilogue: Epilogue) -> None:
    problem = GemmProblem(3, 12, 300, epilogue)
    check_sparse(problem, sparse(problem, 0.3), device)


def test_a_pruned_classifier(quick_device: Device) -> None:
    problem = GemmProblem(1, 1000, 4096, BIAS_RELU)
    check_sparse(problem, sparse(problem, 0.1), quick_device)


def test_indices_beyond_16_bits(device: Device) -> None:
    problem = GemmProblem(1, 2, 2**16 + 9)
    weights = sparse(problem, 0.001)
    weights["weight"][1, -1] = 3.0
    check_sparse(problem, weights, device)


def test_rows_of_uneven_length(device: Device) -> None:
    problem = GemmProblem(2, 9, 500, BIAS_RELU)
    weights = sparse(problem, 0.02)
    weights["weight"][4] = 1.5
    weights["weight"][[0, 8]] = 0
    check_sparse(problem, weights, device)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_only_what_meets_weights_spreads(device: Device, value: float) -> None:
    problem = GemmProblem(2, 3, 40)
    weights = sparse(problem, 0.4)
    weights["weight"][:, 7] = [0.0, 2.0, 0.0]
    problem = pruned(weights, problem)
    (x,) = random_inputs(problem)
    x[1, 7] = value
    algorithm = sparse_algorithm_of(device)
    for variant in algorithm.variants(problem, device):
        (y,) = run_variant(algorithm, problem, variant, device, Weights(weights, device), [x])
        assert np.isfinite(y).tolist() == [[True] * 3, [True, False, True]]


def test_reasons_of_pruned_weights(device: Device) -> None:
    problem = GemmProblem(1, 30, 40, weights_info=WeightsInfo(0.1, "a pattern"))
    algorithm, unsupported = ((SparseRows(), SparseGemm()) if device.compiles
                              else (SparseGemm(), SparseRows()))
    assert algorithm.supports(problem, device) is None
    assert unsupported.supports(problem, device)
    dense = replace(problem, weights_info=WeightsInfo(0.8, "a pattern"))
    assert "density 0.80" in (algorithm.supports(dense, device) or "")
    many = algorithm.supports(replace(problem, rows=9), device)
    assert many == ("needs at most 8 rows, not 9" if device.compiles else None)
    first = next(algorithm for algorithm in OP.algorithms
                 if algorithm.supports(problem, device) is None)
    assert first.dense, "a plan that does not measure stays dense"
