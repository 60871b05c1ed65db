"""Tests reductions and softmaxes by generated code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.host import HostDevice
from gossamer.ops.reduce import host_direct as reduce
from gossamer.ops.reduce.host_direct import HostDirectReduce
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.softmax import host_direct as softmax
from gossamer.ops.softmax.host_direct import HostDirectSoftmax
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.ops.weights import Weights
from gossamer.tensor import default_spec
from tests.ops.arm import OnArm
from tests.ops.harness import check_variants, run_variant

pytest.importorskip("llvmlite")
HOST = HostDevice()
IMAGES = [(1, 64, 25, 5), (2, 19, 1, 7), (3, 1, 6, 1), (0, 3, 4, 4), (2, 0, 3, 3)]


@given(shape=st.sampled_from(IMAGES), kind=st.sampled_from(["mean", "max", "sum"]),
       axes=st.sampled_from([(2, 3), (3, 2), (1,), (0,), (3,), (), (0, 1, 2, 3)]),
       keepdims=st.booleans())
@settings(max_examples=60)
def test_any_reduction(shape: tuple[int, ...], kind: str, axes: tuple[int, ...], keepdims: bool
                       ) -> None:
    count = np.prod([shape[axis] for axis in axes], dtype=int)
    if kind == "sum" or count:
        reduces(ReduceProblem(default_spec(shape), kind, axes, keepdims))


def test_means_of_images_read_both_layouts() -> None:
    problem = ReduceProblem(default_spec((1, 9, 4, 5)), "mean", (2, 3), False)
    variants = HostDirectReduce().variants(problem, HOST)
    assert [variant.inputs[0].layout for variant in variants] == ["NCHW", "NHWC"]


@pytest.mark.parametrize("place", [0, 4, 20])
def test_nan_and_infinity_reach_the_result(place: int) -> None:
    x = np.linspace(-3, 3, 2 * 21, dtype=np.float32).reshape(2, 21, 1, 1)
    for value in (np.nan, np.inf, -np.inf):
        x[1, place] = value
        problem = ReduceProblem(default_spec(x.shape), "max", (1,))
        check_variants(HostDirectReduce(), problem, HOST, inputs=[x])
        rows = SoftmaxProblem(default_spec((2, 21)), 1)
        with np.errstate(invalid="ignore"):
            check_variants(HostDirectSoftmax(), rows, HOST, inputs=[x.reshape(2, 21)])


@given(rows=st.integers(0, 3), size=st.integers(1, 40), scale=st.sampled_from([0.0, 1.0, 1e2]))
@settings(max_examples=40)
def test_any_rows(rows: int, size: int, scale: float) -> None:
    softmaxes(rows, size, scale)


def test_shares_are_as_precise_as_floats() -> None:
    x = -np.linspace(0, 80, 4001, dtype=np.float32)[:, None] * np.float32([[0, 1]])
    problem = SoftmaxProblem(default_spec(x.shape), 1)
    (variant,) = HostDirectSoftmax().variants(problem, HOST)
    (y,) = run_variant(HostDirectSoftmax(), problem, variant, HOST, Weights({}, HOST), [x])
    powers = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, powers / powers.sum(1, keepdims=True), rtol=4e-7)


def test_arm_computes_the_same(on_arm: OnArm) -> None:
    on_arm(reduce, softmax)
    reduces(ReduceProblem(default_spec((2, 9, 3, 5)), "mean", (2, 3), False))
    reduces(ReduceProblem(default_spec((2, 9, 3, 5)), "max", (2, 3), True))
    softmaxes(3, 10, 1.0)


def reduces(problem: ReduceProblem) -> None:
    algorithm = HostDirectReduce()
    if algorithm.supports(problem, HOST) is None:
        check_variants(algorithm, problem, HOST)


def softmaxes(rows: int, size: int, scale: float) -> None:
    x = scale * np.random.default_rng(0).standard_normal((rows, size), np.float32)
    check_variants(HostDirectSoftmax(), SoftmaxProblem(default_spec(x.shape), 1), HOST,
                   inputs=[x.astype(np.float32)])


@pytest.mark.parametrize(("problem", "reason"), [
    (SoftmaxProblem(default_spec((2, 3)), 0), "contiguous"),
    (SoftmaxProblem(default_spec((2, 3)), 1, log=True), "not the logarithm")])
def test_softmaxes_that_are_not_supported(problem: SoftmaxProblem, reason: str) -> None:
    assert reason in (HostDirectSoftmax().supports(problem, HOST) or "")


@pytest.mark.parametrize(("problem", "reason"), [
    (ReduceProblem(default_spec((2, 3, 4)), "sum", (0, 2)), "adjacent"),
    (ReduceProblem(default_spec((2, 3), "int32"), "sum", (1,)), "float32 only"),
    (ReduceProblem(default_spec((2**15,)), "sum", (0,)), "elements to one")])
def test_reductions_that_are_not_supported(problem: ReduceProblem, reason: str) -> None:
    assert reason in (HostDirectReduce().supports(problem, HOST) or "")
