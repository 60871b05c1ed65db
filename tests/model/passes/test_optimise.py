"""Each rewrite happens where it should, not where it must not, and keeps the results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gossamer.errors import ModelError
from gossamer.expression import identity
from gossamer.model.graph import ValueInfo
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from tests.model.executor import execute
from tests.model.graph_builder import CHANNELS, SIZE, Builder, check
from tests.tolerances import FLOAT32, normalised_error


def test_equal_nodes_are_computed_once(build: Builder) -> None:
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
def test_splits_into_other_parts_are_not_equal(build: Builder,
                                               outputs: Sequence[tuple[str, ...]]) -> None:
    for names in outputs:
        build.add("split", ["x"], axis=1, sizes=None)
        build.graph.nodes[-1].outputs = list(names)
    parts = [name for names in outputs for name in names if name]
    # in their own order they would be read in one piece
    build.add("concat", parts[::-1], "y", axis=1)
    check(build, ["split", "split", "concat"])


def test_equal_splits_are_computed_once(build: Builder) -> None:
    for names in ("ab", "cd"):
        build.add("split", ["x"], axis=1, sizes=None)
        build.graph.nodes[-1].outputs = list(names)
    build.add("concat", ["d", "a", "c"], "y", axis=1)
    *_, concat = check(build, ["split", "concat"])
    assert concat.inputs == ["b", "a", "a"]


def test_arrays_that_print_alike_are_not_equal(build: Builder) -> None:
    """Two neighbours in float32 at 0.0123, which NumPy prints as 0.01234568."""
    value = np.float32(0.0123456789)
    shape = build.add("shape", ["x"], start=0, end=None)
    filled = [build.add("constant_of_shape", [shape], value=np.array(v, np.float32))
              for v in (value, np.nextafter(value, np.float32(1)))]
    build.add("concat", filled, "y", axis=1)
    values = resolve(optimise(build.graph), 1).constants["y"]
    assert len(np.unique(values)) == 2


def test_a_scalar_that_widens_the_result_is_kept(build: Builder) -> None:
    build.apply("add", "x", build.scalar(2, 1, 1, 1, 1, 1), output="y")
    (node,) = check(build, ["elementwise"])
    assert len(node.inputs) == 2


def test_constants_are_folded(build: Builder) -> None:
    weight = build.add("transpose", [build.constant(3, 3, CHANNELS, CHANNELS)],
                       permutation=(3, 2, 0, 1))
    doubled = build.apply("add", weight, weight)
    build.add("conv2d", ["x", doubled], "y", strides=(1, 1), pads=(0,) * 4, dilations=(1, 1),
              groups=1, epilogue=identity())
    check(build, ["conv2d"])


def pads_of_size(build: Builder) -> str:
    """Returns pads of [0, 0, 1, 2, 0, 0, 0, 1] that are computed from the image's size."""
    numbers = {"last": [SIZE - 1, SIZE - 2], "size": [SIZE, SIZE - 1], "none": [0, 0]}
    for name, values in numbers.items():
        build.graph.constants[name] = np.array(values)
    size = build.add("shape", ["x"], start=2, end=4)
    before, after = (build.apply("sub", size, name) for name in ("last", "size"))
    return build.add("concat", ["none", before, "none", after], axis=0)


@pytest.mark.parametrize("of_size", [False, True])
def test_zero_pads_go_into_the_convolution(build: Builder, of_size: bool) -> None:
    if of_size:
        padded = build.add("pad", ["x", pads_of_size(build)], mode="constant")
    else:
        padded = build.add("pad", ["x"], pads=(0, 0, 1, 2, 0, 0, 0, 1), mode="constant", value=0.0)
    build.conv(padded, "y", pad=1)
    (node,) = check(build, ["conv2d"])
    assert node.attributes["pads"] == (2, 3, 1, 2)


def test_pads_that_follow_from_an_open_size_stay(build: Builder) -> None:
    build.conv(build.add("pad", ["x", pads_of_size(build)], mode="constant"), "y", pad=1)
    graph = build.build.finish()
    graph.inputs = [ValueInfo("x", (None, CHANNELS, None, SIZE))]
    assert [node.op for node in optimise(graph).nodes][-2:] == ["pad", "conv2d"]


@pytest.mark.parametrize(("pads", "mode", "value"), [
    ((0, 0, 1, 1, 0, 0, 1, 1), "constant", 1.0), ((0, 0, 1, 1, 0, 0, 1, 1), "edge", 0.0),
    ((0, 0, -1, 0, 0, 0, 0, 0), "constant", 0.0), ((1, 0, 1, 1, 0, 0, 1, 1), "constant", 0.0),
])
def test_other_pads_stay(build: Builder, pads: tuple[int, ...], mode: str, value: float) -> None:
    build.conv(build.add("pad", ["x"], pads=pads, mode=mode, value=value), "y")
    check(build, ["pad", "conv2d"])


def test_matrix_product_becomes_a_gemm_with_an_epilogue(build: Builder) -> None:
    flat = build.add("flatten", ["x"], axis=1)
    product = build.add("matmul", [flat, build.constant(CHANNELS * SIZE * SIZE, 3)])
    build.apply("relu", build.apply("add", product, build.constant(3)), output="y")
    check(build, ["flatten", "gemm"])


def test_casts_that_change_numbers_stay(build: Builder) -> None:
    whole = build.add("cast", ["x"], dtype="int32")
    like = build.add("cast_like", ["x", build.build.constant("like", np.zeros(1, np.int32))])
    build.apply("add", *[build.add("cast", [value], dtype="float32") for value in (whole, like)],
                output="y")
    check(build)


def test_identities_and_dead_nodes_go(build: Builder) -> None:
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
    result = execute(resolve(optimise(graph), 1), {"x": x})["z"]
    assert normalised_error(result, expected) <= FLOAT32
    check(build)


def test_a_product_with_a_weight_that_is_no_matrix_is_refused_when_resolving(
        build: Builder) -> None:
    flat = build.add("flatten", ["x"], axis=1)
    product = build.add("gemm", [flat, build.constant(CHANNELS * SIZE * SIZE)], trans_a=False,
                        trans_b=False, epilogue=identity())
    build.apply("relu", product, output="y")
    better = optimise(build.graph)
    with pytest.raises(ModelError, match="expected matrices"):
        resolve(better, 1)


@pytest.mark.parametrize("kind", ["transposed", "by a value"])
def test_other_products_of_more_dimensions_are_no_gemm(build: Builder, kind: str) -> None:
    b = build.constant(SIZE, SIZE)
    if kind == "by a value":
        b = build.add("reshape", [build.mean("x")], shape=(-1, CHANNELS))
    build.add("gemm", ["x", b], "y", trans_a=kind == "transposed", trans_b=False,
              epilogue=identity())
    with pytest.raises(ModelError, match="expected matrices"):
        resolve(build.graph, 1)


def test_layers_without_output_channels_give_nothing() -> None:
    build = Builder(("y", "z"))
    none = build.apply("sign", build.norm(build.conv("x", out=0), channels=0), output="y")
    build.conv(build.norm(build.conv(none, into=0, out=0), channels=0), "z", into=0, out=2)
    check(build)
    assert resolve(optimise(build.graph), 1).shapes["y"] == (1, 0, SIZE, SIZE)
