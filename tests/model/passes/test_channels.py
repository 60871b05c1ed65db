"""Choices, shuffles and concatenations of channels become less."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.model.graph import Node
from tests.model.graph_builder import CHANNELS, SIZE, Builder, check

GROUPS = 2


def shuffled(build: Builder, x: str, output: str = "", height: int = SIZE,
             permutation: tuple[int, ...] | None = (0, 2, 1, 3, 4)) -> str:
    each = CHANNELS // GROUPS
    parted = build.add("reshape", [x], shape=(0, GROUPS, each, height, SIZE * SIZE // height))
    turned = build.add("transpose", [parted], permutation=permutation)
    return build.add("reshape", [turned], output, shape=(-1, CHANNELS, SIZE, SIZE))


def test_a_shuffle_is_one_gather(build: Builder) -> None:
    build.pool(shuffled(build, build.pool("x")), output="y")
    check(build, ["pool", "gather", "pool"])


@pytest.mark.parametrize(("axis", "second"), [(1, "gather"), (2, "split")])
def test_each_part_of_channels_of_a_shuffle_is_a_gather(build: Builder, axis: int,
                                                        second: str) -> None:
    mixed = shuffled(build, build.pool("x"))
    build.add("split", [mixed], "left", axis=axis, sizes=(axis, 3))
    build.graph.nodes[-1].outputs.append("right")
    build.add("concat", [build.pool("right"), build.pool("left")], "y", axis=axis)
    check(build, ["pool", "gather", second, "pool", "pool", "concat"])


@pytest.mark.parametrize(("attributes", "ops"), [
    ({"starts": (1,), "ends": (4,), "axes": (1,), "steps": (2,)}, ["pool", "gather", "pool"]),
    ({"starts": (-3,), "ends": (9,), "axes": (-3,)}, ["pool", "gather", "pool"]),
    ({"starts": (1,), "ends": (4,), "axes": (2,)}, ["pool", "gather", "slice", "pool"]),
])
def test_slices(build: Builder, attributes: dict[str, tuple[int, ...]], ops: list[str]) -> None:
    part = build.add("slice", [shuffled(build, build.pool("x"))], **attributes)
    build.pool(part, output="y")
    check(build, ops)


def test_a_shuffle_of_pixels_too_stays_as_it_is() -> None:
    """A reshape that also changes the height, and a transposition of other dimensions, are no
    shuffles of channels."""
    for options in ({"height": 1}, {"permutation": (0, 2, 1, 4, 3)}, {"permutation": None}):
        build = Builder()
        build.pool(shuffled(build, build.pool("x"), **options), output="y")
        check(build, ["pool", "reshape", "transpose", "reshape", "pool"])


def chosen(build: Builder, x: str, *indices: int, axis: int = 1) -> str:
    order = build.build.constant(f"c{len(build.graph.constants)}", np.array(indices, np.int64))
    return build.add("gather", [x, order], axis=axis)


@pytest.mark.parametrize(("indices", "axis"), [((3, 1), 1), ((0, -1, 0), -3), ((2, 3, 0, 1), 1)])
def test_weights_choose(build: Builder, indices: tuple[int, ...], axis: int) -> None:
    part = chosen(build, build.pool("x"), *indices, axis=axis)
    build.conv(part, "y", into=len(indices), size=1)
    (_, layer) = check(build, ["pool", "conv2d"], for_gpu=True)
    assert layer.inputs[0] == build.graph.nodes[0].outputs[0]


def test_all_readers_choose(build: Builder) -> None:
    part = chosen(build, build.pool("x"), 2, 1)
    left = build.conv(part, into=2, size=1)
    build.apply("add", build.pool(left), build.pool(build.conv(part, into=2, size=1)), output="y")
    nodes = check(build, for_gpu=True)
    assert "gather" not in [node.op for node in nodes]


def test_batch_norms_fold_into_the_new_weights(build: Builder) -> None:
    layer = build.conv(chosen(build, build.pool("x"), 1, 3), into=2, size=1, bias=False)
    build.norm(layer, "y")
    check(build, ["pool", "conv2d"], for_gpu=True)


@pytest.mark.parametrize("case", ["few", "window", "groups", "other axis", "pool", "output",
                                  "signs", "off"])
def test_other_gathers_stay(case: str) -> None:
    build = Builder(("y", "z") if case == "output" else ("y",))
    indices = {"few": (1,), "other axis": (3, 1, 0, 2, 4)}.get(case, (3, 1))
    part = chosen(build, build.pool("x"), *indices, axis=2 if case == "other axis" else 1)
    if case == "output":
        build.graph.nodes[-1].outputs[0] = part = "z"
    if case == "pool":
        build.apply("add", build.pool(part), build.conv(part, into=2, out=2, size=1), output="y")
    else:
        into = CHANNELS if case == "other axis" else len(indices)
        build.conv(part, "y", into=into, size=3 if case == "window" else 1,
                   groups=2 if case == "groups" else 1)
    if case == "signs":
        name = build.graph.nodes[-1].inputs[1]
        build.graph.constants[name] = np.sign(build.graph.constants[name]).astype(np.float32)
    nodes = check(build, for_gpu=case != "off")
    assert "gather" in [node.op for node in nodes]


def joined(build: Builder, *values: str, axis: int = 1, output: str = "") -> str:
    return build.add("concat", values, output, axis=axis)


def parts(build: Builder) -> dict[str, list[str]]:
    """Returns the inputs of each concatenation of the optimised graph by its output."""
    return {node.outputs[0]: node.inputs for node in check(build) if node.op == "concat"}


def test_layers_that_read_all_before_them(build: Builder) -> None:
    features = ["x"]
    for _ in range(3):
        both = joined(build, *features) if len(features) > 1 else "x"
        features.append(build.pool(both))
    features.append(joined(build, *features[:3]))
    joined(build, *features[:4], output="y")
    first, second = features[1:3]
    assert parts(build) == {"v1": ["x", first], "v3": ["v1", second], "y": ["v3", features[3]]}


def test_the_longest_earlier_one_is_read() -> None:
    build = Builder(["y", "z"])
    a, b, c = (build.pool("x"), build.apply("neg", "x"), build.apply("exp", "x"))
    pair, three = joined(build, a, b), joined(build, a, b, c)
    build.apply("neg", pair, output="z")
    joined(build, "x", a, b, c, a, b, three, output="y")
    assert parts(build) == {pair: [a, b], three: [pair, c], "y": ["x", three, pair, three]}


def test_what_was_split_is_read_whole() -> None:
    """A part of it may be read alone beside that."""
    build = Builder(["y", "z"])
    outputs = ["left", "right"]
    build.graph.nodes.append(Node("split", "halves", ["x"], outputs, {"axis": 1, "sizes": (1, 3)}))
    grown = build.pool("right")
    joined(build, *outputs, grown, output="y")
    joined(build, "right", "left", grown, output="z")
    assert parts(build) == {"y": ["x", grown], "z": ["right", "left", grown]}


def test_others_are_left_as_they_are() -> None:
    """These join values in another order, along another axis, or the very same values."""
    build = Builder(["y", "z"])
    a, b = build.pool("x"), build.apply("neg", "x")
    pair = joined(build, a, b, output="z")
    rows = joined(build, a, b, "x", axis=2)
    turned = joined(build, b, a, "x")
    means = [build.mean(value) for value in (pair, rows, turned)]
    joined(build, *means, output="y")
    assert parts(build) == {pair: [a, b], rows: [a, b, "x"], turned: [b, a, "x"], "y": means}


def split(build: Builder, x: str, *sizes: int) -> list[str]:
    first = build.add("split", [x], axis=1, sizes=sizes)
    build.graph.nodes[-1].outputs += [f"{first}.{part}" for part in range(1, len(sizes))]
    return list(build.graph.nodes[-1].outputs)


def silu(build: Builder, x: str, output: str) -> str:
    return build.apply("mul", x, build.apply("sigmoid", x), output=output)


def test_convolutions_of_one_value_are_one(build: Builder) -> None:
    layers = [build.conv("x", out=out, size=3) for out in (2, 1, 3)]
    build.norm(joined(build, *layers), "y", channels=6)
    (layer,) = check(build, ["conv2d"])
    assert layer.outputs == ["y"]


def test_neighbouring_convolutions_of_one_value_are_one(build: Builder) -> None:
    layers = [build.conv("x", size=size) for size in (1, 1, 3)]
    joined(build, build.pool("x"), *layers, output="y")
    check(build, ["conv2d", "pool", "conv2d", "concat"])


def test_convolutions_of_halves_choose_by_weights(build: Builder) -> None:
    halves = split(build, build.pool("x"), 2, 2)
    joined(build, *[build.conv(half, into=2, size=1) for half in halves], output="y")
    check(build, ["pool", "conv2d"], for_gpu=True)
    check(build, ["pool", "split", "conv2d", "conv2d", "concat"])


@pytest.mark.parametrize("case", ["window", "thirds", "another reader", "groups", "bias"])
def test_other_convolutions_stay(case: str) -> None:
    build = Builder(("y", "z") if case == "another reader" else ("y",))
    sizes = (2, 1, 1) if case == "thirds" else (2, 2)
    layers = [build.conv(part, into=size, size=3 if case == "window" else 1,
                         groups=2 if case == "groups" else 1, bias=case != "bias" or not index)
              for index, (part, size) in enumerate(zip(
                  split(build, build.pool("x"), *sizes), sizes, strict=True))]
    if case == "another reader":
        build.pool(layers[0], output="z")
    joined(build, *layers, output="y")
    assert "split" in [node.op for node in check(build, for_gpu=True)]


def test_norms_and_activations_move_into_joined_layers(build: Builder) -> None:
    layers = [build.conv("x", size=size, bias=False) for size in (1, 3)]
    silu(build, build.norm(joined(build, *layers), channels=8), "y")
    check(build, ["conv2d", "conv2d", "concat"])


def test_norms_of_what_others_read_stay() -> None:
    build = Builder(("y", "z"))
    layers = [build.conv("x", size=size) for size in (1, 3)]
    build.pool(layers[0], output="z")
    build.norm(joined(build, *layers), "y", channels=8)
    assert "elementwise" in [node.op for node in check(build)]


@pytest.mark.parametrize("seed", range(30))
def test_random_joined_branches_keep_their_results(seed: int) -> None:
    random = np.random.default_rng(seed)

    def drawn(*choices):
        return choices[random.integers(len(choices))]

    build = Builder(("y", "z"))
    halves = split(build, build.pool("x"), *drawn((2, 2), (1, 3), (1, 1, 2)))
    sizes = build.graph.nodes[-1].attributes["sizes"]
    values, channels = [], []
    for _ in range(random.integers(2, 6)):
        source = int(random.integers(-1, len(halves)))
        into, x = (CHANNELS, "x") if source < 0 else (sizes[source], halves[source])
        out = drawn(1, 2, 3) if random.random() < 0.8 else 0
        values.append(build.conv(x, into=into, out=out, size=drawn(1, 1, 3),
                                 bias=drawn(True, False)) if out else build.pool(x))
        channels.append(out or into)
    result = joined(build, *values)
    if random.random() < 0.7:
        result = build.norm(result, channels=sum(channels))
    if random.random() < 0.7:
        result = drawn(silu, lambda build, x, output: build.apply("relu", x, output=output))(
            build, result, "after")
    build.pool(result, output="y")
    build.pool(drawn(values[0], halves[0], "x"), output="z")
    check(build, for_gpu=bool(seed % 2))
