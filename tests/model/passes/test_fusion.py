"""Element-wise nodes are fused with each other and with layers where only one reads a value."""

from __future__ import annotations

import pytest

from gossamer.expression import Expression, ExpressionStep
from gossamer.model.graph import ValueInfo
from tests.model.graph_builder import CHANNELS, SIZE, Builder, check, functions


def test_activation_scalars_and_residual_become_the_epilogue(build: Builder) -> None:
    halved = build.apply("mul", build.conv("x", bias=False), build.scalar(0.5, 1))
    shifted = build.apply("add", build.constant(CHANNELS, 1, 1), halved)
    residual = build.pool("x")
    build.apply("clip", build.apply("sub", shifted, residual), output="y", constants=(0, 6))
    _, node = check(build, ["pool", "conv2d"])
    assert functions(node) == ["constant", "mul", "add", "sub", "clip"]
    assert sorted(node.inputs[2:]) == ["c2.channels", residual]


def test_a_residual_made_later_moves_the_convolution_behind_it(build: Builder) -> None:
    conv = build.conv("x")
    late = build.pool(build.apply("relu", "x"))
    build.apply("relu", build.apply("add", conv, late), output="y")
    check(build, ["elementwise", "pool", "conv2d"])


@pytest.mark.parametrize("biases", [1, 2])
def test_a_transposed_convolution_takes_one_bias(build: Builder, biases: int) -> None:
    up = build.add("conv_transpose2d", ["x", build.constant(CHANNELS, CHANNELS, 2, 2),
                                        *[build.constant(CHANNELS)] * (biases - 1)],
                   strides=(2, 2), pads=(0,) * 4, dilations=(1, 1), output_padding=(0, 0),
                   groups=1)
    build.apply("add", up, build.constant(CHANNELS, 1, 1), output="y")
    check(build, ["conv_transpose2d", "elementwise"][:biases])


def test_of_two_convolutions_one_takes_the_addition(build: Builder) -> None:
    build.apply("add", build.conv("x"), build.conv(build.pool("x")), output="y")
    first, _, second = check(build, ["conv2d", "pool", "conv2d"])
    assert functions(first) == ["add"]
    assert functions(second) == ["add", "add"]
    assert first.outputs[0] in second.inputs


def test_each_of_two_convolutions_rounds_its_own_result(build: Builder) -> None:

    def rounded(x: str) -> str:
        halved = build.apply("mul", build.conv(x, bias=False), build.scalar(0.5, 1))
        return build.apply("round", halved)

    values = [build.apply("mul", rounded("x"), build.scalar(0.25, 1)) for _ in range(2)]
    build.apply("add", *values, output="y")
    first, second = check(build, ["conv2d", "conv2d"])
    assert functions(first)[-1] == "round"
    assert functions(second)[-1] == "add"
    assert functions(second).count("round") == 1


def test_a_gate_of_the_result_itself_is_fused(build: Builder) -> None:
    conv = build.conv("x")
    build.apply("mul", conv, build.apply("sigmoid", conv), output="y")
    (node,) = check(build, ["conv2d"])
    assert functions(node) == ["add", "sigmoid", "mul"]


def test_an_operand_of_another_shape_stays_outside(build: Builder) -> None:
    gate = build.apply("sigmoid", build.mean("x"))
    build.apply("mul", build.conv("x"), gate, output="y")
    nodes = check(build, ["reduce", "elementwise", "conv2d", "elementwise"])
    assert functions(nodes[1]) == ["sigmoid"]


def test_a_value_that_two_nodes_read_is_not_taken_over() -> None:
    build = Builder(("y", "z"))
    conv = build.conv("x")
    build.pool(conv, "z")
    build.apply("relu", conv, output="y")
    check(build, ["conv2d", "pool", "elementwise"])


def test_a_value_that_is_an_output_is_not_taken_over() -> None:
    build = Builder(("v0", "v1", "y"))
    conv = build.conv("x")
    build.apply("tanh", build.apply("relu", conv), output="y")
    check(build, ["conv2d", "elementwise", "elementwise"])


def test_chains_of_elementwise_nodes_become_one(build: Builder) -> None:
    value = build.apply("exp", build.apply("neg", "x"))
    value = build.apply("add", value, build.scalar(1))
    build.apply("div", build.scalar(1), value, output="y")
    (node,) = check(build, ["elementwise"])
    assert node.inputs == ["x"]
    assert functions(node) == ["neg", "exp", "constant", "add", "div"]


def test_two_outputs_of_one_expression_keep_both() -> None:
    build = Builder(("y", "z"))
    conv = build.conv("x")
    expression = Expression(1, (ExpressionStep("relu", (0,)), ExpressionStep("sign", (0,))), (1, 2))
    build.add("elementwise", [conv], "y", expression=expression)
    build.graph.nodes[-1].outputs = ["y", "z"]
    check(build, ["conv2d", "elementwise"])


@pytest.mark.parametrize("leading", [(), (SIZE,), (CHANNELS, SIZE), (2, 2, SIZE)], ids=len)
def test_a_product_of_any_rank_takes_bias_activation_and_residual(build: Builder,
                                                                  leading: tuple[int, ...]) -> None:
    x = build.add("reshape", ["x"], shape=(-1, *leading, SIZE))
    product = build.add("matmul", [x, build.constant(SIZE, SIZE)])
    biased = build.apply("add", build.constant(SIZE), product)
    build.apply("add", x, build.apply("relu", biased), output="y")
    *reshapes, node = check(build)
    assert [each.op for each in reshapes] == ["reshape"] * (leading != (CHANNELS, SIZE))
    assert functions(node) == ["add", "relu", "add"] and node.inputs[0] in node.inputs[2:]


@pytest.mark.parametrize("shape", [(SIZE, 1), (CHANNELS, 1, 1), (SIZE, SIZE),
                                   (CHANNELS, SIZE, SIZE)])
def test_what_is_not_one_value_a_column_stays_outside_of_a_product(build: Builder,
                                                                   shape: tuple[int, ...]) -> None:
    product = build.add("matmul", ["x", build.constant(SIZE, SIZE)])
    build.apply("add", product, build.constant(*shape), output="y")
    check(build, ["gemm", "elementwise"])


def test_one_value_a_column_stays_outside_of_a_convolution(build: Builder) -> None:
    build.graph.inputs[0] = ValueInfo("x", (None, CHANNELS, SIZE, CHANNELS))
    build.apply("add", build.conv("x"), build.constant(CHANNELS), output="y")
    check(build, ["conv2d", "elementwise"])
