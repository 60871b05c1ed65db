"""Tests that a graph computes the same as a module of PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.bench.reference import reference
from gossamer.errors import UnsupportedError
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from tests.bench.networks import detector
from tests.bench.peers import graphs
from tests.recorded import Recorded
from tests.tolerances import normalised_error, tolerance

pytestmark = pytest.mark.usefixtures("needs_torch")


def test_detectors() -> None:
    import torch

    from gossamer.bench.peers.graph_module import graph_module

    graph = detector()
    x = np.random.default_rng(5).standard_normal((2, 4, 8, 8), np.float32)
    results = graph_module(graph, 2)(torch.from_numpy(x))
    assert [tuple(y.shape) for y in results] == [(2, 5, 8, 8), (2, 6, 4, 4)]
    assert normalised_error(results[0].numpy(), reference(graph, x)) < tolerance("network")


@pytest.mark.parametrize("shape", [(3, 6), (3, 7, 6), (2, 3, 7, 6)], ids=len)
def test_products_of_any_rank(shape: tuple[int, ...]) -> None:
    import torch

    from gossamer.bench.peers.graph_module import graph_module

    build = GraphBuilder("products")
    random = np.random.default_rng(3)
    x = build.input("x", (None, *shape))
    y = build.add("matmul", [x, build.constant("a", random.standard_normal((6, 6)))])
    y = build.apply("add", y, build.constant("b", random.standard_normal(6)))
    build.output(build.apply("add", build.apply("relu", y), x), (None, *shape))
    graph = build.finish()
    images = random.standard_normal((2, *shape)).astype(np.float32)
    result = graph_module(graph, 2)(torch.from_numpy(images)).numpy()
    assert normalised_error(result, reference(graph, images)) < tolerance("network")


@pytest.mark.parametrize("numbers", [(), (0,), (1,)])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "min", "max", "less",
                                  "less_equal", "greater", "greater_equal"])
def test_functions_of_tensors_and_a_number(name: str, numbers: tuple[int, ...]) -> None:
    import torch

    from gossamer.bench.peers.graph_module import graph_module

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
    from gossamer.bench.peers.graph_module import graph_module

    build = GraphBuilder("image")
    y = build.resize(build.input("x", (None, 4, 7, 6)), (1, 1, 2, 2), mode="linear")
    build.output(y, (None, 4, 14, 12))
    with pytest.raises(UnsupportedError, match=r"image: .*\(resize\) has no form in PyTorch here"):
        graph_module(build.finish(), 1)


@pytest.mark.parametrize("centred", [True, False])
def test_norms_and_gathers(centred: bool) -> None:
    import torch

    from gossamer.bench.peers.graph_module import graph_module

    build = GraphBuilder("norms")
    random = np.random.default_rng(3)
    x = build.input("x", (None, 4, 6))
    norm = build.add("layer_norm", [x, build.constant("scale", random.standard_normal(6)),
                                    build.constant("bias", random.standard_normal(6))],
                     axes=(-1,), epsilon=1e-5, centred=centred)
    order = build.constant("order", np.array([3, 0, 2], np.int64))
    build.output(build.add("gather", [norm, order], axis=1), (None, 3, 6))
    graph = build.finish()
    images = random.standard_normal((2, 4, 6)).astype(np.float32)
    result = graph_module(graph, 2)(torch.from_numpy(images)).numpy()
    assert normalised_error(result, reference(graph, images)) < tolerance("network")


def run(graph: Graph) -> str:
    """Runs a graph as a module of PyTorch; returns the reason where it has no form there."""
    import torch

    from gossamer.bench.peers.graph_module import graph_module

    x = np.random.default_rng(5).standard_normal((2, *graph.inputs[0].shape[1:]), np.float32)
    try:
        module = graph_module(graph, 2)
    except UnsupportedError as error:
        return str(error)
    result = module(torch.from_numpy(x))
    result = result[0] if isinstance(result, tuple) else result
    assert normalised_error(result.numpy(), reference(graph, x)) < tolerance("network")
    return "as the reference"


def test_what_is_translated(recorded: Recorded) -> None:
    found = {}
    for groups, stride, pads, dilation in graphs.CONVOLUTIONS:
        for bias in (False, True):
            build, x = graphs.image()
            y = build.conv2d(x, graphs.constant(build, "w", 8, 4 // groups, 3, 3),
                             *[graphs.constant(build, "b", 8)] * bias, strides=stride, pads=pads,
                             dilations=dilation, groups=groups)
            case = f"conv2d {groups} {stride} {pads} {dilation} {bias}"
            found[case] = run(graphs.finished(build, y, 8, None, None))
    for kind in ("max", "average"):
        for kernel, strides, pads, ceil_mode, counts_pads in graphs.POOLS:
            build, x = graphs.image(3, 8, 7)
            y = build.pool(x, kind, kernel, strides=strides, pads=pads, ceil_mode=ceil_mode,
                           count_include_pad=counts_pads)
            found[f"{kind} {kernel} {strides} {pads} {ceil_mode} {counts_pads}"] = run(
                graphs.finished(build, y, 3, None, None))
    for kind in ("mean", "max", "sum"):
        for axes, keepdims, shape in graphs.REDUCTIONS:
            build, x = graphs.image()
            found[f"{kind} {axes} {keepdims}"] = run(graphs.finished(
                build, build.reduce(x, kind, axes, keepdims=keepdims), *shape))
    for name, move in graphs.MOVES.items():
        build, x = graphs.image()
        y = move(build, build.apply("add", x, graphs.constant(build, "first", 1, 4, 7, 6)))
        found[name] = run(graphs.finished(build, build.apply("tanh", y),
                                   *[None] * (1 if name == "flatten" else 3)))
    recorded("graph_modules", found)


def scaled(build: GraphBuilder, x: str, first: str, *, twice: bool = False) -> str:
    """Returns what a layer's epilogue computes from its result."""
    y = build.apply(first, x, graphs.constant(build, "b", 8, 1, 1))
    y = build.apply("mul", y, graphs.constant(build, "scale", 8, 1, 1))
    return build.apply("add", y, x) if twice else build.apply("relu", y)


def test_epilogues(recorded: Recorded) -> None:
    import torch

    from gossamer.bench.peers.graph_module import graph_module

    found = {}
    for first in ("add", "mul", "sub", "max"):
        for twice in (False, True):
            build, x = graphs.image()
            y = build.conv2d(x, graphs.constant(build, "w", 8, 4, 3, 3), pads=(1, 1, 1, 1))
            graph = graphs.finished(build, scaled(build, y, first, twice=twice), 8, 7, 6)
            nodes = graph_module(graph, 2).graph.nodes
            biases = [node.args[2] is not None for node in nodes
                      if node.target is torch.nn.functional.conv2d]
            found[f"{first} {twice}"] = f"{run(graph)} {len(nodes)} calls, biases {biases}"
    recorded("epilogues_of_modules", found)
