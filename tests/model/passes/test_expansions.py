"""Operands that files expand for element-wise nodes go into epilogues."""

from __future__ import annotations

import numpy as np

from gossamer.model.graph import Node
from tests.model.graph_builder import CHANNELS, Builder, check, functions


def expanded(build: Builder, value: str, shape_of: str) -> str:
    """Returns a value that is expanded to the shape of another one."""
    build.graph.nodes.append(Node("shape", f"{value}.s", [shape_of], [f"{value}.s"],
                                  {"start": 0, "end": None}))
    return build.add("expand", [value, f"{value}.s"])


def test_what_is_expanded_for_a_sum_becomes_its_operand() -> None:
    """Then it goes into the epilogue of the convolution before, a number as a step of its own."""
    build = Builder()
    value = build.conv("x")
    shift = build.apply("add", value, expanded(build, build.constant(CHANNELS, 1, 1), value))
    build.apply("mul", shift, expanded(build, build.scalar(2.0), shift), output="y")
    (layer,) = check(build, ["conv2d"])
    assert functions(layer) == ["add", "add", "constant", "mul"]


def test_a_constant_of_a_shape_becomes_a_number() -> None:
    build = Builder()
    value = build.conv("x")
    build.graph.nodes.append(Node("shape", "s", [value], ["s"], {"start": 0, "end": None}))
    ones = build.add("constant_of_shape", ["s"], value=np.ones((), np.float32))
    truth = build.apply("less", value, build.scalar(0.0))
    build.apply("where", truth, build.apply("neg", ones), ones, output="y")
    (layer,) = check(build, ["conv2d"])
    assert layer.attributes["epilogue"].inputs == 2


def test_of_two_expanded_operands_of_one_shape_the_second_stays() -> None:
    """In every process the same one, though the order of a set of names changes with its hash."""
    build = Builder()
    rows = [build.mean(build.apply(function, "x")) for function in ("relu", "tanh")]
    build.apply("add", *[expanded(build, row, "x") for row in rows], output="y")
    nodes = check(build)
    (node,) = [node for node in nodes if node.op == "elementwise" and "y" in node.outputs]
    assert node.inputs[0] == rows[0]
    assert [node.inputs[0] for node in nodes if node.op == "expand"] == [rows[1]]


def test_what_is_expanded_beyond_the_other_operand_stays() -> None:
    build = Builder()
    row = build.mean("x")
    build.apply("add", row, expanded(build, build.constant(CHANNELS, 1, 1), "x"), output="y")
    nodes = check(build)
    assert "expand" in [node.op for node in nodes]
