"""Strided views of values that other layers moved."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.expression import Composer, Expression
from gossamer.ops.copy.problem import slice_, transpose
from gossamer.ops.fused.views import SCALAR, linear
from gossamer.ops.strided import common_sizes
from gossamer.ops.view import View
from gossamer.tensor import default_spec


@st.composite
def moves(draw: st.DrawFn) -> tuple[np.ndarray, View]:
    """Return an array that was moved several times, and its view of range(size)."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    array = np.arange(math.prod(shape)).reshape(shape)
    view = View.of(default_spec(shape))
    for _ in range(draw(st.integers(1, 5))):
        moved, result = _moved(draw, view, array)
        if moved is None:
            break
        view, array = moved, result
    return array, view


def _moved(draw: st.DrawFn, view: View, array: np.ndarray) -> tuple[View | None, np.ndarray]:
    spec = default_spec(array.shape)
    kind = draw(st.sampled_from(["transpose", "merge", "divide", "slice"]))
    if kind == "transpose":
        order = draw(st.permutations(range(array.ndim)))
        return view.copied(transpose(spec, order)), array.transpose(order)
    axis = draw(st.integers(0, array.ndim - 1))
    size = array.shape[axis]
    if kind == "slice":
        start, step = draw(st.integers(0, size - 1)), draw(st.integers(1, 2))
        return (view.copied(slice_(spec, [start], [size], [axis], [step])),
                array[(slice(None),) * axis + (slice(start, None, step),)])
    sizes = list(array.shape)
    if kind == "merge":
        sizes[axis:axis + 2] = [math.prod(sizes[axis:axis + 2])]
    else:
        inner = draw(st.sampled_from([n for n in (1, 2, 3) if size % n == 0]))
        sizes[axis:axis + 1] = [size // inner, inner]
    return view.reshaped(sizes), array.reshape(sizes)


@given(moves())
def test_a_view_reads_what_moves_and_reshapes_give(case: tuple[np.ndarray, View]) -> None:
    array, view = case
    assert view.shape == array.shape
    loops = [loop for dim in view.dims for loop in dim]
    positions = np.full((), view.offset)
    for size, stride in loops:
        positions = positions[..., None] + stride * np.arange(size)
    np.testing.assert_array_equal(positions.reshape(array.shape), array)


def test_merged_dimensions_that_are_apart_are_divided_again() -> None:
    view = View.of(default_spec((2, 3, 4))).copied(transpose(default_spec((2, 3, 4)), (1, 0, 2)))
    assert view is not None
    merged = view.reshaped((6, 4))
    assert merged is not None and not merged.is_strided
    divided = merged.reshaped((3, 2, 4))
    assert divided == view
    assert merged.reshaped((2, 3, 4)) is None


def test_sizes_that_two_views_share() -> None:
    def sizes(*views: View) -> tuple[int, ...] | None:
        return common_sizes([[size for loops in view.dims for size, _ in loops] for view in views])

    windows = View.of(default_spec((128, 3)))
    assert sizes(windows, windows) == (128, 3)
    apart = View((((2, 0),), ((64, 9),), ((3, 0),)))
    assert sizes(windows, apart) == (2, 64, 3)
    assert sizes(View((((4, 1),), ((3, 8),))), View((((6, 1),), ((2, 8),)))) is None


def _expression(make: object) -> Expression:
    composer = Composer()
    return composer.build(make(composer.operand("x"), composer.operand("y")))[1]  # type: ignore


def test_linear_combinations() -> None:
    assert linear(_expression(lambda x, y: (x - y) * 2.0 / 4.0 + 1.0)) == {
        0: 0.5, 1: -0.5, SCALAR: 1.0}
    assert linear(_expression(lambda x, y: -(3.0 - x) + y)) == {0: 1.0, 1: 1.0, SCALAR: -3.0}


@pytest.mark.parametrize("make", [lambda x, y: x * y, lambda x, y: x + 1.0 / y,
                                  lambda x, y: x.apply("exp") + y])
def test_other_arithmetic_is_no_linear_combination(make: object) -> None:
    assert linear(_expression(make)) is None
