"""Concatenations read what others have joined already."""

from __future__ import annotations

from gossamer.model.graph import Node
from tests.model.graph_builder import Builder, check


def joined(build: Builder, *values: str, axis: int = 1, output: str = "") -> str:
    return build.add("concat", values, output, axis=axis)


def parts(build: Builder) -> dict[str, list[str]]:
    """Returns the inputs of each concatenation of the optimised graph by its output."""
    return {node.outputs[0]: node.inputs for node in check(build) if node.op == "concat"}


def test_layers_that_read_all_before_them() -> None:
    build = Builder()
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
