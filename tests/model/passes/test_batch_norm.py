"""Batch norms go into the layer before them where they may, and stay exact where they may not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gossamer.errors import ModelError
from gossamer.expression import apply
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from tests.model.graph_builder import CHANNELS, SIZE, Builder, check, functions


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_batch_norm_goes_into_the_convolution(build: Builder, bias: bool, groups: int) -> None:
    build.apply("relu", build.norm(build.conv("x", bias=bias, groups=groups)), output="y")
    (node,) = check(build, ["conv2d"])
    assert functions(node) == ["add", "relu"]


@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_goes_into_the_transposed_convolution(build: Builder, groups: int) -> None:
    inputs = ["x", build.constant(CHANNELS, 3, 2, 2), build.constant(3 * groups)]
    up = build.add("conv_transpose2d", inputs, strides=(2, 2), pads=(0,) * 4, dilations=(1, 1),
                   output_padding=(0, 0), groups=groups)
    build.norm(up, "y", channels=3 * groups)
    check(build, ["conv_transpose2d"])


@pytest.mark.parametrize("trans_b", [False, True])
def test_batch_norm_goes_into_the_product(build: Builder, trans_b: bool) -> None:
    flat = build.add("flatten", ["x"], axis=1)
    inner = CHANNELS * SIZE * SIZE
    weight = build.constant(6, inner) if trans_b else build.constant(inner, 6)
    product = build.add("gemm", [flat, weight, build.constant(6)], trans_a=False, trans_b=trans_b,
                        epilogue=apply("add"))
    build.apply("relu", build.norm(product, channels=6), output="y")
    check(build, ["flatten", "gemm"])


def test_batch_norm_stays_outside_of_weights_that_the_data_decide(build: Builder) -> None:
    sums = build.add("reduce", ["x"], kind="sum", axes=(0,), keepdims=False)
    rows, weight = (build.add("reshape", [name], shape=(rows, SIZE * SIZE))
                    for name, rows in (("x", -1), (sums, CHANNELS)))
    product = build.build.gemm(rows, weight, trans_b=True, output="product")
    build.norm(product, "y")
    check(build, ["reduce", "reshape", "reshape", "gemm", "elementwise"])


def test_batch_norm_of_an_axis_that_is_not_that_of_the_columns_stays_outside(
        build: Builder) -> None:
    product = build.add("matmul", ["x", build.constant(SIZE, CHANNELS)])
    build.norm(product, "y")
    check(build, ["gemm", "elementwise"])


@pytest.mark.parametrize("behind", [
    lambda b, x: b.apply("sign", x, output="y"),
    lambda b, x: b.binarise(x, "y"),
    lambda b, x: b.apply("sign", b.apply("relu", b.apply("add", x, "x")), output="y"),
    lambda b, x: b.apply("sign", b.pool(x), output="y"),
    lambda b, x: b.apply("sign", b.add("reshape", [x], shape=(0, -1)), output="y"),
    lambda b, x: b.apply("floor", b.add("concat", [x, "x"], axis=1), output="y"),
    lambda b, x: b.apply("sign", b.norm(x), output="y"),
    lambda b, x: b.apply("sign", b.pool(x, kind="average"), output="y"),
    lambda b, x: b.apply("sign", b.mean(x), output="y"),
    lambda b, x: b.binarise(b.apply("sub", b.add("softmax", [x], axis=1, log=False),
                                    b.scalar(0.25)), "y"),
], ids=["sign", "where", "residual", "pool", "reshape", "concat", "norm", "average", "mean",
        "softmax"])
def test_batch_norm_that_feeds_a_sign_is_not_folded(build: Builder,
                                                    behind: Callable[[Builder, str], str]) -> None:
    conv = build.conv("x")
    weight = build.graph.nodes[0].inputs[1]
    behind(build, build.norm(conv))
    nodes = check(build)
    assert weight in nodes[0].inputs
    assert functions(nodes[0])[1:4] == ["sub", "mul", "add"]


def test_batch_norm_is_folded_where_a_convolution_stands_before_the_sign(build: Builder) -> None:
    build.apply("sign", build.conv(build.norm(build.conv("x"))), output="y")
    first, _ = check(build, ["conv2d", "conv2d"])
    assert functions(first) == ["add"]


def test_batch_norm_before_a_padded_convolution_stays_outside(build: Builder) -> None:
    build.conv(build.norm("x"), "y")
    check(build, ["elementwise", "conv2d"])


def test_batch_norm_of_a_value_that_others_read_stays_outside(build: Builder) -> None:
    conv = build.conv("x")
    build.add("concat", [build.norm(conv), build.pool(conv)], "y", axis=1)
    check(build, ["conv2d", "elementwise", "pool", "concat"])


def test_batch_norm_of_the_mean_gives_the_shift(build: Builder) -> None:
    """(x - mean) * scale + shift is exact at x = mean, as a folded scale and shift is not."""
    build.norm("x", "y")
    mean, shift = (build.graph.constants[name] for name in (build.graph.nodes[0].inputs[3],
                                                            build.graph.nodes[0].inputs[2]))
    static = resolve(optimise(build.graph), 1)
    x = np.broadcast_to(mean[:, None, None], (1, CHANNELS, SIZE, SIZE))
    (node,) = static.nodes
    operands = [x, *[static.constants[name] for name in node.inputs[1:]]]
    (y,) = node.attributes["expression"].evaluate(*operands)
    np.testing.assert_array_equal(y, np.broadcast_to(shift[:, None, None], y.shape))


def test_a_batch_norm_of_other_channels_is_refused_when_resolving(build: Builder) -> None:
    build.norm(build.conv("x"), "y", channels=1)
    better = optimise(build.graph)
    with pytest.raises(ModelError, match="expected 1 channels"):
        resolve(better, 1)


@pytest.mark.parametrize(("gamma", "folded"), [(1.0, True), (-2.0, True), (0.0, False),
                                               (1e-45, False)])
def test_batch_norm_that_ends_the_signs_of_weights_is_not_folded(build: Builder, gamma: float,
                                                                 folded: bool) -> None:
    build.norm(build.conv("x"), "y")
    layer, norm = build.graph.nodes
    weight = build.graph.constants[layer.inputs[1]]
    build.graph.constants[layer.inputs[1]] = np.sign(weight) / 4
    scales = build.graph.constants[norm.inputs[1]].copy()
    scales[1] = gamma
    build.graph.constants[norm.inputs[1]] = scales
    (node,) = check(build, ["conv2d"])
    assert functions(node) == (["add"] if folded else ["add", "sub", "mul", "add"])
