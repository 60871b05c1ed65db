from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.ops.strided import dense_strides, divisor, merge


def _quotient(x: int, number: int) -> int:
    """Computes what the kernels' macro QUOTIENT computes."""
    _, multiplier, shift = divisor(number)
    return (((x << 1) * (multiplier % 2**32)) >> 32) >> shift


@given(x=st.integers(0, 2**31 - 1), number=st.integers(1, 2**31 - 1))
@settings(max_examples=300)
def test_division_by_multiplication(x: int, number: int) -> None:
    assert _quotient(x, number) == x // number
    near = min(x // number * number, 2**31 - 1)
    for place in (near - 1, near, near + number - 1):
        if 0 <= place < 2**31:
            assert _quotient(place, number) == place // number


def test_division_at_the_edges() -> None:
    for number in (1, 2, 3, 7, 2**16 - 1, 2**16, 2**30, 2**30 + 1, 2**31 - 1):
        assert -(2**31) <= divisor(number)[1] < 2**31
        for x in (0, 1, number - 1, number, 2**31 - 1, 2**31 - 2):
            assert _quotient(x, number) == x // number


@given(sizes=st.lists(st.integers(1, 4), max_size=5), data=st.data())
@settings(max_examples=50)
def test_merged_loops_walk_the_same_places(sizes: list[int], data: st.DataObject) -> None:
    repeated = [data.draw(st.booleans()) for _ in sizes]
    dense = dense_strides(sizes)
    walk = tuple(0 if r else stride for r, stride in zip(repeated, dense, strict=True))
    merged, walks, _ = merge(sizes, [dense, walk])
    assert len(merged) <= len(sizes)
    for before, after in ((dense, walks[0]), (walk, walks[1])):
        np.testing.assert_array_equal(_places(sizes, before), _places(merged, after))


def _places(sizes, strides) -> np.ndarray:
    return sum((i * stride for i, stride in zip(np.indices(tuple(sizes)), strides, strict=True)),
               np.zeros(tuple(sizes), int)).ravel()
