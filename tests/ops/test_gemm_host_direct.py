"""Tests products by generated code: of pruned matrices, and of few rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.host import HostDevice
from gossamer.device.native import processor as native
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.host_direct import algorithm as convolution
from gossamer.ops.conv2d.host_direct import indirect
from gossamer.ops.gemm import OP, host_direct
from gossamer.ops.gemm.host_direct import HostDirectGemm
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.gemm.rows import HostDirectRows
from gossamer.ops.weights import Weights, WeightsInfo
from tests.ops.arm import OnArm
from tests.ops.conv2d.sparse.sparse_weights import sparse
from tests.ops.harness import random_inputs, run_variant
from tests.ops.processors import code_for, targets

pytest.importorskip("llvmlite")
HOST = HostDevice()
BIAS_CLIP = Epilogue(apply("add").then(apply("clip", -2.0, 2.0)), ("channel",))
BIAS_SUM = Epilogue(apply("add").then(apply("add")), ("channel", "tensor"))


@given(rows=st.integers(0, 70), columns=st.integers(1, 40), depth=st.integers(1, 90),
       density=st.sampled_from([0.0, 0.1, 0.4]), epilogue=st.sampled_from([Epilogue(), BIAS_CLIP]),
       target=targets)
@settings(max_examples=60)
def test_any_product(rows: int, columns: int, depth: int, density: float, epilogue: Epilogue,
                     target: native.Processor) -> None:
    with code_for(target):
        compare(GemmProblem(rows, columns, depth, epilogue), density)


@given(rows=st.integers(1, 8), columns=st.integers(1, 300), depth=st.integers(1, 50),
       epilogue=st.sampled_from([Epilogue(), BIAS_CLIP, BIAS_SUM]), target=targets)
@settings(max_examples=60)
def test_products_of_few_rows(rows: int, columns: int, depth: int, epilogue: Epilogue,
                              target: native.Processor) -> None:
    with code_for(target):
        compare(GemmProblem(rows, columns, depth, epilogue), 1.0)


def compare(problem: GemmProblem, density: float) -> None:
    """Compares the outputs of all variants with the reference."""
    weights = sparse(problem, density)
    nonzero = weights["weight"] != 0
    problem = replace(problem, weights_info=WeightsInfo(float(nonzero.mean()), "a pattern"))
    inputs = random_inputs(problem)
    (expected,) = OP.reference(problem, inputs, weights)
    # the bound of the error of a sum grows with the sizes of its terms
    terms = np.abs(inputs[0]) @ np.abs(weights["weight"].T) + np.abs(
        weights.get("operand0", np.zeros(problem.columns))) + sum(map(np.abs, inputs[1:]))
    for algorithm in (HostDirectGemm(), HostDirectRows()):
        if algorithm.supports(problem, HOST) is not None:
            continue
        for variant in algorithm.variants(problem, HOST):
            (y,) = run_variant(algorithm, problem, variant, HOST, Weights(weights, HOST), inputs)
            assert (np.abs(y - expected) <= 1e-5 * terms).all(), variant


@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 8, 9), (7, 5, 30), (21, 12, 16)])
def test_arm_computes_the_same(rows: int, columns: int, depth: int, on_arm: OnArm) -> None:
    on_arm(host_direct, convolution, indirect)
    compare(GemmProblem(rows, columns, depth, BIAS_CLIP), 0.4)


def test_what_is_not_supported() -> None:
    pruned = WeightsInfo(0.1, "a pattern")
    residual = GemmProblem(4, 8, 8, Epilogue(apply("add"), ("tensor",)), pruned)
    dense = GemmProblem(4, 8, 8, weights_info=WeightsInfo(0.8, "a pattern"))
    assert HostDirectGemm().supports(residual, HOST) == "has a second input in its epilogue"
    assert "1 to 8 rows" in (HostDirectRows().supports(replace(dense, rows=9), HOST) or "")
    assert "density 0.80" in (HostDirectGemm().supports(dense, HOST) or "")
