"""Convolutions of one value whose results are added become one convolution, where this keeps the
results and takes no more multiplications, and there alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from gossamer.expression import Expression, ExpressionStep
from gossamer.model.builder import Margins, Pair
from gossamer.model.graph import Node, ValueInfo
from gossamer.model.passes.optimise import optimise
from tests.model.graph_builder import CHANNELS, SIZE, Builder, check, functions


def conv(build: Builder, x: str = "x", *, kernel: Pair = (3, 3), stride: Pair = (1, 1),
         pads: Margins | None = None, dilation: Pair = (1, 1), groups: int = 1,
         out: int = CHANNELS, normed: bool = False) -> str:
    """Adds a convolution with a bias, and perhaps a batch norm, whose window is padded to both
    sides alike unless pads are given."""
    around = tuple(step * (taps // 2) for step, taps in zip(dilation, kernel, strict=True)) * 2
    weight = build.constant(out, CHANNELS // groups, *kernel)
    y = build.build.conv2d(x, weight, build.constant(out), strides=stride, dilations=dilation,
                           pads=pads or around, groups=groups, output=f"v{len(build.graph.nodes)}")
    return build.norm(y, channels=out) if normed else y


def add(build: Builder, *values: str, output: str = "") -> str:
    """Adds an addition of values, one after another."""
    total, *others = values
    for index, value in enumerate(others, start=2):
        total = build.apply("add", total, value, output=output if index == len(values) else "")
    return total


def weights(build: Builder, value: str) -> str:
    """Returns the name of the weights of the convolution that computes a value."""
    return next(node.inputs[1] for node in build.graph.nodes if node.outputs == [value])


def merged(build: Builder, *, weight: tuple[int, ...], **attributes: Any) -> None:
    """Checks that one convolution with weights of this shape, and these attributes, computes the
    network, and that it takes no operands but weights and biases."""
    (node,) = check(build, ["conv2d"])
    assert optimise(build.graph).constants[node.inputs[1]].shape == weight
    assert len(node.inputs) == 3
    assert {name: node.attributes[name] for name in attributes} == attributes


def test_a_block_of_repvgg_becomes_one_convolution(build: Builder) -> None:
    total = add(build, build.norm("x"), conv(build, normed=True),
                conv(build, kernel=(1, 1), normed=True))
    build.apply("relu", total, output="y")
    merged(build, weight=(CHANNELS, CHANNELS, 3, 3), pads=(1, 1, 1, 1), groups=1)


def test_a_block_of_mobileone_becomes_one_depthwise_convolution(build: Builder) -> None:
    total = conv(build, kernel=(1, 1), groups=CHANNELS)
    for _ in range(4):
        total = build.apply("add", total, conv(build, groups=CHANNELS, normed=True))
    total = build.apply("add", total, build.scalar(0))
    build.apply("relu", build.apply("add", total, build.norm("x")), output="y")
    merged(build, weight=(CHANNELS, 1, 3, 3), groups=CHANNELS)


def test_a_block_of_repvit_takes_the_batch_norm_behind_the_sum(build: Builder) -> None:
    total = add(build, conv(build, groups=CHANNELS), conv(build, kernel=(1, 1), groups=CHANNELS),
                "x")
    build.norm(total, "y")
    merged(build, weight=(CHANNELS, 1, 3, 3), groups=CHANNELS)


DEPTHWISE = {"groups": CHANNELS}
MERGED: dict[str, tuple[Callable[[Builder], list[str]], tuple[int, ...], dict[str, Any]]] = {
    "strides": (lambda b: [conv(b, stride=(2, 2), out=6),
                           conv(b, kernel=(1, 1), stride=(2, 2), out=6)],
                (6, CHANNELS, 3, 3), {"strides": (2, 2)}),
    "a pixel in a dilated window": (
        lambda b: [conv(b, dilation=(2, 1)), conv(b, kernel=(1, 1), dilation=(3, 3)), "x"],
        (CHANNELS, CHANNELS, 3, 3), {"dilations": (2, 1), "pads": (2, 1, 2, 1)}),
    "a dilated window in a large one": (
        lambda b: [conv(b, dilation=(2, 2), **DEPTHWISE), conv(b, kernel=(5, 5), **DEPTHWISE)],
        (CHANNELS, 1, 5, 5), {"dilations": (1, 1)}),
    "uneven pads": (lambda b: [conv(b, kernel=(3, 2), pads=(2, 1, 0, 0)), "x"],
                    (CHANNELS, CHANNELS, 3, 2), {"pads": (2, 1, 0, 0)}),
    "crossed windows and one that has both": (
        lambda b: [conv(b, kernel=(1, 3)), conv(b, kernel=(3, 1)), conv(b)],
        (CHANNELS, CHANNELS, 3, 3), {"pads": (1, 1, 1, 1)}),
    "scales of channels": (lambda b: ["x", conv(b, kernel=(1, 1), **DEPTHWISE)],
                           (CHANNELS, 1, 1, 1), DEPTHWISE),
    **{f"{finer} groups in {groups}": (
        lambda b, groups=groups, finer=finer, out=out: [
            conv(b, groups=finer, out=out), conv(b, groups=groups, out=out)],
        (out, CHANNELS // groups, 3, 3), {"groups": groups})
       for groups, finer, out in ((2, 4, 4), (2, 4, 8), (1, 2, 6), (1, 4, 8))},
}
"""Branches that become one convolution, the shape of its weights and some of its attributes."""


@pytest.mark.parametrize(("branches", "weight", "attributes"), MERGED.values(), ids=MERGED)
def test_branches_that_fit_each_other_become_one_convolution(
        build: Builder, branches: Callable[[Builder], list[str]], weight: tuple[int, ...],
        attributes: dict[str, Any]) -> None:
    add(build, *branches(build), output="y")
    merged(build, weight=weight, **attributes)


def test_signs_scales_and_shifts_of_branches_are_kept(build: Builder) -> None:
    halved = build.apply("div", conv(build), build.scalar(2, 1, 1))
    scaled = build.apply("mul", build.constant(1, CHANNELS, 1, 1), conv(build, kernel=(1, 1)))
    total = build.apply("sub", build.apply("neg", halved), build.apply("sub", scaled, "x"))
    build.apply("add", build.constant(CHANNELS, 1, 1), total, output="y")
    merged(build, weight=(CHANNELS, CHANNELS, 3, 3))


def test_other_addends_stay(build: Builder) -> None:
    scaled = build.apply("mul", build.constant(CHANNELS, 1, 1), build.pool("x"))
    doubled = build.apply("mul", build.scalar(2), build.apply("tanh", "x"))
    add(build, scaled, conv(build), build.mean("x"), conv(build, kernel=(1, 1)), doubled, "x",
        output="y")
    *_, addition = check(build, ["pool", "reduce", "conv2d", "elementwise"])
    assert sorted(functions(addition)) == ["add", "add", "add", "constant", "mul", "mul", "tanh"]


def test_another_addend_goes_into_the_epilogue(build: Builder) -> None:
    other = build.pool("x")
    add(build, conv(build), other, build.norm("x"), output="y")
    _, node = check(build, ["pool", "conv2d"])
    assert functions(node) == ["add", "add"] and other in node.inputs[2:]


def test_branches_that_only_two_merged_convolutions_can_compute_become_these(
        build: Builder) -> None:
    add(build, conv(build, groups=CHANNELS), conv(build, kernel=(1, 1)), "x",
        conv(build, kernel=(1, 1), groups=CHANNELS), conv(build, kernel=(1, 1)), output="y")
    nodes = check(build, ["conv2d", "conv2d"])
    assert sorted(node.attributes["groups"] for node in nodes) == [1, CHANNELS]


def test_branches_of_several_values_become_a_convolution_of_each(build: Builder) -> None:
    z = build.pool("x")
    add(build, conv(build), conv(build, z), conv(build, kernel=(1, 1)), "x",
        conv(build, z, kernel=(1, 1)), output="y")
    check(build, ["pool", "conv2d", "conv2d"])


def test_values_that_are_broadcast_stay(build: Builder) -> None:
    gray = build.pool(conv(build, out=1))
    add(build, "x", build.conv(gray, into=1, out=1), gray, output="y")
    assert convolutions(check(build)) == 2


def epilogue(*steps: ExpressionStep) -> Expression:
    """Returns an expression of the result of a convolution and one operand."""
    return Expression(2, steps)


@pytest.mark.parametrize("steps", [
    (ExpressionStep("neg", (0,)), ExpressionStep("sub", (2, 1))),
    (ExpressionStep("add", (0, 1)), ExpressionStep("mul", (2, 1))),
], ids=["sign", "scale"])
def test_epilogues_that_scale_and_shift_are_merged(build: Builder,
                                                   steps: tuple[ExpressionStep, ...]) -> None:
    first, second = conv(build), conv(build)
    build.graph.nodes[0].attributes["epilogue"] = epilogue(*steps)
    add(build, first, second, output="y")
    merged(build, weight=(CHANNELS, CHANNELS, 3, 3))


def test_other_epilogues_stay(build: Builder) -> None:
    values = [conv(build) for _ in range(3)]
    active, residual, _ = build.graph.nodes
    active.attributes["epilogue"] = epilogue(ExpressionStep("max", (0, 1)))
    residual.inputs[2] = "x"
    add(build, *values, output="y")
    assert convolutions(check(build)) == 3


def test_branches_of_an_open_size_are_merged(build: Builder) -> None:
    add(build, conv(build), conv(build, kernel=(1, 1)), "x", output="y")
    graph = build.build.finish()
    graph.inputs = [ValueInfo("x", (None, CHANNELS, None, None))]
    assert [node.op for node in optimise(graph).nodes] == ["conv2d"]


def test_a_branch_of_zeros_is_merged(build: Builder) -> None:
    zero = conv(build, kernel=(1, 1))
    build.graph.constants[weights(build, zero)] *= 0
    add(build, conv(build), zero, output="y")
    merged(build, weight=(CHANNELS, CHANNELS, 3, 3))


def test_zeros_are_not_multiplied_for_the_sake_of_an_addition(build: Builder) -> None:
    zero = conv(build)
    build.graph.constants[weights(build, zero)] *= 0
    add(build, zero, "x", output="y")
    (node,) = check(build, ["conv2d"])
    assert functions(node) == ["add", "add"] and not build.graph.constants[node.inputs[1]].any()


def test_a_branch_that_another_node_reads_stays() -> None:
    build = Builder(("y", "z"))
    first = conv(build)
    add(build, first, conv(build, kernel=(1, 1)), conv(build), output="y")
    build.pool(first, "z")
    check(build, ["conv2d", "conv2d", "pool"])


def test_a_branch_that_is_an_output_stays() -> None:
    build = Builder(("v0", "y"))
    add(build, conv(build), conv(build, kernel=(1, 1)), "x", output="y")
    check(build, ["conv2d", "conv2d"])


def test_a_sum_that_is_an_output_is_merged_before_it_is_added() -> None:
    build = Builder(("y", "z"))
    part = add(build, conv(build), conv(build, kernel=(1, 1)), output="y")
    add(build, part, conv(build), conv(build, kernel=(1, 1)), output="z")
    check(build, ["conv2d", "conv2d"])


def test_a_convolution_that_is_added_twice_is_computed_once(build: Builder) -> None:
    first, second = conv(build), conv(build)
    for node in build.graph.nodes[1:]:
        node.inputs = build.graph.nodes[0].inputs
    add(build, first, second, "x", output="y")
    merged(build, weight=(CHANNELS, CHANNELS, 3, 3))


@pytest.mark.parametrize("function", ["sign", "round", "floor"])
def test_a_sum_before_a_jump_stays(build: Builder, function: str) -> None:
    total = add(build, conv(build), conv(build, kernel=(1, 1)), "x")
    build.apply(function, build.pool(total), output="y")
    nodes = check(build, ["conv2d", "conv2d", "pool", "elementwise"])
    assert "x" in nodes[0].inputs[2:] + nodes[1].inputs[2:]


APART: dict[str, Callable[[Builder], list[str]]] = {
    "more multiplications": lambda b: [conv(b, groups=CHANNELS), conv(b, kernel=(1, 1))],
    "crossed windows": lambda b: [conv(b, kernel=(1, 3)), conv(b, kernel=(3, 1))],
    "windows of which none has the other": lambda b: [
        conv(b, kernel=(3, 2), pads=(2, 1, 0, 0)), conv(b, kernel=(2, 3), pads=(1, 1, 0, 1))],
    "a pixel in a gap": lambda b: [
        conv(b, kernel=(1, 2), dilation=(1, 2), pads=(0, 1, 0, 1)), conv(b, kernel=(1, 1))],
    "windows between pixels": lambda b: [conv(b), conv(b, dilation=(2, 2))],
    "windows that do not fit": lambda b: [conv(b, stride=(2, 2)), conv(
        b, kernel=(2, 2), stride=(2, 2), pads=(1, 1, 1, 1))],
    "strides": lambda b: [conv(b, stride=(3, 3)), conv(b, kernel=(1, 1), stride=(4, 4))],
    "values": lambda b: [conv(b), conv(b, b.apply("relu", "x"))],
    "shapes": lambda b: [conv(b), conv(b, kernel=(SIZE, SIZE), pads=(0, 0, 0, 0))],
    "activations": lambda b: [conv(b), b.apply("relu", conv(b, kernel=(1, 1)))],
    "products": lambda b: [conv(b), b.apply("mul", "x", conv(b, kernel=(1, 1)))],
    "quotients": lambda b: [conv(b), b.apply("div", b.scalar(1), conv(b, kernel=(1, 1)))],
    "constants of pixels": lambda b: [conv(b), b.apply("mul", conv(b, kernel=(1, 1)),
                                                       b.constant(SIZE, SIZE))],
}


@pytest.mark.parametrize("branches", APART.values(), ids=APART)
def test_branches_that_do_not_fit_each_other_stay(build: Builder,
                                                  branches: Callable[[Builder], list[str]]) -> None:
    add(build, *branches(build), output="y")
    assert convolutions(check(build)) == 2


@pytest.mark.parametrize("change", [np.rint, lambda w: np.sign(w) / 4,
                                    lambda w: np.where(w == w.max(), np.float32(3e38), w)],
                         ids=["integers", "scaled signs", "numbers that are too large"])
def test_weights_that_must_stay_as_they_are_do(build: Builder,
                                               change: Callable[[np.ndarray], np.ndarray]) -> None:
    first, second = conv(build), conv(build)
    changed = change(build.graph.constants[weights(build, first)])
    for value in (first, second):
        build.graph.constants[weights(build, value)] = changed
    add(build, first, second, output="y")
    assert convolutions(check(build)) == 2


def test_pads_that_the_size_decides_stay(build: Builder) -> None:
    first, second = conv(build), conv(build)
    for node in build.graph.nodes:
        node.attributes["auto_pad"] = "SAME_UPPER"
    add(build, first, second, output="y")
    check(build, ["conv2d", "conv2d"])


def test_a_sum_that_is_too_long_for_one_expression_stays(build: Builder) -> None:
    others = [build.apply("clip", "x", constants=(0, limit + 1)) for limit in range(130)]
    add(build, conv(build), conv(build), *others, output="y")
    assert convolutions(check(build)) == 2


def convolutions(nodes: list[Node]) -> int:
    return sum(node.op == "conv2d" for node in nodes)


@given(st.data())
def test_random_blocks_keep_their_results(data: st.DataObject) -> None:
    """Draws a block of a convolution, of convolutions whose windows and groups are within its
    windows and groups, and of values that are no part of it."""
    build = Builder(("y", "z"))

    def pick(*choices: Any) -> Any:
        return data.draw(st.sampled_from(choices))

    kernel, dilation, stride = ((pick(*range(1, most + 1)), pick(*range(1, most + 1)))
                                for most in (3, 2, 2))
    pads = tuple(pick(0, 1, 2) for _ in range(4))
    groups, out = pick(1, 2, 4), pick(4, 8)

    def within() -> str:
        """Adds a convolution whose window and groups are within those of the block."""
        taps, finer_pads, steps = [0, 0], [0] * 4, [0, 0]
        for axis in range(2):
            taps[axis] = pick(*range(1, kernel[axis] + 1))
            first = pick(*range(kernel[axis] - taps[axis] + 1))
            last = kernel[axis] - taps[axis] - first
            finer_pads[axis] = pads[axis] - dilation[axis] * first
            finer_pads[axis + 2] = pads[axis + 2] - dilation[axis] * last
            steps[axis] = dilation[axis] if taps[axis] > 1 else pick(1, 2)
        if min(finer_pads) < 0:
            return whole()
        return conv(build, kernel=(taps[0], taps[1]), stride=stride, dilation=(steps[0], steps[1]),
                    pads=tuple(finer_pads), groups=pick(*(g for g in (1, 2, 4) if g >= groups)),
                    out=out, normed=pick(True, False))

    def whole() -> str:
        return conv(build, kernel=kernel, stride=stride, dilation=dilation, pads=pads,
                    groups=groups, out=out, normed=pick(True, False))

    addends = [whole(), *(within() for _ in range(pick(0, 1, 2, 3)))]
    expected = 1
    reaches = [dilation[axis] * (kernel[axis] - 1) for axis in range(2)]
    keeps_size = all(pads[axis] + pads[axis + 2] == reaches[axis] for axis in range(2))
    if keeps_size and stride == (1, 1) and out == CHANNELS and pick(True, False):
        addends.append(pick("x", build.norm("x")))
    read = "x"
    if pick(True, False):
        read = whole()
        addends.append(read)
        expected += 1
    build.pool(read, "z")
    if pick(True, False):
        addends.append(build.apply("tanh", conv(
            build, kernel=kernel, stride=stride, dilation=dilation, pads=pads, groups=groups,
            out=out)))
        expected += 1
    total, *others = data.draw(st.permutations(addends))
    for value in others:
        function = pick("add", "sub")
        total = build.apply(function, *pick((total, value), (value, total)))
        if pick(True, False, False):
            total = build.norm(total, channels=out)
    build.apply("relu", total, output="y")
    assert convolutions(check(build)) == expected
