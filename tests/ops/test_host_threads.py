"""The number of BLAS threads as a setting of the host's products."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from gossamer.device import blas
from gossamer.device.registry import find
from gossamer.ops import host_threads
from gossamer.ops.algorithm import Problem, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.host_threads import number_of, of_threads, thread_configs, threads_of
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec
from tests.ops.harness import random_inputs, random_weights, run_variant

HOST = find("host")
ONE, EVERY = (("threads", 1),), (("threads", "all"),)

LARGE: list[tuple[str, Problem]] = [
    ("host_im2col", Conv2dProblem(2, 64, 8, 8, 65, (1, 1))),
    ("host_im2col", Conv2dProblem(2, 64, 8, 8, 32, (3, 3))),
    ("host_gemm", GemmProblem(3, 128, 129)),
    ("numpy", MatmulProblem(TensorSpec((2, 3, 4)), TensorSpec((2, 4, 5)))),
    ("numpy", ConvTranspose2dProblem(TensorSpec((1, 64, 8, 8)), 65, (2, 2))),
]


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """BLAS with eight threads on eight processors, as far as configs are concerned."""
    monkeypatch.setattr(blas, "threads", lambda: 8)
    monkeypatch.setattr(host_threads, "processors", lambda: 8)
    host_threads._has_too_many.cache_clear()
    yield
    host_threads._has_too_many.cache_clear()


@pytest.mark.usefixtures("eight")
def test_small_products_have_one_thread() -> None:
    assert thread_configs() == thread_configs(2**18 + 1) == [ONE, EVERY]
    assert thread_configs(2**18) == thread_configs(0) == [ONE]


def test_configs_are_the_same_where_blas_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "threads", lambda: 1)
    assert thread_configs() == [ONE, EVERY] and thread_configs(2**18) == [ONE]


@pytest.mark.parametrize(("threads", "multiply_adds", "expected"), [
    ("all", 2**22, [1, "all"]), ("all", 2**22 + 1, ["all"]), ("all", math.inf, ["all"]),
    (1, 2**22, [1]), (3, 2**22, [3])])
def test_small_problems_may_have_one_thread(threads: int | str, multiply_adds: float,
                                            expected: list[int | str]) -> None:
    variants = [Variant(config, (), ()) for config in (ONE, EVERY)]
    assert [variant["threads"] for variant in of_threads(
        variants, threads, HOST, multiply_adds)] == expected


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(("name", "problem"), LARGE)
def test_the_setting_is_followed(name: str, problem: Problem,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = next(algorithm for algorithm in OPS[problem.op].algorithms
                     if algorithm.name == name and algorithm.supports(problem, HOST) is None)
    variants = list(algorithm.variants(problem, HOST))
    assert list(dict.fromkeys(variant.config for variant in variants)) == [ONE, EVERY]
    weights = Weights(random_weights(problem), HOST)
    inputs = random_inputs(problem)
    limits: list[int] = []
    limited = blas.limited

    def recorded(most: int) -> Any:
        limits.append(most)
        return limited(most)

    monkeypatch.setattr(blas, "limited", recorded)
    results = []
    for config in (ONE, EVERY):
        limits.clear()
        variant = next(variant for variant in variants if variant.config == config)
        results += run_variant(algorithm, problem, variant, HOST, weights, inputs)
        assert set(limits) == ({1} if config == ONE else set())
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("processors", "wanted", "expected"), [
    (8, None, 0), (3, None, 3), (8, "2", 2), (8, "2,1", 2), (8, "9", 0), (3, "9", 3), (8, "0", 0),
    (8, "many", 0)])
def test_onnxruntime_has_the_processors_of_the_process_and_no_more_than_the_user_wants(
        monkeypatch: pytest.MonkeyPatch, processors: int, wanted: str | None,
        expected: int) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(host_threads, "processors", lambda: processors)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if wanted is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert number_of("all") == expected and number_of(1) == 1


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(("processors", "limits"), [(8, []), (3, [3])])
def test_blas_has_no_more_threads_than_the_container_has_processors(
        monkeypatch: pytest.MonkeyPatch, processors: int, limits: list[int]) -> None:
    limited: list[int] = []

    def recorded(most: int) -> Any:
        limited.append(most)
        return nullcontext()

    monkeypatch.setattr(blas, "limited", recorded)
    monkeypatch.setattr(host_threads, "processors", lambda: processors)
    with threads_of(Variant(EVERY, (), ())):
        assert limited == limits
