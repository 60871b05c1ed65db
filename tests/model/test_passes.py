"""Each rewrite happens where it should, does not where it must not, and keeps the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from gossamer.errors import ModelError
from gossamer.expression import Expression, Step, apply, identity
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.passes import optimise
from gossamer.model.shapes import resolve
from tests.model.executor import execute
from tests.tolerances import FLOAT32, normalised_error

SIZE = 5
CHANNELS = 4


class Builder:
    """Appends nodes to a graph whose values are (N, 4, 5, 5) unless said otherwise."""

    def __init__(self, outputs: Sequence[str] = ("y",)) -> None:
        self.graph = Graph("test", [ValueInfo("x", (None, CHANNELS, SIZE, SIZE))],
                           [ValueInfo(name, ()) for name in outputs], [], {})
        self.random = np.random.default_rng(11)

    def constant(self, *shape: int, positive: bool = False) -> str:
        name = f"c{len(self.graph.constants)}"
        array = self.random.standard_normal(shape)
        self.graph.constants[name] = (np.abs(array) + 0.5 if positive else array).astype("f4")
        return name

    def scalar(self, value: float, *shape: int) -> str:
        name = self.constant(*shape)
        self.graph.constants[name] = np.full(shape, value, np.float32)
        return name

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        index = len(self.graph.nodes)
        output = output or f"v{index}"
        self.graph.nodes.append(Node(op, f"n{index}", list(inputs), [output], attributes, op))
        return output

    def conv(self, x: str, output: str = "", into: int = CHANNELS, out: int = CHANNELS,
             size: int = 3, pad: int | None = None, groups: int = 1, bias: bool = True) -> str:
        inputs = [x, self.constant(out, into // groups, size, size)]
        if bias:
            inputs.append(self.constant(out))
        return self.add("conv2d", inputs, output, strides=(1, 1),
                        pads=(size // 2 if pad is None else pad,) * 4, dilations=(1, 1),
                        groups=groups, epilogue=apply("add") if bias else identity())

    def norm(self, x: str, output: str = "", channels: int = CHANNELS) -> str:
        moments = [self.constant(channels, positive=part == 3) for part in range(4)]
        return self.add("batch_norm", [x, *moments], output, epsilon=1e-5)

    def apply(self, function: str, *inputs: str, output: str = "", constants: Any = ()) -> str:
        return self.add("elementwise", inputs, output, expression=apply(function, *constants))

    def pool(self, x: str, output: str = "", kind: str = "max") -> str:
        return self.add("pool", [x], output, kind=kind, kernel=(3, 3), strides=(1, 1),
                        pads=(1, 1, 1, 1), dilations=(1, 1), ceil_mode=False,
                        count_include_pad=False)

    def mean(self, x: str) -> str:
        return self.add("reduce", [x], kind="mean", axes="spatial", keepdims=True)

    def binarise(self, x: str, output: str = "") -> str:
        signs = [self.scalar(value) for value in (0, 1, -1)]
        return self.apply("where", self.apply("greater_equal", x, signs[0]), *signs[1:],
                          output=output)


def check(build: Builder, ops: Sequence[str] | None = None) -> list[Node]:
    """Asserts that optimising keeps the outputs and leaves these ops; returns the nodes."""
    graph = build.graph
    before = [(node.op, list(node.inputs), dict(node.attributes)) for node in graph.nodes]
    better = optimise(graph)
    assert before == [(node.op, node.inputs, node.attributes) for node in graph.nodes]
    for batch in (0, 2):
        x = np.random.default_rng(batch).standard_normal((batch, *graph.inputs[0].shape[1:]))
        feeds = {"x": x.astype(np.float32)}
        expected = execute(resolve(graph, batch), feeds)
        found = execute(resolve(better, batch), feeds)
        for info in graph.outputs:
            assert normalised_error(found[info.name], expected[info.name]) <= FLOAT32
    if ops is not None:
        assert [node.op for node in better.nodes] == list(ops)
    return better.nodes


def functions(node: Node) -> list[str]:
    expression = node.attributes.get("epilogue") or node.attributes["expression"]
    return [step.function for step in expression.steps]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_batch_norm_goes_into_the_convolution(bias: bool, groups: int) -> None:
    build = Builder()
    build.apply("relu", build.norm(build.conv("x", bias=bias, groups=groups)), output="y")
    (node,) = check(build, ["conv2d"])
    assert functions(node) == ["add", "relu"]


@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_goes_into_the_transposed_convolution(groups: int) -> None:
    build = Builder()
    inputs = ["x", build.constant(CHANNELS, 3, 2, 2), build.constant(3 * groups)]
    up = build.add("conv_transpose2d", inputs, strides=(2, 2), pads=(0,) * 4, dilations=(1, 1),
                   output_padding=(0, 0), groups=groups)
    build.norm(up, "y", channels=3 * groups)
    check(build, ["conv_transpose2d"])


@pytest.mark.parametrize("trans_b", [False, True])
def test_batch_norm_goes_into_the_product(trans_b: bool) -> None:
    build = Builder()
    flat = build.add("flatten", ["x"], axis=1)
    inner = CHANNELS * SIZE * SIZE
    weight = build.constant(6, inner) if trans_b else build.constant(inner, 6)
    product = build.add("gemm", [flat, weight, build.constant(6)], trans_a=False, trans_b=trans_b,
                        epilogue=apply("add"))
    build.apply("relu", build.norm(product, channels=6), output="y")
    check(build, ["flatten", "gemm"])


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
def test_batch_norm_that_feeds_a_sign_is_not_folded(behind: Callable[[Builder, str], str]) -> None:
    build = Builder()
    conv = build.conv("x")
    weight = build.graph.nodes[0].inputs[1]
    behind(build, build.norm(conv))
    nodes = check(build)
    assert weight in nodes[0].inputs
    assert functions(nodes[0])[1:4] == ["sub", "mul", "add"]


def test_batch_norm_is_folded_where_a_convolution_stands_before_the_sign() -> None:
    build = Builder()
    build.apply("sign", build.conv(build.norm(build.conv("x"))), output="y")
    first, _ = check(build, ["conv2d", "conv2d"])
    assert functions(first) == ["add"]


def test_batch_norm_before_a_padded_convolution_stays_outside() -> None:
    build = Builder()
    build.conv(build.norm("x"), "y")
    check(build, ["elementwise", "conv2d"])


def test_batch_norm_of_a_value_that_others_read_stays_outside() -> None:
    build = Builder()
    conv = build.conv("x")
    build.add("concat", [build.norm(conv), build.pool(conv)], "y", axis=1)
    check(build, ["conv2d", "elementwise", "pool", "concat"])


def test_batch_norm_of_the_mean_gives_the_shift() -> None:
    """(x - mean) * scale + shift is exact at x = mean, as a folded scale and shift is not."""
    build = Builder()
    build.norm("x", "y")
    mean, shift = (build.graph.constants[name] for name in (build.graph.nodes[0].inputs[3],
                                                            build.graph.nodes[0].inputs[2]))
    static = resolve(optimise(build.graph), 1)
    x = np.broadcast_to(mean[:, None, None], (1, CHANNELS, SIZE, SIZE))
    (node,) = static.nodes
    operands = [x, *[static.constants[name] for name in node.inputs[1:]]]
    (y,) = node.attributes["expression"].evaluate(*operands)
    np.testing.assert_array_equal(y, np.broadcast_to(shift[:, None, None], y.shape))


def test_activation_scalars_and_residual_become_the_epilogue() -> None:
    build = Builder()
    halved = build.apply("mul", build.conv("x", bias=False), build.scalar(0.5, 1))
    shifted = build.apply("add", build.constant(CHANNELS, 1, 1), halved)
    build.apply("clip", build.apply("sub", shifted, "x"), output="y", constants=(0, 6))
    (node,) = check(build, ["conv2d"])
    assert functions(node) == ["constant", "mul", "add", "sub", "clip"]
    assert sorted(len(name) for name in node.inputs[2:]) == sorted([len("x"), len("c2.channels")])


def test_a_residual_made_later_moves_the_convolution_behind_it() -> None:
    build = Builder()
    conv = build.conv("x")
    late = build.pool(build.apply("relu", "x"))
    build.apply("relu", build.apply("add", conv, late), output="y")
    check(build, ["elementwise", "pool", "conv2d"])


def test_a_transposed_convolution_takes_a_bias() -> None:
    build = Builder()
    up = build.add("conv_transpose2d", ["x", build.constant(CHANNELS, CHANNELS, 2, 2)],
                   strides=(2, 2), pads=(0,) * 4, dilations=(1, 1), output_padding=(0, 0),
                   groups=1)
    build.apply("add", up, build.constant(CHANNELS, 1, 1), output="y")
    check(build, ["conv_transpose2d"])


def test_of_two_convolutions_one_takes_the_addition() -> None:
    build = Builder()
    build.apply("add", build.conv("x"), build.conv("x", size=1), output="y")
    first, second = check(build, ["conv2d", "conv2d"])
    assert functions(first) == ["add"]
    assert functions(second) == ["add", "add"]
    assert first.outputs[0] in second.inputs


def test_a_gate_of_the_result_itself_is_fused() -> None:
    build = Builder()
    conv = build.conv("x")
    build.apply("mul", conv, build.apply("sigmoid", conv), output="y")
    (node,) = check(build, ["conv2d"])
    assert functions(node) == ["add", "sigmoid", "mul"]


def test_an_operand_of_another_shape_stays_outside() -> None:
    build = Builder()
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


def test_chains_of_elementwise_nodes_become_one() -> None:
    build = Builder()
    value = build.apply("exp", build.apply("neg", "x"))
    value = build.apply("add", value, build.scalar(1))
    build.apply("div", build.scalar(1), value, output="y")
    (node,) = check(build, ["elementwise"])
    assert node.inputs == ["x"]
    assert functions(node) == ["neg", "exp", "constant", "add", "div"]


def test_equal_nodes_are_computed_once() -> None:
    build = Builder()
    values = [build.binarise("x"), build.binarise("x")]
    build.add("concat", [build.pool(value) for value in values], "y", axis=1)
    check(build, ["elementwise", "pool", "concat"])


def test_equal_nodes_that_are_both_outputs_stay() -> None:
    build = Builder(("y", "z"))
    build.apply("relu", "x", output="y")
    build.apply("relu", "x", output="z")
    check(build, ["elementwise", "elementwise"])


@pytest.mark.parametrize("outputs", [
    (("a", "b"), ("c", "d", "e", "f")), (("a", ""), ("c", "d")), (("a", "b"), ("c", "")),
], ids=["counts", "first absent", "second absent"])
def test_splits_into_other_parts_are_not_equal(outputs: Sequence[tuple[str, ...]]) -> None:
    build = Builder()
    for names in outputs:
        build.add("split", ["x"], axis=1, sizes=None)
        build.graph.nodes[-1].outputs = list(names)
    parts = [name for names in outputs for name in names if name]
    build.add("concat", parts, "y", axis=1)
    check(build, ["split", "split", "concat"])


def test_equal_splits_are_computed_once() -> None:
    build = Builder()
    for names in ("ab", "cd"):
        build.add("split", ["x"], axis=1, sizes=None)
        build.graph.nodes[-1].outputs = list(names)
    build.add("concat", ["a", "d", "c"], "y", axis=1)
    *_, concat = check(build, ["split", "concat"])
    assert concat.inputs == ["a", "b", "a"]


def test_arrays_that_print_alike_are_not_equal() -> None:
    """Two neighbours in float32 at 0.0123, which NumPy prints as 0.01234568."""
    build = Builder()
    value = np.float32(0.0123456789)
    shape = build.add("shape", ["x"], start=0, end=None)
    filled = [build.add("constant_of_shape", [shape], value=np.array(v, np.float32))
              for v in (value, np.nextafter(value, np.float32(1)))]
    build.add("concat", filled, "y", axis=1)
    values = resolve(optimise(build.graph), 1).constants["y"]
    assert len(np.unique(values)) == 2


def test_a_scalar_that_widens_the_result_is_kept() -> None:
    build = Builder()
    build.apply("add", "x", build.scalar(2, 1, 1, 1, 1, 1), output="y")
    (node,) = check(build, ["elementwise"])
    assert len(node.inputs) == 2


def test_constants_are_folded() -> None:
    build = Builder()
    weight = build.add("transpose", [build.constant(3, 3, CHANNELS, CHANNELS)],
                       permutation=(3, 2, 0, 1))
    doubled = build.apply("add", weight, weight)
    build.add("conv2d", ["x", doubled], "y", strides=(1, 1), pads=(0,) * 4, dilations=(1, 1),
              groups=1, epilogue=identity())
    check(build, ["conv2d"])


def test_zero_pads_go_into_the_convolution() -> None:
    build = Builder()
    padded = build.add("pad", ["x"], pads=(0, 0, 1, 0, 0, 0, 2, 1), mode="constant", value=0.0)
    build.conv(padded, "y", pad=1)
    (node,) = check(build, ["conv2d"])
    assert node.attributes["pads"] == (2, 1, 3, 2)


@pytest.mark.parametrize(("pads", "mode", "value"), [
    ((0, 0, 1, 1, 0, 0, 1, 1), "constant", 1.0), ((0, 0, 1, 1, 0, 0, 1, 1), "edge", 0.0),
    ((0, 0, -1, 0, 0, 0, 0, 0), "constant", 0.0),
])
def test_other_pads_stay(pads: tuple[int, ...], mode: str, value: float) -> None:
    build = Builder()
    build.conv(build.add("pad", ["x"], pads=pads, mode=mode, value=value), "y")
    check(build, ["pad", "conv2d"])


def test_matrix_product_becomes_a_gemm_with_an_epilogue() -> None:
    build = Builder()
    flat = build.add("flatten", ["x"], axis=1)
    product = build.add("matmul", [flat, build.constant(CHANNELS * SIZE * SIZE, 3)])
    build.apply("relu", build.apply("add", product, build.constant(3)), output="y")
    check(build, ["flatten", "gemm"])


def test_identities_and_dead_nodes_go() -> None:
    build = Builder()
    build.add("identity", [build.pool(build.add("identity", ["x"]))], "y")
    build.conv("x")
    check(build, ["pool"])


@pytest.mark.parametrize("suffix", ["weight", "bias", "mean", "scale", "shift", "channels"])
def test_new_constants_take_no_name_that_the_file_has(suffix: str) -> None:
    build = Builder(("y", "z"))
    x = np.random.default_rng(3).standard_normal((1, CHANNELS, SIZE, SIZE)).astype(np.float32)
    outside = build.norm(build.pool(build.norm(build.conv("x"), "a")), "b")
    scaled = build.apply("mul", build.conv(outside), build.constant(CHANNELS, 1, 1))
    scale = build.graph.nodes[-1].inputs[1]
    build.pool(scaled, "y")
    values = []
    for name in (f"{value}.{suffix}" for value in ("a", "b", scale)):
        build.graph.constants[name] = build.graph.constants.pop(build.constant(SIZE, SIZE))
        values.append(build.apply("max", "x", name))
    build.add("concat", values, "z", axis=1)
    graph = build.graph
    expected = np.concatenate([np.maximum(x, graph.constants[node.inputs[1]])
                               for node in graph.nodes[-4:-1]], axis=1)
    found = execute(resolve(optimise(graph), 1), {"x": x})["z"]
    assert normalised_error(found, expected) <= FLOAT32
    check(build)


def test_a_product_with_a_weight_that_is_no_matrix_is_refused_when_resolving() -> None:
    build = Builder()
    flat = build.add("flatten", ["x"], axis=1)
    product = build.add("gemm", [flat, build.constant(CHANNELS * SIZE * SIZE)], trans_a=False,
                        trans_b=False, epilogue=identity())
    build.apply("relu", product, output="y")
    better = optimise(build.graph)
    with pytest.raises(ModelError, match="expected matrices"):
        resolve(better, 1)


def test_a_batch_norm_of_other_channels_is_refused_when_resolving() -> None:
    build = Builder()
    build.norm(build.conv("x"), "y", channels=1)
    better = optimise(build.graph)
    with pytest.raises(ModelError, match="expected 1 channels"):
        resolve(better, 1)


def test_layers_without_output_channels_give_nothing() -> None:
    build = Builder(("y", "z"))
    none = build.apply("sign", build.norm(build.conv("x", out=0), channels=0), output="y")
    build.conv(build.norm(build.conv(none, into=0, out=0), channels=0), "z", into=0, out=2)
    check(build)
    assert resolve(optimise(build.graph), 1).shapes["y"] == (1, 0, SIZE, SIZE)


def test_two_outputs_of_one_expression_keep_both() -> None:
    build = Builder(("y", "z"))
    conv = build.conv("x")
    expression = Expression(1, (Step("relu", (0,)), Step("sign", (0,))), (1, 2))
    build.add("elementwise", [conv], "y", expression=expression)
    build.graph.nodes[-1].outputs = ["y", "z"]
    check(build, ["conv2d", "elementwise"])


STEPS = ("conv", "depthwise", "norm", "relu", "sigmoid", "clip", "add", "mul", "channel", "scalar",
         "max", "average", "binarise", "sign", "identity", "zero_pad", "gate", "concat",
         "transposed")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 9)),
                min_size=3, max_size=14), st.integers(0, 9))
def test_random_graphs_keep_their_results(
    steps: list[tuple[str, int, int]], second_output: int
) -> None:
    build = Builder()
    values = ["x"]
    for step, i, j in steps:
        x, other = values[-1 - i % len(values)], values[-1 - j % len(values)]
        values.append(_random_step(build, step, x, other))
    build.graph.outputs = [ValueInfo(name, ()) for name in dict.fromkeys(
        (values[-1], values[second_output % len(values)])) if name != "x"]
    check(build)


def _random_step(build: Builder, step: str, x: str, other: str) -> str:
    if step == "conv":
        return build.conv(x)
    if step == "depthwise":
        return build.conv(x, groups=CHANNELS, bias=False)
    if step == "norm":
        return build.norm(x)
    if step == "clip":
        return build.apply("clip", x, constants=(-1, 1))
    if step in ("add", "mul", "max"):
        return build.apply(step, x, other)
    if step == "channel":
        return build.apply("mul", build.constant(CHANNELS, 1, 1), x)
    if step == "scalar":
        return build.apply("sub", build.scalar(0.5, 1), x)
    if step == "average":
        return build.pool(x, kind="average")
    if step == "binarise":
        return build.binarise(x)
    if step == "identity":
        return build.add("identity", [x])
    if step == "zero_pad":
        padded = build.add("pad", [x], pads=(0, 0, 1, 1, 0, 0, 1, 1), mode="constant", value=0.0)
        return build.conv(padded, pad=0)
    if step == "gate":
        return build.apply("mul", x, build.apply("sigmoid", build.mean(other)))
    if step == "concat":
        return build.conv(build.add("concat", [x, other], axis=1), into=2 * CHANNELS, size=1)
    if step == "transposed":
        up = build.add("conv_transpose2d", [x, build.constant(CHANNELS, CHANNELS, 3, 3)],
                       strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), output_padding=(0, 0),
                       groups=1)
        return build.apply("add", up, build.constant(CHANNELS, 1, 1))
    return build.apply(step, x)
