"""Tests maxima by generated code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.host import HostDevice
from gossamer.device.native import processor as native
from gossamer.facts import PLUS_MINUS_ONE, TERNARY, ValueFacts
from gossamer.ops.pool import host_direct
from gossamer.ops.pool.host_direct import HostDirectPool
from gossamer.ops.pool.problem import PoolProblem
from gossamer.tensor import default_spec
from tests.ops.arm import OnArm
from tests.ops.harness import check_every_bit
from tests.ops.processors import code_for, targets

pytest.importorskip("llvmlite")
HOST = HostDevice()


@st.composite
def problems(draw: st.DrawFn) -> PoolProblem:
    """Rows of several vectors and of less than one, and windows that lie partly in the padding."""
    kernel = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    pads: Any = tuple(draw(st.integers(0, size - 1)) for size in (*kernel, *kernel))
    size = draw(st.integers(4, 9)), draw(st.sampled_from([7, 9, 16, 33, 70]))
    return PoolProblem(default_spec((draw(st.integers(1, 2)), draw(st.integers(1, 3)), *size)),
                       "max", kernel, (draw(st.integers(1, 3)), draw(st.integers(1, 4))), pads,
                       (1, draw(st.integers(1, 2))), draw(st.booleans()))


@given(problem=problems(), spoilt=st.sampled_from([np.nan, np.inf, -np.inf]), target=targets)
@settings(max_examples=60)
def test_any_window(problem: PoolProblem, spoilt: float, target: native.Processor) -> None:
    with code_for(target):
        compare(problem, spoilt)


@pytest.mark.parametrize("window", [((3, 3), (2, 2), (1, 1, 1, 1)), ((2, 3), (1, 3), (0, 2, 1, 1))])
def test_arm_computes_the_same(window: Any, on_arm: OnArm) -> None:
    on_arm(host_direct)
    compare(PoolProblem(default_spec((1, 3, 9, 21)), "max", *window), np.nan)


def compare(problem: PoolProblem, spoilt: float) -> None:
    """Compares the outputs of all variants with NumPy's, with some numbers that are not finite."""
    x = np.random.default_rng(0).standard_normal(problem.input.shape).astype(np.float32)
    x.reshape(-1)[3::17] = spoilt
    algorithm = HostDirectPool()
    assert algorithm.supports(problem, HOST) is None
    for variant in algorithm.variants(problem, HOST):
        check_every_bit(algorithm, problem, variant, HOST, {}, [x])


@given(problem=problems(), known=st.sampled_from([PLUS_MINUS_ONE, TERNARY]), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_words_of_signs(problem: PoolProblem, known: ValueFacts, seed: int) -> None:
    compare_signs(replace(problem, facts=(known,), dilation=(1, 1)), seed)


def test_words_on_arm(on_arm: OnArm) -> None:
    on_arm(host_direct)
    compare_signs(PoolProblem(default_spec((1, 70, 9, 8)), "max", (3, 2), (2, 2), (1, 0, 1, 1),
                              facts=(TERNARY,)), 0)


def compare_signs(problem: PoolProblem, seed: int) -> None:
    (x,) = problem.example_inputs(np.random.default_rng(seed))
    algorithm = HostDirectPool()
    packed = [variant for variant in algorithm.variants(problem, HOST)
              if variant.inputs[0].format.is_packed]
    assert packed
    for variant in packed:
        check_every_bit(algorithm, problem, variant, HOST, {}, [x])


@pytest.mark.parametrize(("problem", "reason"), [
    (PoolProblem(default_spec((1, 1, 6, 6)), "average", (2, 2)), "computes maxima only"),
    (PoolProblem(default_spec((1, 1, 6, 6)), "max", (2, 2), pads=(2, 0, 0, 0)), "contain no row"),
    (PoolProblem(default_spec((1, 1, 6, 6)), "max", (2, 2), dilation=(2, 1)), "not adjacent"),
    (PoolProblem(default_spec((1, 1, 6, 6), "float64"), "max", (2, 2)), "float32 only")])
def test_what_is_not_supported(problem: PoolProblem, reason: str) -> None:
    assert reason in (HostDirectPool().supports(problem, HOST) or "")
