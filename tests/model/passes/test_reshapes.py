"""Element-wise nodes move before reshapes of a layer's result where they become its epilogue."""

from __future__ import annotations

import pytest

from tests.model.graph_builder import CHANNELS, SIZE, Builder, check, functions

TOKENS = (0, SIZE * CHANNELS, SIZE)


def tokens(build: Builder) -> str:
    """Add the product of the rows of an image."""
    rows = build.add("reshape", ["x"], shape=TOKENS)
    return build.add("matmul", [rows, build.constant(SIZE, 6)])


def as_matrix(build: Builder, x: str) -> str:
    return build.add("reshape", [x], shape=(-1, 6))


def as_tokens(build: Builder, x: str, output: str = "") -> str:
    return build.add("reshape", [x], output, shape=(-1, *TOKENS[1:2], 6))


def test_tokens_that_are_normalised_as_a_matrix(build: Builder) -> None:
    x = tokens(build)
    y = as_tokens(build, build.norm(as_matrix(build, x), channels=6))
    y = build.apply("add", y, build.apply("exp", build.add(
        "matmul", [build.add("reshape", ["x"], shape=TOKENS), build.constant(SIZE, 6)])))
    y = as_matrix(build, build.apply("relu", y))
    build.add("matmul", [y, build.constant(6, 3)], "y")
    nodes = check(build, ["reshape", "gemm", "gemm", "reshape", "gemm"])
    assert sorted(functions(nodes[1]) + functions(nodes[2])) == [
        "add", "add", "exp", "mul", "relu", "sub"]


def test_activations_of_images_that_are_flattened(build: Builder) -> None:
    y = build.add("flatten", [build.conv("x")], axis=1)
    build.apply("relu", y, output="y")
    check(build, ["conv2d", "flatten"])


@pytest.mark.parametrize("kind", ["vectors", "last dimension", "read twice", "output", "run time"])
def test_other_nodes_stay(kind: str) -> None:
    build = Builder(("y", "v2") if kind == "output" else ("y",))
    if kind == "vectors":  # the last dimension of an image is its width
        y = build.add("reshape", [build.conv("x")], shape=(-1, SIZE))
        build.apply("mul", y, build.constant(SIZE), output="y")
        check(build, ["conv2d", "reshape", "elementwise"])
        return
    if kind == "last dimension":
        y = build.add("reshape", [tokens(build)], shape=(-1, 4))
        build.apply("mul", y, build.constant(4), output="y")
    else:
        y = as_matrix(build, tokens(build))
        z = build.apply("relu", y)
        if kind == "read twice":
            build.apply("mul", build.add("reduce", [y], kind="mean", axes=(0,), keepdims=True), z,
                        output="y")
        elif kind == "run time":
            other = build.add("reshape", [tokens(build)], shape=(-1, 6))
            build.apply("mul", y, build.apply("exp", other), output="y")
        else:
            build.apply("exp", z, output="y")
    assert "elementwise" in [node.op for node in check(build)]


def test_a_value_reshaped_back_is_read_before(build: Builder) -> None:
    y = build.add("reshape", [build.conv("x")], shape=(0, -1))
    y = build.add("reshape", [y], shape=(-1, CHANNELS, SIZE, SIZE))
    build.conv(build.apply("relu", y), "y")
    check(build, ["conv2d", "conv2d"])
