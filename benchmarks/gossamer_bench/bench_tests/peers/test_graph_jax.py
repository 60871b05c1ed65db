"""Tests that networks compute the same in JAX, op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench_tests.networks import tiny
from gossamer.bench.networks import reference
from gossamer.bench.work import AbsentError, PeerNetwork
from gossamer.device.registry import find
from gossamer.expression import FUNCTIONS, Expression, ExpressionStep, apply
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer_bench.contender import Alternative
from gossamer_bench.peers.inference import PEERS
from gossamer_bench.suites.mobile_networks import MOBILE_NETWORKS
from tests.bench.peers.graphs import (
    CONVOLUTIONS,
    MOVES,
    POOLS,
    REDUCTIONS,
    constant,
    detector,
    finished,
    image,
)
from tests.tolerances import normalised_error, tolerance

pytestmark = pytest.mark.usefixtures("needs_jax")
SHIFTED = Expression(2, (ExpressionStep("add", (0, 1)), ExpressionStep("constant", (), (0.5,)),
                         ExpressionStep("mul", (2, 3))), (2, 4))
"""The sum of two values, and half of it."""
ONE_OF_TWO = Expression(1, (ExpressionStep("constant", (), (0.5,)),
                            ExpressionStep("constant", (), (-0.5,)),
                            ExpressionStep("where", (0, 1, 2))))
"""A number where the value is not 0, and another one where it is."""


def peer(graph: Graph, batch: int = 2, precisions: tuple[str, ...] = ("fp32",)
         ) -> tuple[np.ndarray, list[Alternative]]:
    """Returns an input of a network, and the ways in which JAX runs it on the processor."""
    shape = (batch, *[size or 1 for size in graph.inputs[0].shape[1:]])
    x = np.random.default_rng(5).standard_normal(shape, np.float32)
    return x, PEERS["jax-jit"](PeerNetwork(graph.name, graph), x, find("host"), precisions)


def check(graph: Graph, precisions: tuple[str, ...] = ("fp32", "fp16")) -> None:
    """Checks the first output of a network against float64, in each layout and precision."""
    x, alternatives = peer(graph, precisions=precisions)
    expected = reference(graph, x)
    layouts = ("NCHW", "NHWC") if x.ndim == 4 else ("row",)
    assert [way.label for way in alternatives] == [
        f"{precision}, {layout}" for precision in precisions for layout in layouts]
    for alternative in alternatives:
        ready = alternative.make()
        assert alternative.label == f"{ready.precision}, {ready.layout}"
        ready.work(None)
        result = ready.output(2)
        assert result.dtype == np.float32
        assert normalised_error(result, expected) < tolerance("network", ready.precision)
        assert np.array_equal(ready.output(1), result[:1])


def test_a_network_of_the_suites() -> None:
    check(tiny().graph)


def test_a_whole_network() -> None:
    import jax

    if not hasattr(jax, "__version__"):
        pytest.skip("the stand-in for JAX takes seconds for a whole network")
    check(MOBILE_NETWORKS["mobilenetv3-small"](), ("fp32",))


def test_detectors() -> None:
    check(detector())


@pytest.mark.parametrize("groups, stride, pads, dilation", CONVOLUTIONS)
def test_convolutions(groups: int, stride: Any, pads: Any, dilation: Any) -> None:
    build, x = image()
    y = build.conv2d(x, constant(build, "w", 8, 4 // groups, 3, 3), constant(build, "b", 8),
                     strides=stride, pads=pads, dilations=dilation, groups=groups)
    check(finished(build, y, 8, None, None))


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("kernel, strides, pads, ceil_mode, counts_pads", POOLS)
def test_pools(kind: str, kernel: Any, strides: Any, pads: Any, ceil_mode: bool,
               counts_pads: bool) -> None:
    build, x = image(3, 8, 7)
    y = build.pool(x, kind, kernel, strides=strides, pads=pads, ceil_mode=ceil_mode,
                   count_include_pad=counts_pads)
    check(finished(build, y, 3, None, None))


@pytest.mark.parametrize("kind", ["mean", "max", "sum"])
@pytest.mark.parametrize("axes, keepdims, shape", REDUCTIONS)
def test_reductions(kind: str, axes: Any, keepdims: bool, shape: Any) -> None:
    build, x = image()
    check(finished(build, build.reduce(x, kind, axes, keepdims=keepdims), *shape))


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_numbers_about(name: str) -> None:
    build, x = image()
    y = MOVES[name](build, build.apply("add", x, constant(build, "first", 1, 4, 7, 6)))
    check(finished(build, build.apply("tanh", y), *[None] * (1 if name == "flatten" else 3)))


def test_products() -> None:
    build = GraphBuilder("products")
    x = build.input("x", (None, 6))
    y = build.gemm(x, constant(build, "a", 6, 5), constant(build, "b", 5))
    left = build.reshape(y, (0, 1, 1, 5))
    y = build.add("matmul", [left, constant(build, "c", 3, 5, 4)])
    check(finished(build, build.softmax(build.reshape(y, (0, 12))), 12))


@pytest.mark.parametrize("shape", [(3, 6), (3, 7, 6), (2, 3, 7, 6)], ids=len)
def test_products_of_any_rank(shape: tuple[int, ...]) -> None:
    build = GraphBuilder("products")
    x = build.input("x", (None, *shape))
    y = build.add("matmul", [x, constant(build, "a", 6, 6)])
    y = build.apply("relu", build.apply("add", y, constant(build, "b", 6)))
    check(finished(build, build.apply("add", y, x), *shape))


def test_an_expression_of_several_results() -> None:
    build, x = image()
    build.add("elementwise", [x, constant(build, "c", 4, 1, 1)], ["whole", "half"],
              expression=SHIFTED)
    check(finished(build, build.concat(["half", "whole"]), 8, 7, 6))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_functions(name: str, dtype: str) -> None:
    import jax

    from gossamer_bench.peers import jax_devices
    from gossamer_bench.peers.expression_jax import evaluate

    function = FUNCTIONS[name]
    arguments = [np.array([-2, -0.5, 0, 0.5, 1, 2.5], dtype)[order] for order in (
        [0, 1, 2, 3, 4, 5], [0, 2, 4, 3, 5, 1], [5, 4, 3, 2, 1, 0])][:function.arity]
    if name in ("pow", "log", "sqrt", "div"):
        arguments = [np.abs(array) + np.array(0.5, dtype) for array in arguments]
    expression = apply(name, *(-0.25, 0.75)[:function.constants])
    with jax.default_device(jax_devices.processor()):
        (result,) = evaluate(expression, [jax.numpy.asarray(array) for array in arguments])
    (expected,) = expression.evaluate(*(array.astype(np.float64) for array in arguments))
    assert name == "constant" or result.dtype == dtype
    # the remainder of a division by 0 is NaN
    assert np.allclose(result, expected, *((1e-2, 1e-3) if dtype == "float16" else (1e-5, 1e-6)),
                       equal_nan=name == "fmod")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_of_two_numbers_has_the_dtype_of_the_condition(dtype: str) -> None:
    import jax

    from gossamer_bench.peers.expression_jax import evaluate

    (result,) = evaluate(ONE_OF_TWO, [jax.numpy.asarray([-2, 0, 3], dtype)])
    assert result.dtype == dtype and result.tolist() == [0.5, -0.5, 0.5]


def test_the_processor_has_filters_in_its_own_order() -> None:
    from gossamer_bench.peers.graph_jax import GraphFunction

    build, x = image()
    y = build.conv2d(x, constant(build, "w", 8, 4, 3, 2))
    graph = finished(build, y, 8, None, None)
    shapes = {(layout, on_processor): GraphFunction(
        graph, 1, layout, "fp32", on_processor=on_processor).weights[0].shape
        for layout in ("NCHW", "NHWC") for on_processor in (True, False)}
    assert shapes == {("NCHW", True): (3, 2, 4, 8), ("NHWC", True): (3, 2, 4, 8),
                      ("NCHW", False): (8, 4, 3, 2), ("NHWC", False): (8, 3, 2, 4)}


def test_a_shuffle_of_channels() -> None:
    build, x = image()
    order = build.constant("order", np.array([3, 0, 2], np.int64))
    check(finished(build, build.add("gather", [x, order], axis=1), 3, 7, 6))


def test_a_filter_that_is_an_operand_too() -> None:
    build, x = image()
    weight = constant(build, "w", 1, 4, 3, 3)
    scaled = build.apply("mul", build.pool(x, "max", (3, 4), strides=(2, 1)), weight)
    check(finished(build, build.apply("add", scaled, build.reduce(
        build.conv2d(x, weight), "max", (2, 3))), 4, 3, 3))


def test_fp32_alone_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer_bench.peers import graph_jax

    strict = graph_jax.lax.Precision.HIGHEST

    def layers(precision: str) -> set[tuple[str, bool]]:
        """Returns the dtypes of convolutions and products, and whether they are strict."""
        found = set()
        for name in ("conv_general_dilated", "dot_general"):
            def noting(x: Any, *others: Any, name: str = name, **options: Any) -> Any:
                found.add((name, str(x.dtype), options["precision"] == strict))
                return called[name](x, *others, **options)

            monkeypatch.setattr(graph_jax.lax, name, noting)
        function = graph_jax.GraphFunction(tiny().graph, 1, "NHWC", precision, on_processor=False)
        function(function.weights, np.zeros((1, 8, 8, 3), function.dtype))
        return {(dtype, is_strict) for _, dtype, is_strict in found if len(found) == 2}

    called = {name: getattr(graph_jax.lax, name) for name in ("conv_general_dilated",
                                                              "dot_general")}
    assert layers("fp32") == {("float32", True)}
    assert layers("tf32") == {("float32", False)}
    assert layers("fp16") == {("float16", False)}


@pytest.mark.parametrize("op, add", [
    ("gather", lambda build, x: build.add(
        "gather", [x, build.constant("i", np.array([[0, 2, 1]], np.int64))], axis=1)),
    ("resize", lambda build, x: build.resize(x, (1, 1, 2, 2), mode="linear")),
    ("pad", lambda build, x: build.add("pad", [x], pads=(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect",
                                       value=0.0))])
def test_an_op_without_a_form_is_named(op: str, add: Callable[[GraphBuilder, str], str]) -> None:
    build, x = image()
    _, alternatives = peer(finished(build, add(build, x), None, None, None))
    with pytest.raises(AbsentError, match=rf"image: .*\({op}\) has no form in JAX here"):
        alternatives[0].make()
