"""Operands that files expand go into epilogues, straight-through estimators out of expressions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gossamer.model.graph import Node
from tests.model.graph_builder import CHANNELS, Builder, check, functions


def expanded(build: Builder, value: str, shape_of: str) -> str:
    """Returns a value that is expanded to the shape of another one."""
    build.graph.nodes.append(Node("shape", f"{value}.s", [shape_of], [f"{value}.s"],
                                  {"start": 0, "end": None}))
    return build.add("expand", [value, f"{value}.s"])


def test_what_is_expanded_for_a_sum_becomes_its_operand(build: Builder) -> None:
    """Then it goes into the epilogue of the convolution before, a number as a step of its own."""
    value = build.conv("x")
    shift = build.apply("add", value, expanded(build, build.constant(CHANNELS, 1, 1), value))
    build.apply("mul", shift, expanded(build, build.scalar(2.0), shift), output="y")
    (layer,) = check(build, ["conv2d"])
    assert functions(layer) == ["add", "add", "constant", "mul"]


def test_a_constant_of_a_shape_becomes_a_number(build: Builder) -> None:
    value = build.conv("x")
    build.graph.nodes.append(Node("shape", "s", [value], ["s"], {"start": 0, "end": None}))
    ones = build.add("constant_of_shape", ["s"], value=np.ones((), np.float32))
    truth = build.apply("less", value, build.scalar(0.0))
    build.apply("where", truth, build.apply("neg", ones), ones, output="y")
    (layer,) = check(build, ["conv2d"])
    assert layer.attributes["epilogue"].inputs == 2


def test_of_two_expanded_operands_of_one_shape_the_second_stays(build: Builder) -> None:
    """In every process the same one, though the order of a set of names changes with its hash."""
    rows = [build.mean(build.apply(function, "x")) for function in ("relu", "tanh")]
    build.apply("add", *[expanded(build, row, "x") for row in rows], output="y")
    nodes = check(build)
    (node,) = [node for node in nodes if node.op == "elementwise" and "y" in node.outputs]
    assert node.inputs[0] == rows[0]
    assert [node.inputs[0] for node in nodes if node.op == "expand"] == [rows[1]]


def test_what_is_expanded_beyond_the_other_operand_stays(build: Builder) -> None:
    row = build.mean("x")
    build.apply("add", row, expanded(build, build.constant(CHANNELS, 1, 1), "x"), output="y")
    nodes = check(build)
    assert "expand" in [node.op for node in nodes]


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
def test_the_quantised_value_remains(build: Builder, sums: Callable[[Builder, str, str], str],
                                     smooth: Callable[[Builder, str], str]) -> None:
    value = build.conv("x")
    sums(build, build.apply("sign", value), smooth(build, value))
    (layer,) = check(build, ["conv2d"])
    assert functions(layer) == ["add", "sign"]


def test_a_rounded_value_remains(build: Builder) -> None:
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
def test_other_sums_stay(build: Builder, sums: Callable[[Builder, str], str]) -> None:
    sums(build, build.apply("sign", "x"))
    (node,) = check(build, ["elementwise"])
    assert functions(node).count("sub") + functions(node).count("add") == 2


def test_what_only_the_sum_read_does_not_keep_the_sign_from_the_epilogue(build: Builder) -> None:
    value = build.conv("x")
    row = build.mean(value)
    build.apply("add", build.apply("sub", build.apply("sign", value), row), row, output="y")
    (layer,) = check(build, ["conv2d"])
    assert functions(layer) == ["add", "sign"]


def test_a_sum_that_gives_the_value_its_shape_stays(build: Builder) -> None:
    row = build.mean("x")
    build.apply("add", build.apply("sub", build.apply("sign", row), "x"), "x", output="y")
    nodes = check(build)
    assert functions(nodes[-1])[-2:] == ["sub", "add"]


def test_a_batch_norm_before_it_stays_outside_of_the_weights(build: Builder) -> None:
    value = build.norm(build.conv("x"))
    build.apply("add", value, build.apply("sub", build.apply("sign", value), value), output="y")
    (layer,) = check(build, ["conv2d"])
    assert functions(layer) == ["add", "sub", "mul", "add", "sign"]
