"""Products of images of one pixel become convolutions, and images are transposed instead of rows of
tokens, where nothing else reads them, and there alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gossamer.model.graph import ValueInfo
from gossamer.model.passes.optimise import optimise
from tests.model.graph_builder import CHANNELS, SIZE, Builder, check

MEANS: dict[str, Callable[[Builder], str]] = {
    "flattened": lambda build: build.add("flatten", [build.mean("x")], axis=1),
    "reshaped": lambda build: build.add("reshape", [build.mean("x")], shape=(-1, CHANNELS)),
    "reduced": lambda build: build.add("reduce", ["x"], kind="mean", axes=(-1, 2), keepdims=False),
}
PIXELS: dict[str, Callable[[Builder, str], str]] = {
    "unsqueezed": lambda build, x: build.add("unsqueeze", [x], axes=(2, 3)),
    "reshaped": lambda build, x: build.add("reshape", [x], shape=(0, CHANNELS, 1, 1)),
}


def product(build: Builder, x: str, into: int, out: int, *, trans_b: bool = True) -> str:
    weight = build.constant(*((out, into) if trans_b else (into, out)))
    y = build.build.gemm(x, weight, trans_b=trans_b, output=f"product{len(build.graph.nodes)}")
    return build.apply("add", y, build.constant(out))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("pixel", PIXELS)
def test_gates_of_products_become_those_of_convolutions(build: Builder, mean: str,
                                                        pixel: str) -> None:
    squeezed = build.apply("relu", product(build, MEANS[mean](build), CHANNELS, 3))
    gates = product(build, squeezed, 3, CHANNELS, trans_b=False)
    gates = build.apply("sigmoid", PIXELS[pixel](build, gates))
    build.apply("mul", "x", gates, output="y")
    nodes = check(build, ["reduce", "conv2d", "conv2d", "elementwise"])
    assert nodes[0].attributes["keepdims"]


@pytest.mark.parametrize("pixel", PIXELS)
def test_means_stay_images_before_convolutions(build: Builder, pixel: str) -> None:
    build.conv(PIXELS[pixel](build, MEANS["reduced"](build)), "y", size=1)
    check(build, ["reduce", "conv2d"])


def test_means_that_others_read_stay_matrices() -> None:
    build = Builder(("y", "z"))
    mean = build.add("reduce", ["x"], "z", kind="mean", axes=(2, 3), keepdims=False)
    build.conv(PIXELS["unsqueezed"](build, mean), "y", size=1)
    check(build, ["reduce", "unsqueeze", "conv2d"])


def test_gates_that_become_pixels_in_two_steps(build: Builder) -> None:
    gates = product(build, MEANS["flattened"](build), CHANNELS, CHANNELS)
    for axis in (2, 3):
        gates = build.add("unsqueeze", [gates], axes=(axis,))
    build.apply("mul", "x", gates, output="y")
    check(build)


def test_means_of_other_dimensions_stay_matrices(build: Builder) -> None:
    mean = build.add("reduce", ["x"], kind="mean", axes=(1, 2), keepdims=False)
    y = product(build, mean, SIZE, CHANNELS)
    build.conv(PIXELS["reshaped"](build, y), "y", size=1)
    check(build, ["reduce", "gemm", "reshape", "conv2d"])


def test_products_of_whole_images_stay(build: Builder) -> None:
    flat = build.add("flatten", ["x"], axis=1)
    y = product(build, flat, 25 * CHANNELS, CHANNELS)
    build.conv(PIXELS["reshaped"](build, y), "y", size=1)
    check(build, ["flatten", "gemm", "reshape", "conv2d"])


def test_sums_with_values_of_the_data_stay_products(build: Builder) -> None:
    build.graph.inputs += [ValueInfo(name, (None, CHANNELS)) for name in "zr"]
    y = build.apply("add", product(build, "z", CHANNELS, CHANNELS), "z")
    build.apply("mul", PIXELS["unsqueezed"](build, y), PIXELS["reshaped"](build, "r"), output="y")
    graph = build.build.finish()
    assert [node.op for node in optimise(graph).nodes] == [
        "gemm", "unsqueeze", "reshape", "elementwise"]


def summed(build: Builder, *axes: int) -> str:
    return build.add("reduce", ["x"], kind="sum", axes=axes, keepdims=False)


OTHER_PRODUCTS: dict[str, Callable[[Builder, str], str]] = {
    "weights of the data": lambda build, mean: build.build.gemm(
        mean, summed(build, 0, 2), output="product"),
    "a sum with the data": lambda build, mean: build.build.gemm(
        mean, build.constant(CHANNELS, CHANNELS), summed(build, 0, 2, 3), output="product"),
    "transposed means": lambda build, mean: build.build.gemm(
        mean, build.constant(2, CHANNELS), trans_a=True, output="product"),
    "a softmax": lambda build, mean: build.add(
        "softmax", [product(build, mean, CHANNELS, CHANNELS)], axis=1, log=False),
}


@pytest.mark.parametrize("made", OTHER_PRODUCTS)
def test_products_that_no_convolution_computes_stay(build: Builder, made: str) -> None:
    build.graph.inputs[0] = ValueInfo("x", (2, CHANNELS, SIZE, SIZE))
    y = OTHER_PRODUCTS[made](build, MEANS["flattened"](build))
    build.apply("relu", PIXELS["unsqueezed"](build, y), output="y")
    ops = [node.op for node in optimise(build.build.finish()).nodes]
    assert "gemm" in ops and "conv2d" not in ops


def test_tokens_of_an_image_and_an_image_of_tokens(build: Builder) -> None:
    columns = build.add("reshape", [build.pool("x")], shape=(0, CHANNELS, -1))
    tokens = build.add("transpose", [columns], permutation=(0, 2, 1))
    product = build.add("matmul", [tokens, build.constant(CHANNELS, CHANNELS)])
    turned = build.add("transpose", [product], permutation=(0, 2, 1))
    build.pool(build.add("reshape", [turned], shape=(0, CHANNELS, SIZE, SIZE)), output="y")
    nodes = check(build, ["pool", "transpose", "reshape", "gemm", "reshape", "transpose", "pool"],
                  channels_first=True)
    assert [node.attributes["permutation"] for node in nodes if node.op == "transpose"] == [
        (0, 2, 3, 1), (0, 3, 1, 2)]


@pytest.mark.parametrize("shape", [(0, SIZE, CHANNELS * SIZE), (0, 2, SIZE**2 * CHANNELS // 2)])
def test_other_reshapes_stay_as_they_are(build: Builder, shape: tuple[int, ...]) -> None:
    columns = build.add("reshape", [build.pool("x")], shape=shape)
    turned = build.add("transpose", [columns], permutation=(0, 2, 1))
    build.add("reshape", [build.apply("exp", turned)], "y", shape=(0, CHANNELS, SIZE, SIZE))
    check(build, ["pool", "reshape", "transpose", "elementwise", "reshape"], channels_first=True)


@pytest.mark.parametrize(("permutation", "shape"), [
    ((0, 1, 2), (0, CHANNELS, SIZE, SIZE)), ((0, 2, 1), (0, CHANNELS * SIZE, SIZE)),
    (None, (-1, CHANNELS, SIZE, SIZE))])
def test_tokens_that_stay_tokens_are_no_image(
        build: Builder, permutation: tuple[int, ...] | None, shape: tuple[int, ...]) -> None:
    columns = build.add("reshape", [build.pool("x")], shape=(0, CHANNELS, -1))
    tokens = build.add("transpose", [columns], permutation=(0, 2, 1))
    moved = build.add("transpose", [build.apply("exp", tokens)], permutation=permutation)
    build.apply("neg", build.add("reshape", [moved], shape=shape), output="y")
    check(build, channels_first=True)


def test_tokens_of_several_rows_of_an_image_are_no_image(build: Builder) -> None:
    """The reshape to an image after the transposition has other channels than the tokens."""
    columns = build.add("reshape", [build.pool("x")], shape=(0, SIZE**2, CHANNELS))
    turned = build.add("transpose", [columns], permutation=(0, 2, 1))
    build.pool(build.add("reshape", [turned], shape=(0, SIZE, SIZE, CHANNELS)), output="y")
    check(build, ["pool", "reshape", "transpose", "reshape", "pool"], channels_first=True)
