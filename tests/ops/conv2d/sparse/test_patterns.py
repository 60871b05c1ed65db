"""Tests every sparse algorithm with weights whose zeros are spread unevenly, whose density is
anywhere between 1e-4 and 1, and with numbers at the limits of float32."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.conv2d.sparse.direct_sparse import DirectSparse
from gossamer.ops.conv2d.sparse.direct_sparse_table import DirectSparseTable
from gossamer.ops.conv2d.sparse.generated.configs import configs
from gossamer.ops.weights import Weights
from tests.ops.conv2d.sparse import test_code, test_direct_sparse
from tests.ops.conv2d.sparse.sparse_weights import AWKWARD, EXTREME, awkward, sparse, with_density
from tests.ops.conv2d.sparse.test_direct_sparse import of
from tests.ops.harness import random_inputs, run_variant
from tests.tolerances import normalised_error, tolerance

KINDS = st.sampled_from(list(AWKWARD))
SEEDS = st.integers(0, 99)


def check(algorithm: Algorithm, problem: Conv2dProblem, kind: str, device: Device, seed: int,
          precisions: tuple[str, ...] = ("fp32", "fp16")) -> None:
    """Checks one variant of an algorithm, which the seed chooses."""
    arrays = awkward(problem, kind, seed)
    variants = [variant for variant in algorithm.variants(of(arrays, problem), device)
                if variant.precision in precisions]
    test_direct_sparse.check(problem, arrays, device, [variants[seed % len(variants)]],
                             algorithm=algorithm)


@given(problem=test_direct_sparse.problems(), kind=KINDS, seed=SEEDS)
@settings(max_examples=14)
def test_csr(compiled_device: Device, problem: Conv2dProblem, kind: str, seed: int) -> None:
    check(DirectSparse(), problem, kind, compiled_device, seed)


@given(problem=test_direct_sparse.problems(), kind=KINDS, seed=SEEDS)
@settings(max_examples=14)
def test_tables(compiled_device: Device, problem: Conv2dProblem, kind: str, seed: int) -> None:
    check(DirectSparseTable(), problem, kind, compiled_device, seed)


ALGORITHMS = (DirectSparse(), DirectSparseTable())
"""The algorithms that compute any sparse convolution."""


def few(variants: Iterable[Variant]) -> list[Variant]:
    """Returns a variant of each layout and precision, of different configs."""
    by_form: dict[tuple[str, str], list[Variant]] = {}
    for variant in variants:
        by_form.setdefault((variant.inputs[0].layout, variant.precision), []).append(variant)
    return [found[index % len(found)] for index, found in enumerate(by_form.values())]


@pytest.mark.parametrize("kind", EXTREME)
def test_numbers_that_float16_does_not_hold(compiled_device: Device, kind: str) -> None:
    problem = Conv2dProblem(2, 6, 7, 5, 9, (3, 3), (1, 2), (1, 0, 2, 1), groups=3)
    for algorithm in ALGORITHMS:
        check(algorithm, problem, kind, compiled_device, 3, ("fp32",))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinite_weights_stay_in_their_channel(compiled_device: Device,
                                                        value: float) -> None:
    problem = Conv2dProblem(2, 3, 4, 4, 4, (3, 3), pads=(1, 1, 1, 1))
    arrays = sparse(problem, 0.4)
    arrays["weight"][1, 2, 1, 1] = value
    arrays["weight"][3, 0, 0, 0] = value  # meets the padding: infinity times zero
    with np.errstate(invalid="ignore"):
        (expected,) = reference(problem, random_inputs(problem), arrays)
        assert not np.isfinite(expected[:, 1]).all() and not np.isfinite(expected[:, 3]).all()
        assert np.isfinite(expected[:, [0, 2]]).all()
        for algorithm in ALGORITHMS:
            test_direct_sparse.check(
                problem, arrays, compiled_device,
                few(algorithm.variants(problem, compiled_device)), algorithm=algorithm)


def test_one_set_of_weights_serves_every_input_size(compiled_device: Device) -> None:
    problem = Conv2dProblem(1, 3, 6, 7, 4, (3, 3), pads=(1, 1, 1, 1))
    arrays = sparse(problem, 0.4)
    weights = Weights(arrays, compiled_device, "the test")
    for sized in (problem, replace(problem, height=9, width=5, batch=3)):
        inputs = random_inputs(sized)
        (expected,) = reference(sized, inputs, arrays)
        for algorithm in ALGORITHMS:
            for variant in few(algorithm.variants(sized, compiled_device)):
                (actual,) = run_variant(algorithm, sized, variant, compiled_device, weights,
                                        inputs)
                assert normalised_error(actual, expected) <= tolerance("conv2d", variant.precision)


@pytest.mark.slow
@given(problem=test_code.problems((1, 2, 6)), kind=st.sampled_from([*AWKWARD, *EXTREME]),
       seed=SEEDS)
@settings(max_examples=10)
def test_generated_code(problem: Conv2dProblem, kind: str, seed: int) -> None:
    arrays = awkward(problem, kind, seed)
    density = float((arrays["weight"] != 0).mean())
    halves = problem.batch % 2 == 0 and kind in AWKWARD and seed % 2 == 0
    candidates = configs(with_density(problem, density), test_code.H200.limits, halves)
    assume(candidates)
    test_code.check_config(problem, candidates[seed % len(candidates)], arrays, halves)
