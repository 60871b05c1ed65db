"""Layers between transpositions compute on channels-first images, and arithmetic comes before the
transposition of an operand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gossamer.model.graph import ValueInfo
from gossamer.model.passes.optimise import optimise
from tests.model.graph_builder import CHANNELS, SIZE, Builder, check

LAST, FIRST, SWAPPED = (0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)


def turned(build: Builder, x: str, permutation: tuple[int, ...], output: str = "") -> str:
    return build.add("transpose", [x], output, permutation=permutation)


def product(build: Builder, x: str) -> str:
    return build.add("matmul", [x, build.constant(CHANNELS, CHANNELS)])


def test_a_block_of_products_becomes_convolutions(build: Builder) -> None:
    last = turned(build, build.conv("x"), LAST)
    hidden = build.apply("relu", build.apply("add", product(build, last), build.constant(CHANNELS)))
    scaled = build.apply("mul", product(build, hidden), build.constant(CHANNELS))
    build.apply("add", "x", turned(build, scaled, FIRST), output="y")
    check(build, ["conv2d", "conv2d", "conv2d"], channels_first=True)


def test_only_where_it_is_asked_for(build: Builder) -> None:
    turned(build, product(build, turned(build, "x", LAST)), FIRST, output="y")
    check(build, ["transpose", "gemm", "transpose"])


def test_a_normalisation_by_reductions(build: Builder) -> None:
    last = turned(build, "x", LAST)
    mean = build.build.reduce(last, "mean", axes=(-1,), name="mean", output="mean")
    turned(build, build.apply("sub", last, mean), FIRST, output="y")
    check(build, ["reduce", "elementwise"], channels_first=True)


@pytest.mark.parametrize(("axes", "left"), [((1, 2), 0), ((1,), 1), ((3,), 0), ((2,), 1)])
def test_reductions_that_drop_dimensions(build: Builder, axes: tuple[int, ...], left: int) -> None:
    """The dimensions that remain must be in the same order in both images."""
    last = turned(build, build.apply("exp", "x"), LAST)
    build.add("reduce", [build.apply("neg", last)], "y", kind="sum", axes=axes, keepdims=False)
    nodes = check(build, channels_first=True)
    assert sum(node.op == "transpose" for node in nodes) == left


@pytest.mark.parametrize("axes", [(1,), (2,), (3,), (1, 2), (-1, -3), None])
def test_reductions_that_keep_dimensions(axes: tuple[int, ...] | None) -> None:
    assert _left(lambda build, x: build.add(
        "reduce", [x], kind="max", axes=axes, keepdims=True)) == (2 if axes is None else 0)


def test_parts_and_their_concatenation(build: Builder) -> None:
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
def test_constants_are_moved_as_the_images_are(build: Builder, shape: tuple[int, ...]) -> None:
    """Width and channels are of one size, so that a constant would fit the wrong one."""
    build.graph.inputs[0] = ValueInfo("x", (None, 2, 3, 2))
    last = build.apply("exp", turned(build, "x", LAST))
    turned(build, build.apply("mul", last, build.constant(*shape)), FIRST, output="y")
    check(build, ["elementwise"], channels_first=True)


def _left(change: Callable[[Builder, str], str]) -> int:
    """Returns how many transpositions remain around a change of a channels-last image, whose
    height, width and channels differ."""
    build = Builder()
    build.graph.inputs[0] = ValueInfo("x", (None, CHANNELS, SIZE, SIZE + 1))
    last = build.apply("exp", turned(build, "x", LAST))
    turned(build, build.apply("neg", change(build, last)), FIRST, output="y")
    return sum(node.op == "transpose" for node in check(build, channels_first=True))


@pytest.mark.parametrize(("axes", "sizes", "left"), [
    ((-1,), (CHANNELS,), 0), ((3,), (CHANNELS,), 0), (-1, (CHANNELS,), 0),
    ((2, 3), (SIZE + 1, CHANNELS), 2), (2, (SIZE + 1, CHANNELS), 2), ((2,), (SIZE + 1,), 2)])
def test_normalisations_along_the_channels(axes: int | tuple[int, ...], sizes: tuple[int, ...],
                                           left: int) -> None:
    assert _left(lambda build, x: build.add(
        "layer_norm", [x, build.constant(*sizes), build.constant(*sizes)], axes=axes, epsilon=1e-5,
        centred=True)) == left


@pytest.mark.parametrize(("axis", "flatten", "left"), [
    (3, False, 0), (-1, False, 0), (1, False, 0), (3, True, 2), (2, True, 2)])
def test_a_softmax_over_all_later_axes_stays(axis: int, flatten: bool, left: int) -> None:
    assert _left(lambda build, x: build.add(
        "softmax", [x], axis=axis, log=False, flatten=flatten)) == left


@pytest.mark.parametrize("change", [
    lambda build, x: build.add("matmul", [x, build.constant(1, CHANNELS, CHANNELS)]),
    lambda build, x: build.add("matmul", [build.constant(SIZE + 1, SIZE + 1), x]),
    lambda build, x: build.add("matmul", [x, build.add(
        "slice", [x], starts=(0,), ends=(CHANNELS,), axes=(2,), steps=(1,))]),
], ids=["several matrices", "a matrix from the left", "a value"])
def test_other_products_stay(change: Callable[[Builder, str], str]) -> None:
    assert _left(change) == 2


def test_a_value_in_another_order_keeps_the_transpositions(build: Builder) -> None:
    build.build.input("z", (None, SIZE, SIZE, CHANNELS))
    last = build.apply("exp", turned(build, "x", LAST))
    turned(build, build.apply("add", last, "z"), FIRST, output="y")
    graph = optimise(build.build.finish(), channels_first=True)
    assert [node.op for node in graph.nodes].count("transpose") == 2


def test_a_constant_of_five_dimensions_stays(build: Builder) -> None:
    last = build.apply("exp", turned(build, "x", LAST))
    five = build.apply("mul", last, build.constant(3, 1, SIZE, SIZE, CHANNELS))
    build.add("transpose", [five], "y", permutation=(0, 1, 4, 2, 3))
    nodes = check(build, channels_first=True)
    assert [node.op for node in nodes].count("transpose") == 2


def test_dimensions_in_reverse_order(build: Builder) -> None:
    reverse = build.add("transpose", [turned(build, build.apply("exp", "x"), LAST)],
                        permutation=None)
    build.add("transpose", [build.apply("neg", reverse)], "y", permutation=None)
    check(build, channels_first=True)


def test_nothing_is_moved_for_nothing(build: Builder) -> None:
    last = build.apply("exp", turned(build, "x", LAST))
    build.add("reshape", [last], "y", shape=(0, SIZE * SIZE * CHANNELS))
    check(build, ["transpose", "elementwise", "reshape"], channels_first=True)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_scaled_keys_are_scaled_before_they_are_transposed(build: Builder,
                                                           shape: tuple[int, ...]) -> None:
    keys = build.apply("mul", turned(build, build.pool("x"), SWAPPED), build.scalar(0.35, *shape))
    build.add("matmul", ["x", keys], "y")
    check(build, ["pool", "elementwise", "transpose", "matmul"])


def test_a_scale_that_is_computed_from_a_shape(build: Builder) -> None:
    size = build.add("cast", [build.add("shape", ["x"], start=-1, end=None)], dtype="float32")
    keys = build.apply("mul", turned(build, build.pool("x"), SWAPPED), build.apply("sqrt", size))
    build.add("matmul", ["x", keys], "y")
    nodes = check(build)
    order = [node.op for node in nodes]
    assert order.index("transpose") == order.index("matmul") - 1
    assert order[order.index("transpose") - 1] == "elementwise"


@pytest.mark.parametrize("case", ["other numbers", "more dimensions", "other dimensions",
                                  "another reader", "output"])
def test_other_arithmetic_stays_where_it_is(case: str) -> None:
    build = Builder(("y", "z") if case in ("another reader", "output") else ("y",))
    x = turned(build, build.pool("x"),
               SWAPPED if case != "other dimensions" else (0, 2, 1, 3))
    factor = build.constant(SIZE) if case == "other numbers" else build.scalar(
        0.35, *[1] * 5 * (case == "more dimensions"))
    scaled = build.apply("mul", x, factor, output="z" if case == "output" else "")
    build.add("matmul", [scaled, build.pool("x")] if case != "other dimensions" else
              [scaled, build.constant(1, 1, SIZE, CHANNELS)], "y")
    if case == "another reader":
        build.pool(scaled, output="z")
    order = [node.op for node in check(build)]
    assert order.index("transpose") + 1 == order.index("elementwise")


@pytest.mark.parametrize("function", ["mul", "div"])
def test_factors_of_products_scale_their_first_operands(build: Builder, function: str) -> None:
    scores = build.add("matmul", ["x", turned(build, build.pool("x"), SWAPPED)])
    build.apply(function, scores, build.constant(CHANNELS, 1, 1, positive=True), output="y")
    check(build, ["pool", "transpose", "elementwise", "matmul"])


@pytest.mark.parametrize("case", [
    "for each row", "divided by", "another reader", "output", "larger", "of a constant"])
def test_other_factors_stay_behind_products(case: str) -> None:
    build = Builder(("y", "z") if case in ("another reader", "output") else ("y",))
    right = build.constant(1, 1, SIZE, SIZE - 1) if case == "larger" else build.pool("x")
    left = build.constant(1, CHANNELS, SIZE, SIZE) if case == "of a constant" else "x"
    scores = build.add("matmul", [left, right], "z" if case == "output" else "")
    factors = build.constant(*((SIZE, 1) if case == "for each row" else (CHANNELS, 1, 1)),
                             positive=True)
    if case == "divided by":
        build.apply("div", factors, scores, output="y")
    else:
        build.apply("mul", scores, factors, output="y")
    if case == "another reader":
        build.pool(scores, output="z")
    order = [node.op for node in check(build)]
    assert order.index("matmul") < order.index("elementwise")
