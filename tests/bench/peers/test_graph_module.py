"""Tests that a graph computes the same as a module of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gossamer.bench.networks import reference
from gossamer.errors import UnsupportedError
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from tests.bench.peers import graphs
from tests.bench.peers.graphs import detector
from tests.tolerances import normalised_error, tolerance

torch = pytest.importorskip("torch")

from gossamer.bench.peers.graph_module import graph_module  # noqa: E402


def test_detectors() -> None:
    graph = detector()
    x = np.random.default_rng(5).standard_normal((2, 4, 8, 8), np.float32)
    results = graph_module(graph, 2)(torch.from_numpy(x))
    assert [tuple(y.shape) for y in results] == [(2, 5, 8, 8), (2, 6, 4, 4)]
    assert normalised_error(results[0].numpy(), reference(graph, x)) < tolerance("network")


@pytest.mark.parametrize("shape", [(3, 6), (3, 7, 6), (2, 3, 7, 6)], ids=len)
def test_products_of_any_rank(shape: tuple[int, ...]) -> None:
    build = GraphBuilder("products")
    random = np.random.default_rng(3)
    x = build.input("x", (None, *shape))
    y = build.add("matmul", [x, build.constant("a", random.standard_normal((6, 6)))])
    y = build.apply("add", y, build.constant("b", random.standard_normal(6)))
    build.output(build.apply("add", build.apply("relu", y), x), (None, *shape))
    check(build.finish())


@pytest.mark.parametrize("numbers", [(), (0,), (1,)])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "min", "max", "less",
                                  "less_equal", "greater", "greater_equal"])
def test_functions_of_tensors_and_a_number(name: str, numbers: tuple[int, ...]) -> None:
    build = GraphBuilder("functions")
    inputs = [build.input("x", (None, 3)), build.constant("c", np.float32([2, 0.5, 0.75]))]
    for index in numbers:
        inputs[index] = build.constant("number", np.float32(0.5))
    if 0 in numbers:
        inputs[1] = "x"
    build.output(build.apply(name, *inputs), (None, 3))
    graph = build.finish()
    x = np.float32([[0.5, 1, 0.25], [4, 0.5, 0.75]])
    for dtype in (torch.float32, torch.float16):
        result = graph_module(graph, 2).to(dtype)(torch.from_numpy(x).to(dtype))
        assert result.dtype == dtype
        assert normalised_error(result.numpy(), reference(graph, x)) < 1e-3


def test_an_op_without_a_form_is_named() -> None:
    build = GraphBuilder("image")
    y = build.resize(build.input("x", (None, 4, 7, 6)), (1, 1, 2, 2), mode="linear")
    build.output(y, (None, 4, 14, 12))
    with pytest.raises(UnsupportedError, match=r"image: .*\(resize\) cannot be translated to"):
        graph_module(build.finish(), 1)


@pytest.mark.parametrize("centred", [True, False])
def test_norms_and_gathers(centred: bool) -> None:
    build = GraphBuilder("norms")
    random = np.random.default_rng(3)
    x = build.input("x", (None, 4, 6))
    norm = build.add("layer_norm", [x, build.constant("scale", random.standard_normal(6)),
                                    build.constant("bias", random.standard_normal(6))],
                     axes=(-1,), epsilon=1e-5, centred=centred)
    order = build.constant("order", np.array([3, 0, 2], np.int64))
    build.output(build.add("gather", [norm, order], axis=1), (None, 3, 6))
    check(build.finish())


def check(graph: Graph, *, refused: bool = False) -> Any:
    """Compares a graph as a module of PyTorch with the reference, and returns the module."""
    if refused:
        with pytest.raises(UnsupportedError, match="cannot be translated to PyTorch"):
            graph_module(graph, 2)
        return None
    x = np.random.default_rng(5).standard_normal((2, *graph.inputs[0].shape[1:]), np.float32)
    module = graph_module(graph, 2)
    result = module(torch.from_numpy(x))
    assert normalised_error(result.numpy(), reference(graph, x)) < tolerance("network")
    return module


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups, stride, pads, dilation", graphs.CONVOLUTIONS)
def test_convolutions(groups: int, stride: Any, pads: Any, dilation: Any, bias: bool) -> None:
    build, x = graphs.image()
    y = build.conv2d(x, graphs.constant(build, "w", 8, 4 // groups, 3, 3),
                     *[graphs.constant(build, "b", 8)] * bias, strides=stride, pads=pads,
                     dilations=dilation, groups=groups)
    check(graphs.finished(build, y, 8, None, None))


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("kernel, strides, pads, ceil_mode, counts_pads", graphs.POOLS)
def test_pools(kind: str, kernel: Any, strides: Any, pads: Any, ceil_mode: bool,
               counts_pads: bool) -> None:
    build, x = graphs.image(3, 8, 7)
    y = build.pool(x, kind, kernel, strides=strides, pads=pads, ceil_mode=ceil_mode,
                   count_include_pad=counts_pads)
    uneven = pads[:2] != pads[2:]
    check(graphs.finished(build, y, 3, None, None),
          refused=uneven and (ceil_mode or kind == "average"))


@pytest.mark.parametrize("kind", ["mean", "max", "sum"])
@pytest.mark.parametrize("axes, keepdims, shape", graphs.REDUCTIONS)
def test_reductions(kind: str, axes: Any, keepdims: bool, shape: Any) -> None:
    build, x = graphs.image()
    check(graphs.finished(build, build.reduce(x, kind, axes, keepdims=keepdims), *shape))


@pytest.mark.parametrize("name", graphs.MOVES)
def test_what_moves_numbers_about(name: str) -> None:
    build, x = graphs.image()
    y = graphs.MOVES[name](build, build.apply("add", x, graphs.constant(
        build, "first", 1, 4, 7, 6)))
    y = build.apply("tanh", y)
    check(graphs.finished(build, y, *[None] * (1 if name == "flatten" else 3)),
          refused=name in ("expand", "backwards", "split", "other size"))


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("first", ["add", "mul", "sub", "max"])
def test_an_added_constant_is_the_bias_where_only_it_takes_the_result(
        first: str, twice: bool) -> None:
    build, x = graphs.image()
    layer = build.conv2d(x, graphs.constant(build, "w", 8, 4, 3, 3), pads=(1, 1, 1, 1))
    y = build.apply(first, layer, graphs.constant(build, "b", 8, 1, 1))
    y = build.apply("mul", y, graphs.constant(build, "scale", 8, 1, 1))
    y = build.apply("add", y, layer) if twice else build.apply("relu", y)
    nodes = check(graphs.finished(build, y, 8, 7, 6)).graph.nodes
    (conv,) = (node for node in nodes if node.target is torch.nn.functional.conv2d)
    assert (conv.args[2] is not None) == (first == "add" and not twice)
