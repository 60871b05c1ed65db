"""Arithmetic between a transposition and a product is done before the transposition."""

from __future__ import annotations

import pytest

from tests.model.graph_builder import CHANNELS, SIZE, Builder, check

SWAPPED = (0, 1, 3, 2)


def turned(build: Builder, permutation: tuple[int, ...] = SWAPPED) -> str:
    return build.add("transpose", [build.pool("x")], permutation=permutation)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_scaled_keys_are_scaled_before_they_are_transposed(shape: tuple[int, ...]) -> None:
    build = Builder()
    keys = build.apply("mul", turned(build), build.scalar(0.35, *shape))
    build.add("matmul", ["x", keys], "y")
    check(build, ["pool", "elementwise", "transpose", "matmul"])


def test_a_scale_that_is_computed_from_a_shape() -> None:
    build = Builder()
    size = build.add("cast", [build.add("shape", ["x"], start=-1, end=None)], dtype="float32")
    keys = build.apply("mul", turned(build), build.apply("sqrt", size))
    build.add("matmul", ["x", keys], "y")
    nodes = check(build)
    order = [node.op for node in nodes]
    assert order.index("transpose") == order.index("matmul") - 1
    assert order[order.index("transpose") - 1] == "elementwise"


@pytest.mark.parametrize("case", ["other numbers", "other dimensions", "another reader", "output"])
def test_other_arithmetic_stays_where_it_is(case: str) -> None:
    build = Builder(("y", "z") if case in ("another reader", "output") else ("y",))
    x = turned(build, (0, 1, 3, 2) if case != "other dimensions" else (0, 2, 1, 3))
    factor = build.constant(SIZE) if case == "other numbers" else build.scalar(0.35)
    scaled = build.apply("mul", x, factor, output="z" if case == "output" else "")
    build.add("matmul", [scaled, build.pool("x")] if case != "other dimensions" else
              [scaled, build.constant(1, 1, SIZE, CHANNELS)], "y")
    if case == "another reader":
        build.pool(scaled, output="z")
    order = [node.op for node in check(build)]
    assert order.index("transpose") + 1 == order.index("elementwise")
