"""Layers between transpositions to channels-last images and back compute on channels-first ones."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.graph_builder import CHANNELS, SIZE, Builder, check

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def turned(build: Builder, x: str, permutation: tuple[int, ...], output: str = "") -> str:
    return build.add("transpose", [x], output, permutation=permutation)


def product(build: Builder, x: str) -> str:
    return build.add("matmul", [x, build.constant(CHANNELS, CHANNELS)])


def test_a_block_of_products_becomes_convolutions() -> None:
    build = Builder()
    last = turned(build, build.conv("x"), LAST)
    hidden = build.apply("relu", build.apply("add", product(build, last), build.constant(CHANNELS)))
    scaled = build.apply("mul", product(build, hidden), build.constant(CHANNELS))
    build.apply("add", "x", turned(build, scaled, FIRST), output="y")
    check(build, ["conv2d", "conv2d", "conv2d"], channels_first=True)


def test_only_where_it_is_asked_for() -> None:
    build = Builder()
    turned(build, product(build, turned(build, "x", LAST)), FIRST, output="y")
    check(build, ["transpose", "gemm", "transpose"])


def test_a_normalisation_by_reductions() -> None:
    build = Builder()
    last = turned(build, "x", LAST)
    mean = build.build.reduce(last, "mean", axes=(-1,), name="mean", output="mean")
    turned(build, build.apply("sub", last, mean), FIRST, output="y")
    check(build, ["reduce", "elementwise"], channels_first=True)


@pytest.mark.parametrize(("axes", "left"), [((1, 2), 0), ((1,), 1), ((3,), 0), ((2,), 1)])
def test_reductions_that_drop_dimensions(axes: tuple[int, ...], left: int) -> None:
    """The dimensions that remain must be in the same order in both images."""
    build = Builder()
    last = turned(build, build.apply("exp", "x"), LAST)
    build.add("reduce", [build.apply("neg", last)], "y", kind="sum", axes=axes, keepdims=False)
    nodes = check(build, channels_first=True)
    assert sum(node.op == "transpose" for node in nodes) == left


def test_parts_and_their_concatenation() -> None:
    build = Builder()
    last = turned(build, "x", LAST)
    build.add("split", [last], "left", axis=-1, sizes=(1, 3))
    build.graph.nodes[-1].outputs.append("right")
    joined = build.add("concat", [build.apply("exp", "right"), "left", last], axis=3)
    turned(build, build.add("softmax", [joined], axis=3, log=False), FIRST, output="y")
    nodes = check(build, channels_first=True)
    assert not any(node.op == "transpose" for node in nodes)


def test_another_reader_of_channels_last_values_keeps_its_transposition() -> None:
    build = Builder(["y", "z"])
    last = build.apply("exp", turned(build, "x", LAST))
    turned(build, build.apply("neg", last), FIRST, output="y")
    build.add("reshape", [last], "z", shape=(0, SIZE * SIZE * CHANNELS))
    nodes = check(build, channels_first=True)
    assert sum(node.op == "transpose" for node in nodes) == 1


@pytest.mark.parametrize("shape", [
    (), (1,), (1, 1, 1, 1), (2,), (1, 2), (2, 1), (3, 1, 1), (3, 1, 2), (1, 3, 2, 2)])
def test_constants_are_moved_as_the_images_are(shape: tuple[int, ...]) -> None:
    """Width and channels are of one size, so that a constant would fit the wrong one."""
    build = Builder()
    build.graph.inputs[0] = type(build.graph.inputs[0])("x", (None, 2, 3, 2))
    last = build.apply("exp", turned(build, "x", LAST))
    turned(build, build.apply("mul", last, build.constant(*shape)), FIRST, output="y")
    check(build, ["elementwise"], channels_first=True)


def test_nothing_is_moved_for_nothing() -> None:
    build = Builder()
    last = build.apply("exp", turned(build, "x", LAST))
    build.add("reshape", [last], "y", shape=(0, SIZE * SIZE * CHANNELS))
    check(build, ["transpose", "elementwise", "reshape"], channels_first=True)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(
    st.sampled_from(["turn", "product", "scale", "relu", "join", "mean", "both"]),
    st.integers(0, 5), st.integers(0, 5), st.integers(0, 23)), min_size=1, max_size=12))
def test_random_networks_keep_their_results(steps: list[tuple[str, int, int, int]]) -> None:
    """Each step reads values that earlier steps have made; a layer is left out where these do not
    fit it. Batch, height and width differ from the channels, so that a wrong order shows."""
    build = Builder()
    values = [("x", (0, 1, 2, 3))]
    sizes = (None, CHANNELS, SIZE, SIZE + 1)
    build.graph.inputs[0] = type(build.graph.inputs[0])("x", sizes)
    orders = [(0, *rest) for rest in itertools.permutations((1, 2, 3))]
    for op, first, second, number in steps:
        (a, order), (b, other) = values[first % len(values)], values[second % len(values)]
        if op == "turn":
            permutation = orders[number % len(orders)]
            values.append((turned(build, a, permutation), tuple(order[i] for i in permutation)))
        elif op == "product" and order[-1] == 1:
            values.append((product(build, a), order))
        elif op == "scale":
            values.append((build.apply("mul", a, build.constant(sizes[order[3]])), order))
        elif op == "relu":
            values.append((build.apply("relu", a), order))
        elif op == "mean":
            values.append((build.apply("sub", a, build.build.reduce(
                a, "mean", axes=(number % 3 + 1,), name=f"m{len(values)}",
                output=f"m{len(values)}")), order))
        elif op == "both" and order == other:
            values.append((build.apply("add", a, b), order))
        elif op == "join" and order == other:
            joined = build.add("concat", [a, b], axis=order.index(2))
            build.add("slice", [joined], starts=(SIZE - 1,), ends=(2 * SIZE - 1,),
                      axes=(order.index(2),), steps=(1,))
            values.append((build.graph.nodes[-1].outputs[0], order))
    a, order = values[-1]
    build.apply("neg", a, output="y")
    check(build, channels_first=True)
