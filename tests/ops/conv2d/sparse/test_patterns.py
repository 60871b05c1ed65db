"""Tests every sparse algorithm with weights whose zeros are spread unevenly, whose density is
anywhere between 1e-4 and 1, and with numbers at the limits of float32."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.conv2d.sparse.direct_sparse_pixels import DirectSparsePixels
from gossamer.ops.conv2d.sparse.direct_sparse_table import DirectSparseTable
from gossamer.ops.conv2d.sparse.generated.configs import configs
from tests.ops.conv2d.sparse import (
    test_code,
    test_direct_sparse,
    test_direct_sparse_pixels,
)
from tests.ops.conv2d.sparse.sparse_weights import AWKWARD, EXTREME, awkward, with_density
from tests.ops.conv2d.sparse.test_direct_sparse import algorithm_of, of
from tests.ops.harness import random_inputs
from tests.ops.recording import RecordingDevice
from tests.tolerances import normalised_error

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
@settings(max_examples=8)
def test_csr(device: Device, problem: Conv2dProblem, kind: str, seed: int) -> None:
    check(algorithm_of(device), problem, kind, device, seed)


@given(problem=test_direct_sparse.problems(), kind=KINDS, seed=SEEDS)
@settings(max_examples=8)
def test_tables(compiled_device: Device, problem: Conv2dProblem, kind: str, seed: int) -> None:
    check(DirectSparseTable(), problem, kind, compiled_device, seed)


@pytest.mark.parametrize("kind", EXTREME)
def test_numbers_that_float16_does_not_hold(device: Device, kind: str) -> None:
    problem = Conv2dProblem(2, 6, 7, 5, 9, (3, 3), (1, 2), (1, 0, 2, 1), groups=3)
    algorithms = [algorithm_of(device)]
    if device.compiles:
        algorithms.append(DirectSparseTable())
    for algorithm in algorithms:
        check(algorithm, problem, kind, device, 3, ("fp32",))


@pytest.mark.slow
@given(problem=test_code.problems((1, 2, 6)), kind=st.sampled_from([*AWKWARD, *EXTREME]),
       seed=SEEDS)
@settings(max_examples=10)
def test_generated_code(problem: Conv2dProblem, kind: str, seed: int) -> None:
    arrays = awkward(problem, kind, seed)
    density = float((arrays["weight"] != 0).mean())
    halves = problem.batch % 2 == 0 and kind in AWKWARD and seed % 2 == 0
    candidates = configs(with_density(problem, density), test_code.H200, halves)
    assume(candidates)
    test_code.check_config(problem, candidates[seed % len(candidates)], arrays, halves)


@given(problem=test_direct_sparse_pixels.problems(), kind=KINDS, seed=SEEDS)
@settings(max_examples=20)
def test_tables_of_few_images(problem: Conv2dProblem, kind: str, seed: int) -> None:
    arrays = awkward(problem, kind, seed)
    candidates = list(DirectSparsePixels().variants(of(arrays, problem), RecordingDevice()))
    variant = candidates[seed % len(candidates)]
    x = random_inputs(problem)[0].astype(variant.inputs[0].dtype)
    (expected,) = reference(problem, [x], arrays)
    actual = test_direct_sparse_pixels.by_tables(problem, arrays, variant, x)
    assert normalised_error(actual, expected) <= 1e-3
