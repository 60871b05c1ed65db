"""Straight-through estimators go out of expressions, and sums that are none stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model.graph_builder import Builder, check, functions


@pytest.mark.parametrize("sums", [
    lambda b, q, x: b.apply("add", b.apply("sub", q, x), x, output="y"),
    lambda b, q, x: b.apply("add", x, b.apply("sub", q, x), output="y"),
    lambda b, q, x: b.apply("sub", x, b.apply("sub", x, q), output="y"),
    lambda b, q, x: b.apply("sub", b.apply("add", x, q), x, output="y"),
    lambda b, q, x: b.apply("sub", b.apply("add", q, x), x, output="y"),
    lambda b, q, x: b.apply("add", b.apply("sub", x, x), q, output="y"),
    lambda b, q, x: b.apply("add", q, b.apply("sub", x, x), output="y"),
])
@pytest.mark.parametrize("smooth", [
    lambda b, x: x, lambda b, x: b.apply("clip", x, constants=(-1.0, 1.0)),
    lambda b, x: b.apply("tanh", x)])
def test_the_quantised_value_remains(sums: Callable[[Builder, str, str], str],
                                     smooth: Callable[[Builder, str], str]) -> None:
    build = Builder()
    value = build.conv("x")
    sums(build, build.apply("sign", value), smooth(build, value))
    (layer,) = check(build, ["conv2d"])
    assert functions(layer) == ["add", "sign"]


def test_a_rounded_value_remains() -> None:
    build = Builder()
    levels = build.apply("mul", build.apply("clip", "x", constants=(0.0, 1.0)), build.scalar(15.0))
    rounded = build.apply("mul", build.apply("round", levels), build.scalar(0.0625))
    build.apply("add", build.apply("sub", rounded, "x"), "x", output="y")
    (node,) = check(build, ["elementwise"])
    assert "add" not in functions(node) and "sub" not in functions(node)


@pytest.mark.parametrize("sums", [
    lambda b, q: b.apply("add", b.apply("sub", "x", q), q, output="y"),
    lambda b, q: b.apply("sub", b.apply("sub", q, "x"), "x", output="y"),
    lambda b, q: b.apply("sub", "x", b.apply("sub", q, "x"), output="y"),
    lambda b, q: b.apply("add", b.apply("sub", q, b.scalar(3e7)), b.scalar(3e7), output="y"),
    lambda b, q: b.apply("add", b.apply("sub", q, "x"), b.apply("tanh", "x"), output="y"),
], ids=["of any float", "twice", "other order", "of a number", "of two values"])
def test_other_sums_stay(sums: Callable[[Builder, str], str]) -> None:
    build = Builder()
    sums(build, build.apply("sign", "x"))
    (node,) = check(build, ["elementwise"])
    assert functions(node).count("sub") + functions(node).count("add") == 2


def test_what_only_the_sum_read_does_not_keep_the_sign_from_the_epilogue() -> None:
    build = Builder()
    value = build.conv("x")
    row = build.mean(value)
    build.apply("add", build.apply("sub", build.apply("sign", value), row), row, output="y")
    (layer,) = check(build, ["conv2d"])
    assert functions(layer) == ["add", "sign"]


def test_a_sum_that_gives_the_value_its_shape_stays() -> None:
    build = Builder()
    row = build.mean("x")
    build.apply("add", build.apply("sub", build.apply("sign", row), "x"), "x", output="y")
    nodes = check(build)
    assert functions(nodes[-1])[-2:] == ["sub", "add"]


def test_a_batch_norm_before_it_stays_outside_of_the_weights() -> None:
    build = Builder()
    value = build.norm(build.conv("x"))
    build.apply("add", value, build.apply("sub", build.apply("sign", value), value), output="y")
    (layer,) = check(build, ["conv2d"])
    assert functions(layer) == ["add", "sub", "mul", "add", "sign"]
