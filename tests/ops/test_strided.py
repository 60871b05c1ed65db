from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.ops.algorithm import Problem
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.copy.problem import slice_
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.strided import dense_strides, divisor, merge
from gossamer.tensor import TensorSpec, default_spec
from tests.ops.harness import op_of
from tests.ops.recording import RecordingDevice


def _quotient(x: int, number: int) -> int:
    """Computes what the kernels' macro QUOTIENT computes."""
    _, multiplier, shift = divisor(number)
    return (((x << 1) * (multiplier % 2**32)) >> 32) >> shift


@given(x=st.integers(0, 2**31 - 1), number=st.integers(1, 2**31 - 1))
@settings(max_examples=300)
def test_division_by_multiplication(x: int, number: int) -> None:
    assert _quotient(x, number) == x // number
    near = min(x // number * number, 2**31 - 1)
    for value in (near - 1, near, near + number - 1):
        if 0 <= value < 2**31:
            assert _quotient(value, number) == value // number


@pytest.mark.parametrize("number", [1, 2, 3, 7, 2**16 - 1, 2**16, 2**30, 2**30 + 1, 2**31 - 1])
def test_division_at_the_edges(number: int) -> None:
    assert -(2**31) <= divisor(number)[1] < 2**31
    for x in (0, 1, number - 1, number, 2**31 - 1, 2**31 - 2):
        assert _quotient(x, number) == x // number


@given(sizes=st.lists(st.integers(1, 4), max_size=5))
@settings(max_examples=50)
def test_dense_strides_walk_every_element_in_order(sizes: list[int]) -> None:
    np.testing.assert_array_equal(_offsets(sizes, dense_strides(sizes)),
                                  np.arange(math.prod(sizes)))


@given(sizes=st.lists(st.integers(1, 4), max_size=5), data=st.data())
@settings(max_examples=50)
def test_merged_loops_walk_the_same_offsets(sizes: list[int], data: st.DataObject) -> None:
    repeated = [data.draw(st.booleans()) for _ in sizes]
    dense = dense_strides(sizes)
    walk = tuple(0 if r else stride for r, stride in zip(repeated, dense, strict=True))
    merged, walks, _ = merge(sizes, [dense, walk])
    assert len(merged) <= len(sizes)
    for before, after in ((dense, walks[0]), (walk, walks[1])):
        np.testing.assert_array_equal(_offsets(sizes, before), _offsets(merged, after))


def _offsets(sizes, strides) -> np.ndarray:
    return sum((i * stride for i, stride in zip(np.indices(tuple(sizes)), strides, strict=True)),
               np.zeros(tuple(sizes), int)).ravel()


@pytest.mark.parametrize(("name", "make"), [
    ("slices", lambda x: ConcatProblem((x, x), 1)),
    ("strided", lambda x: slice_(x, [1], [4], [2], [1])),
    ("direct", lambda x: GatherProblem(x, default_spec((3,), "int64"), 1, (1,))),
    ("direct", lambda x: PadProblem(x, (0, 0, 1, 1) * 2)),
    ("tree", lambda x: ReduceProblem(x, "max", (2, 3)))])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_floats_alone_are_offered_in_float16(name: str, make: Callable[[TensorSpec], Problem],
                                             dtype: str) -> None:
    problem = make(default_spec((2, 8, 5, 4), dtype))
    (algorithm,) = [each for each in op_of(problem).algorithms if each.name == name]
    variants = list(algorithm.variants(problem, RecordingDevice()))
    precisions = {"fp32", "fp16"} if dtype == "float32" else {"fp32"}
    for layout in {variant.outputs[0].layout for variant in variants}:
        found = [variant for variant in variants if variant.outputs[0].layout == layout]
        assert [variant.precision for variant in found].count("fp32") == 1
        assert {variant.precision for variant in found} == precisions
    stored = {"fp32": dtype, "fp16": "float16"}
    assert all(variant.outputs[0].dtype == stored[variant.precision] for variant in variants)
