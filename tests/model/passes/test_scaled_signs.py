"""Weights of one magnitude a channel but for rounding become signs, and the scales of quantised
inputs go into such weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gossamer.facts import PLUS_MINUS_ONE, TERNARY, ValueFacts, are_scaled_signs
from gossamer.model.facts import derive
from gossamer.model.graph import Graph, Node
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.fusion import output_rows
from gossamer.model.passes.optimise import optimise
from tests.model.graph_builder import CHANNELS, SIZE, Builder, check, functions


def signs(build: Builder, *shape: int) -> np.ndarray:
    """Returns weights of plus and minus one number for each row."""
    alphas = build.random.uniform(0.05, 0.5, (shape[0], *[1] * (len(shape) - 1)))
    return np.float32(np.sign(build.random.standard_normal(shape)) * np.float32(alphas))


def through(alphas: np.ndarray) -> np.ndarray:
    """Returns weights as the sum of a straight-through estimator leaves them."""
    real = np.float32(0.1) * np.random.default_rng(0).standard_normal(
        alphas.shape).astype(np.float32)
    return (alphas - real) + real


def set_weight(build: Builder, weight: np.ndarray) -> np.ndarray:
    """Replaces the weight of the last node, and returns the new one."""
    build.graph.constants[build.graph.nodes[-1].inputs[1]] = weight
    return weight


def weights_of(graph: Graph) -> list[np.ndarray]:
    found = [output_rows(graph, node) for node in graph.nodes]
    return [rows for rows in found if rows is not None]


@pytest.mark.parametrize("exact", [0, 3])
def test_rounded_weights_of_a_convolution_become_signs(build: Builder, exact: int) -> None:
    """Some channels may be exact."""
    build.conv("x", "y")
    alphas = signs(build, CHANNELS, CHANNELS, 3, 3)
    weight = set_weight(build, np.concatenate([alphas[:exact], through(alphas)[exact:]]))
    assert not are_scaled_signs(weight)
    check(build, ["conv2d"])
    (rounded,) = weights_of(optimise(build.graph))
    assert are_scaled_signs(rounded)
    np.testing.assert_allclose(rounded, weight, rtol=2.0**-17)


@pytest.mark.parametrize(("trans_b", "rank"), [(False, 2), (True, 2), (False, 4)])
def test_rounded_weights_of_products_become_signs(build: Builder, trans_b: bool, rank: int) -> None:
    """Two products that read the same weights share the new ones too."""
    weight = through(signs(build, 6, SIZE if rank == 4 else CHANNELS * SIZE * SIZE))
    name = build.build.constant("w", weight if trans_b else weight.T)
    x = "x" if rank == 4 else build.add("flatten", ["x"], axis=1)
    products = [build.add("matmul", [value, name]) if rank == 4
                else build.build.gemm(value, name, trans_b=trans_b)
                for value in (x, build.apply("relu", x))]
    build.add("concat", products, "y", axis=1)
    check(build)
    graph = optimise(build.graph)
    assert all(are_scaled_signs(rows) for rows in weights_of(graph))
    assert len({node.inputs[1] for node in graph.nodes if node.op == "gemm"}) == 1


@pytest.mark.parametrize("change", [
    lambda weight: np.where(np.arange(weight.size).reshape(weight.shape) == 7, weight * 1.00001,
                            weight).astype(np.float32),
    lambda weight: np.where(np.arange(weight.size).reshape(weight.shape) == 7, 0, weight),
    lambda weight: weight * np.float32(np.inf), lambda weight: weight])
def test_other_weights_stay(build: Builder, change: Callable[[np.ndarray], np.ndarray]) -> None:
    build.conv("x", "y")
    weight = set_weight(build, change(signs(build, CHANNELS, CHANNELS, 3, 3)))
    (same,) = weights_of(optimise(build.graph))
    assert same is weight


def quantised(build: Builder, x: str, scale: float, *, zero: bool = False) -> str:
    sign = build.apply("sign", x) if zero else build.binarise(x)
    return build.apply("mul", sign, build.scalar(scale))


def input_facts(graph: Graph) -> list[ValueFacts]:
    """Returns what is known of the inputs of convolutions and products but the first."""
    static = resolve(graph, 2)
    facts = derive(static)
    return [facts[node.inputs[0]] for node in static.nodes if node.op in ("conv2d", "gemm")][1:]


def binary_conv(build: Builder, x: str, output: str = "", **options: int) -> str:
    name = build.conv(x, output, **options)
    set_weight(build, signs(build, CHANNELS, CHANNELS, 3, 3))
    return name


@pytest.mark.parametrize("between", [
    lambda b, x, a: x, lambda b, x, a: b.pool(x),
    lambda b, x, a: b.add("reshape", [b.add("reshape", [x], shape=(0, -1))],
                          shape=(0, CHANNELS, SIZE, SIZE)),
    lambda b, x, a: b.add("transpose", [x], permutation=(0, 1, 3, 2)),
    lambda b, x, a: b.add("pad", [x], mode="constant", pads=(0, 0, 1, 1, 0, 0, 1, 1), value=-a),
    lambda b, x, a: b.add("pad", [b.pool(x)], mode="reflect", pads=(0, 0, 1, 1, 0, 0, 1, 1)),
], ids=["nothing", "pool", "reshape", "transpose", "pad", "reflection"])
@pytest.mark.parametrize(("scale", "zero"), [(0.5, False), (0.3, False), (2.0, True)])
def test_scales_go_into_weights(build: Builder, between: Callable[[Builder, str, float], str],
                                scale: float, zero: bool) -> None:
    values = quantised(build, build.conv("x"), scale, zero=zero)
    scale = float(np.float32(scale))
    binary_conv(build, between(build, values, scale), "y")
    check(build)
    graph = optimise(build.graph)
    assert input_facts(graph) == [TERNARY if zero else PLUS_MINUS_ONE]
    assert are_scaled_signs(weights_of(graph)[1])


def test_signs_that_are_never_0_stay_one_bit_times_a_scale(build: Builder) -> None:
    """The sum of 4 products of 1 and -1 is an even number, which no bias here takes to 0."""
    value = build.conv(build.binarise("x"), size=1)
    layer = build.graph.nodes[-1]
    set_weight(build, np.sign(build.graph.constants[layer.inputs[1]]))
    build.graph.constants[layer.inputs[2]] = np.float32([0.3, 1.0, 7.1, 1e6])
    binary_conv(build, quantised(build, value, 0.5, zero=True), "y")
    check(build)
    assert input_facts(optimise(build.graph)) == [PLUS_MINUS_ONE]


def test_scales_go_far(build: Builder) -> None:
    """Files of many nodes take no deep recursion."""
    values = quantised(build, build.conv("x"), 0.5)
    for _ in range(1200):
        values = build.add("transpose", [values], permutation=(0, 1, 3, 2))
    binary_conv(build, values, "y")
    (layer, *_) = optimise(build.graph).nodes
    assert functions(layer)[-1] == "sign"


@pytest.mark.parametrize("pools", [0, 2])
def test_values_that_others_read_keep_their_scale(build: Builder, pools: int) -> None:
    values = quantised(build, build.conv("x"), 0.5)
    for _ in range(pools):
        values = build.pool(values)
    build.apply("add", binary_conv(build, values), values, output="y")
    check(build, ["conv2d", *["pool"] * pools, "elementwise", "conv2d"])
    assert input_facts(optimise(build.graph)) == [PLUS_MINUS_ONE]


@pytest.mark.parametrize("behind", [
    lambda b, x: b.conv(x, "y"), lambda b, x: binary_conv(b, b.pool(x, kind="average"), "y"),
    lambda b, x: binary_conv(b, b.add("pad", [x], mode="constant", pads=(0, 0, 1, 1, 0, 0, 1, 1),
                                      value=0.25), "y"),
    lambda b, x: b.pool(x, "y"),
], ids=["any weights", "average", "another padding", "no layer"])
def test_other_scales_stay(build: Builder, behind: Callable[[Builder, str], str]) -> None:
    behind(build, quantised(build, build.conv("x"), 0.5))
    nodes = check(build)
    assert functions(nodes[0])[-1] == "mul"


def test_scales_of_two_layers_and_of_a_shape(build: Builder) -> None:
    """A node that reads the shape alone does not see the scale."""
    values = quantised(build, build.conv("x"), 0.25)
    build.graph.nodes.append(Node("shape", "s", [values], ["s"], {"start": 0, "end": None}))
    sums = build.apply("add", binary_conv(build, values), binary_conv(build, build.pool(values)))
    build.add("reshape", [sums, "s"], "y")
    check(build)
    graph = optimise(build.graph)
    assert input_facts(graph) == [PLUS_MINUS_ONE] * 2
