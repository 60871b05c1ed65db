"""Graphs that are written as ONNX compute the same there, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.errors import UnsupportedError
from gossamer.expression import FUNCTIONS, apply
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.model.onnx_writer import to_onnx
from tests.model.onnx_models import runtime
from tests.tolerances import normalised_error

Layer = Callable[[GraphBuilder, str], str]


def network(layer: Layer) -> Graph:
    build = GraphBuilder("net")
    build.output(layer(build, build.input("x", (None, 4, 6, 5))), (None, None, None, None))
    return build.finish()


def sliced(build: GraphBuilder, x: str) -> str:
    return build.add("slice", [x], starts=(1, 5), ends=(4, 0), axes=(1, 2), steps=(2, -2))


def padded(build: GraphBuilder, x: str) -> str:
    return build.add("pad", [x], pads=(0, 1, 2, 0, 0, 0, 1, 3), mode="constant", value=0.0)


def reduced(build: GraphBuilder, x: str, **attributes: Any) -> str:
    return build.reduce(x, **attributes)


@pytest.mark.parametrize("layer", [
    sliced, padded, lambda build, x: build.resize(x, (1, 1, 2, 3)),
    lambda build, x: build.add("transpose", [x], permutation=(0, 3, 1, 2)),
    lambda build, x: build.reshape(x, (0, 2, 2, 30)),
    *[partial(reduced, kind=kind, axes=axes, keepdims=keepdims) for kind in ("mean", "max")
      for axes in ((1, 3), "spatial") for keepdims in (True, False)],
    lambda build, x: build.pool(x, "max", (3, 3), pads=(1, 1, 1, 1)),
    lambda build, x: build.pool(x, "max", (2, 2), strides=(2, 1), dilations=(2, 1)),
    lambda build, x: build.pool(x, "average", (3, 2), pads=(1, 0, 1, 1), count_include_pad=True),
    lambda build, x: build.pool(x, "average", (2, 2), strides=(2, 2), pads=(1, 1, 0, 0),
                                ceil_mode=True),
    lambda build, x: build.softmax(x, axis=2, log=True),
    lambda build, x: build.concat([x, build.apply("exp", x)], axis=2),
    lambda build, x: build.gemm(build.flatten(x, axis=3), build.constant("w", np.eye(
        4, 5) - 0.5), trans_b=True)])
def test_layers_that_move_numbers(layer: Layer) -> None:
    check(network(layer), np.random.default_rng(0).standard_normal((2, 4, 6, 5)))


@pytest.mark.parametrize("name", ["neg", "abs", "exp", "log", "sqrt", "tanh", "erf", "sigmoid",
                                  "relu", "leaky_relu", "clip", "sin", "cos", "tan", "atan",
                                  "add", "sub", "mul", "div", "pow", "min", "max", "less", "where",
                                  "less_equal", "greater", "greater_equal", "equal", "floor",
                                  "sign", "hard_sigmoid", "fma", "prelu", "and", "not"])
def test_functions(name: str) -> None:
    constants = {"leaky_relu": (0.1,), "clip": (0.2, 0.9), "hard_sigmoid": (0.2, 0.5)}.get(name, ())
    arity, least = FUNCTIONS[name].arity, 0.01 if name in ("log", "sqrt", "div", "pow") else -0.5
    check(network(lambda build, x: build.apply(name, *[build.apply(
        "relu", x), x, build.apply("neg", x)][arity == 1:][:arity], constants=constants)),
          np.random.default_rng(0).uniform(least, 1, (2, 4, 6, 5)))


def check(graph: Graph, x: np.ndarray) -> None:
    x = x.astype(np.float32)
    (expected,) = runtime(to_onnx(graph), {"x": x})
    y = gossamer.compile(graph, "host")(x)
    assert y.shape == expected.shape and normalised_error(y, expected) <= 1e-6


@pytest.mark.parametrize("layer", [
    lambda build, x: build.resize(x, (1, 1, 2, 2), mode="linear"),
    lambda build, x: build.resize(x, sizes=(1, 4, 12, 10)),
    lambda build, x: build.reduce(x, "sum", (2, 3)), lambda build, x: build.reduce(x, "sum"),
    lambda build, x: build.add("pad", [x], pads=(0,) * 8, mode="reflect", value=0.0),
    lambda build, x: build.elementwise(apply("to_bfloat16"), x)])
def test_layers_without_a_form(layer: Layer) -> None:
    with pytest.raises(UnsupportedError, match="net: no ONNX nodes for "):
        to_onnx(network(layer))
