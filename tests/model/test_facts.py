"""Value facts of expressions and graphs: no value that is computed contradicts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import gossamer
from gossamer.expression import FUNCTIONS, Expression, ExpressionStep, apply, identity
from gossamer.facts import (
    NONNEGATIVE,
    PLUS_MINUS_ONE,
    REAL,
    TERNARY,
    ValueFacts,
    integers,
    of_array,
    point,
)
from gossamer.model.builder import GraphBuilder
from gossamer.model.facts import derive, stating_nan
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.infer.resolve import resolve
from gossamer.model.opset.elementwise import expression_facts, may_be_nan
from gossamer.model.opset.products import weighted_sums
from tests.model.graph_builder import Builder
from tests.test_facts import facts, grids, ranges, values

CONSTANTS = {"clip": (-1.5, 4.0), "leaky_relu": (0.25,), "hard_sigmoid": (0.2, 0.5),
             "constant": (0.75,)}
EXACT = ("add", "sub", "mul", "min", "max", "less", "equal", "and", "not", "where", "neg", "abs",
         "sign", "relu", "clip", "constant", "floor", "round", "prelu")
SIGNS = [apply("sign"), Expression(1, (
    ExpressionStep("constant", (), (0.0,)), ExpressionStep("greater_equal", (0, 1)),
    ExpressionStep("constant", (), (1.0,)), ExpressionStep("constant", (), (-1.0,)),
    ExpressionStep("where", (2, 3, 4))))]


@st.composite
def expressions(draw: st.DrawFn, inputs: int,
                functions: Sequence[str] = tuple(sorted(FUNCTIONS))) -> Expression:
    steps: list[ExpressionStep] = []
    for _ in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from(functions))
        arguments = [draw(st.integers(0, inputs + len(steps) - 1))
                     for _ in range(FUNCTIONS[name].arity)]
        steps.append(ExpressionStep(name, tuple(arguments), CONSTANTS.get(name, ())))
    return Expression(inputs, tuple(steps), tuple(range(inputs + len(steps))))


@settings(max_examples=200)
@given(expression=expressions(2), operands=st.tuples(facts, facts), seed=st.integers(0, 99))
def test_every_step_of_an_expression(expression: Expression,
                                     operands: tuple[ValueFacts, ValueFacts], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = (values(known, rng) for known in operands)
    arrays = [np.asarray(a) for a in np.broadcast_arrays(x[:, None], y)]
    results = expression.evaluate(*arrays)
    # nothing is said of what is computed from NaN
    numbers = ~np.logical_or.reduce([np.isnan(np.broadcast_to(r, arrays[0].shape))
                                     for r in results])
    for known, result in zip(expression_facts(expression, operands), results, strict=True):
        assert known.holds(np.broadcast_to(result, arrays[0].shape)[numbers])
    arrays[0] = np.where(rng.random(arrays[0].shape) < 0.5, np.float32(np.nan), arrays[0])
    for may_be, result in zip(may_be_nan(expression, operands, [True, False]),
                              expression.evaluate(*arrays), strict=True):
        assert may_be or not np.isnan(result).any()


@settings(max_examples=100)
@given(expression=expressions(1, EXACT), known=grids(), seed=st.integers(0, 99))
def test_arithmetic_of_integers(expression: Expression, known: ValueFacts, seed: int) -> None:
    known = known.mul(point(64)).round()
    x = values(known, np.random.default_rng(seed)).astype(np.int32)
    for array, facts_of_inputs in ((x, known), (np.int32([-2**31, 2**31 - 1, 3]), REAL)):
        results = expression.evaluate(array)
        derived = expression_facts(expression, [facts_of_inputs], integer=True)
        for fact, result in zip(derived, results, strict=True):
            assert fact.holds(result)


@pytest.mark.parametrize(("expression", "expected"), [
    (SIGNS[0], TERNARY), (SIGNS[1], PLUS_MINUS_ONE), (apply("relu"), NONNEGATIVE),
    (apply("clip", 0.0, 6.0), ValueFacts(0, 6)), (apply("sigmoid"), NONNEGATIVE),
    (apply("clip", 0.0, 3.0).then(apply("round")), integers(0, 3)), (identity(), REAL),
])
def test_facts_of_activations(expression: Expression, expected: ValueFacts) -> None:
    assert expression_facts(expression, [REAL]) == [expected]


@pytest.mark.parametrize(("steps", "expected"), [
    ([("sign", 0), ("constant", 0.1), ("add", 1, 2), ("sign", 3)], PLUS_MINUS_ONE),
    ([("constant", 0.0), ("equal", 0, 1), ("sign", 0), ("add", 2, 3)], PLUS_MINUS_ONE),
    ([("constant", 0.0), ("equal", 0, 1), ("constant", 1.0), ("sign", 0), ("where", 2, 3, 4)],
     PLUS_MINUS_ONE),
    ([("constant", 0.0), ("greater", 0, 1), ("less", 0, 1), ("sub", 2, 3)], TERNARY),
    ([("constant", 0.0), ("greater_equal", 0, 1), ("less", 0, 1), ("sub", 2, 3)], PLUS_MINUS_ONE),
    ([("constant", 2.0), ("greater", 0, 1), ("constant", -2.0), ("less_equal", 0, 3),
      ("or", 2, 4)], integers(0, 1)),
    ([("constant", 0.0), ("greater", 0, 1), ("sign", 0), ("where", 2, 3, 0)], REAL),
])
def test_facts_of_signs_and_comparisons_of_one_value(
        steps: list[tuple[str, float]], expected: ValueFacts) -> None:
    expression = Expression(1, tuple(
        ExpressionStep(name, (), (arguments[0],)) if name == "constant"
        else ExpressionStep(name, tuple(map(int, arguments))) for name, *arguments in steps))
    assert expression_facts(expression, [REAL]) == [expected]


LAYERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "conv2d": [("conv2d", {"strides": (s, 1), "pads": (p, 0, 1, p), "dilations": (1, s),
                           "groups": g, "epilogue": identity()})
               for s, p, g in ((1, 0, 1), (2, 1, 2), (1, 1, 4))],
    "conv_transpose2d": [("conv_transpose2d", {
        "strides": (s, 2), "pads": (1, 0, 0, p), "dilations": (1, 1), "output_padding": (0, 1),
        "groups": g}) for s, p, g in ((1, 0, 1), (2, 1, 2))],
    "pool": [("pool", {"kind": kind, "kernel": (2, 2), "strides": (2, 1), "pads": (p, p, p, p),
                       "dilations": (3, 1), "ceil_mode": bool(p), "count_include_pad": bool(p)})
             for kind in ("max", "average") for p in (0, 1, 2)],
    "pad": [("pad", {"mode": "constant", "pads": (0, 0, 1, 0, 0, 0, 0, 2), "value": value})
            for value in (0.0, 2.5)],
    "resize": [("resize", {"mode": mode, "sizes": None, "scales": (1, 1, 2, 1.5),
                           "coordinates": "half_pixel", "nearest_mode": "floor"})
               for mode in ("nearest", "linear")],
    "reduce": [("reduce", {"kind": kind, "axes": (2, 3), "keepdims": True})
               for kind in ("mean", "max", "sum")],
    "softmax": [("softmax", {"axis": 1, "log": log}) for log in (False, True)],
    "moves": [("transpose", {"permutation": (0, 2, 1, 3)}), ("reshape", {"shape": (0, -1)}),
              ("slice", {"starts": (3,), "ends": (0,), "axes": (3,), "steps": (-2,)}),
              ("cast", {"dtype": "int32"}), ("cast", {"dtype": "uint8"}),
              ("cast", {"dtype": "bool"})],
    "top_k": [("top_k", {"axis": 2, "count": (3,), "largest": largest})
              for largest in (False, True)],
    "concat": [("concat", {"axis": 1})], "matmul": [("matmul", {})],
}


ONES = np.ones((1, 4, 5, 5), np.float32)


def outputs_hold(build: Builder, x: np.ndarray = ONES,
                 known: ValueFacts = REAL) -> dict[str, ValueFacts]:
    """Asserts that all values of the graph, computed on the host in float32, are as is derived from
    the facts of x, and that only those are NaN which may be. Returns what is derived."""
    graph = build.graph
    static = resolve(graph, len(x))
    graph.outputs = [ValueInfo(name, ()) for node in static.nodes for name in node.outputs]
    plan = gossamer.compile(graph, "host")
    derived = derive(static)
    stated = stating_nan(static, derived)
    spoilt = np.where(np.arange(x.size).reshape(x.shape) % 7, x, np.float32(np.nan))
    names = [info.name for info in graph.outputs]
    for name, result, of_nan in zip(names, *(results if isinstance(results, tuple) else [results]
                                             for results in map(plan, (x, spoilt))), strict=True):
        assert derived[name].holds(result), (name, derived[name], known)
        assert stated[name].nan or not np.isnan(np.float64(of_nan)).any(), name
    return derived


@pytest.mark.parametrize("kind", LAYERS)
@settings(max_examples=20)
@given(data=st.data())
def test_every_layer_of_a_graph(kind: str, data: st.DataObject) -> None:
    build = Builder()
    known = data.draw(st.sampled_from([PLUS_MINUS_ONE, integers(0, 3), ValueFacts(-0.5, 0.75, 0.25),
                                       ValueFacts(-0.375, 2.0), ValueFacts(3.0, 5.0)]))
    weights = data.draw(grids() | ranges())
    seed = data.draw(st.integers(0, 99))
    op, attributes = data.draw(st.sampled_from(LAYERS[kind]))
    rng = np.random.default_rng(seed)
    limited = _limited(build, known)
    inputs = [limited]
    if kind in ("conv2d", "conv_transpose2d", "matmul"):
        groups = attributes.get("groups", 1)
        shape = {"conv2d": (4, 4 // groups, 2, 3), "matmul": (5, 3),
                 "conv_transpose2d": (4, 4 // groups, 2, 3)}[kind]
        some = values(weights, rng) if weights.count else np.float32([0.1, -2.7, 3.0])
        name = build.constant(*shape)
        build.graph.constants[name] = rng.choice(some, shape)
        inputs.append(name)
    elif kind == "concat":
        inputs.append(build.apply("sign", "x"))
    build.add(op, inputs, "y", **attributes)
    if op == "top_k":
        build.graph.nodes[-1].outputs.append("places")
    x = rng.standard_normal((2, 4, 5, 5), dtype=np.float32) * np.float32(3)
    derived = outputs_hold(build, x, known)
    assert derived[limited] == known


def _limited(build: Builder, known: ValueFacts) -> str:
    """Adds nodes that make numbers of the facts out of x, and returns their result."""
    if known == PLUS_MINUS_ONE:
        return build.binarise("x")
    if not known.step:
        return build.apply("clip", "x", constants=(known.low, known.high))
    scaled = build.apply("clip", "x", constants=(known.low / known.step, known.high / known.step))
    rounded = build.apply("round", scaled)
    return build.apply("mul", rounded, build.scalar(known.step)) if known.step != 1 else rounded


def test_the_sums_of_a_binary_layer() -> None:
    """A convolution of 36 products of 1 and -1 gives even numbers from -36 to 36, and any integer
    where zeros are padded; the batch norm behind it gives any number."""
    build = Builder(("a", "b", "c"))
    bits = build.binarise("x")
    for output, pad in (("a", 0), ("b", 1)):
        weight = build.conv(bits, output, pad=pad, bias=False)
        layer = build.graph.nodes[-1]
        array = build.graph.constants[layer.inputs[1]]
        build.graph.constants[layer.inputs[1]] = np.where(array > 0, 1, -1).astype(np.float32)
    build.norm(weight, "c")
    derived = outputs_hold(build, np.random.default_rng(0).standard_normal(
        (2, 4, 5, 5), dtype=np.float32))
    assert derived[bits] == PLUS_MINUS_ONE
    assert derived["a"] == ValueFacts(-36, 36, 2) and derived["b"] == integers(-36, 36)
    assert not derived["c"].step


@pytest.mark.parametrize(("weights", "known", "expected"), [
    (np.ones((2, 256)), integers(0, 2**16), ValueFacts(0, 2**24, 1)),
    (np.ones((2, 257)), integers(0, 2**16), REAL),
    (np.where(np.arange(514).reshape(2, 257) % 2, 1, -1), integers(0, 2**16), REAL),
    (np.full((3, 4), 0.5), PLUS_MINUS_ONE, ValueFacts(-2, 2, 1)),
    (np.full((3, 4), 0.1), PLUS_MINUS_ONE, REAL), (np.zeros((3, 4)), PLUS_MINUS_ONE, point(0)),
    (np.array([[1, 1, 1], [1, 1, 0]]), PLUS_MINUS_ONE, integers(-3, 3)),
    (np.array([[2, -6], [4, 8]]), integers(0, 1), ValueFacts(-6, 12, 2)),
    (np.array([[1, np.nan]]), PLUS_MINUS_ONE, REAL), (np.ones((2, 3)), REAL, REAL),
], ids=str)
def test_weighted_sums(weights: np.ndarray, known: ValueFacts, expected: ValueFacts) -> None:
    """Sums are on a grid where float32 has every partial sum."""
    array = weights.astype(np.float32)
    assert weighted_sums(known, of_array(array), array) == expected


def test_a_window_of_padding_alone_has_no_maximum_of_the_input(build: Builder) -> None:
    build.add("pool", [build.binarise("x")], "y", kind="max", kernel=(1, 1), strides=(1, 1),
              pads=(1, 1, 1, 1), dilations=(1, 1), ceil_mode=False, count_include_pad=False)
    assert outputs_hold(build)["y"] == REAL


def test_epilogues_count(build: Builder) -> None:
    weight = build.scalar(1.0, 4, 4, 1, 1)
    bias = build.constant(4)
    build.graph.constants[bias] = np.float32([0, 1, 2, 3])
    build.add("conv2d", [build.binarise("x"), weight, bias], "y", strides=(1, 1), pads=(0,) * 4,
              dilations=(1, 1), groups=1, epilogue=apply("add").then(apply("relu")))
    assert outputs_hold(build)["y"] == integers(0, 7)


def test_products_of_run_time_matrices() -> None:
    graph = Graph("test", [ValueInfo("x", (None, 3, 5)), ValueInfo("z", (None, 5, 4))],
                  [ValueInfo("y", ())], [
        Node("elementwise", "a", ["x"], ["p"], {"expression": SIGNS[1]}),
        Node("elementwise", "b", ["z"], ["q"], {"expression": SIGNS[1]}),
        Node("matmul", "c", ["p", "q"], ["y"], {})], {})
    assert derive(resolve(graph, 2))["y"] == ValueFacts(-5, 5, 2)


@pytest.mark.parametrize(("make", "expected"), [
    (lambda build: build.apply("neg", "x"), integers(0, 255)),
    (lambda build: build.apply("min", "x", build.constant("few", np.uint8([7]))), integers(0, 7)),
    (lambda build: build.apply("mul", "x", build.constant("few", np.uint8([7]))),
     integers(0, 255))])
def test_integers_wrap_round_in_their_dtype(make: Callable[[GraphBuilder], str],
                                            expected: ValueFacts) -> None:
    build = GraphBuilder("test")
    build.input("x", (None, 256), "uint8")
    y = make(build)
    build.output(y, (None, 256), "uint8")
    graph = build.finish()
    known = derive(resolve(graph, 1))[y]
    assert known == expected
    assert known.holds(gossamer.compile(graph, "host")(np.arange(256, dtype=np.uint8)[None]))


@pytest.mark.parametrize(("dtype", "expected"), [
    ("uint8", integers(0, 255)), ("int32", integers(0, 300)),
    ("bool", integers(0, 1)), ("int64", integers(0, 300))])
def test_facts_of_casts(dtype: str, expected: ValueFacts) -> None:
    build = GraphBuilder("test")
    x = build.apply("clip", build.input("x", (None, 3)), constants=(0.0, 601.0))
    half = build.apply("mul", build.apply("round", x), build.constant("half", np.float32(0.5)))
    y = build.add("cast", [half], dtype=dtype)
    build.output(y, (None, 3), dtype)
    assert derive(resolve(build.finish(), 1))[y] == expected


def test_values_that_may_be_nan(build: Builder) -> None:
    bits, whole = build.binarise("x"), build.add("cast", ["x"], dtype="int8")
    unsure = [build.apply("sign", "x"), build.conv("x"), build.apply("sqrt", bits)]
    sure = [bits, build.apply("sign", build.conv(bits)),
            build.add("cast", [whole], dtype="float32")]
    build.graph.outputs = [ValueInfo(name, ()) for name in (*unsure, *sure)]
    static = resolve(build.graph, 1)
    stated = stating_nan(static, derive(static))
    assert [stated[name].nan for name in (*unsure, *sure)] == [True] * 3 + [False] * 3


def test_sums_of_zeros_are_known(build: Builder) -> None:
    zeros = build.apply("mul", "x", build.scalar(0.0))
    build.add("reduce", [zeros], "y", kind="sum", axes=(2, 3), keepdims=True)
    assert outputs_hold(build)["y"] == point(0.0)


@pytest.mark.parametrize(("dtype", "expected"), [
    ("bool", integers(0, 1)), ("uint8", integers(0, 255)), ("float32", REAL),
    ("int32", ValueFacts(-2.0**31, 2.0**31))])
def test_facts_of_inputs(dtype: str, expected: ValueFacts) -> None:
    graph = Graph("test", [ValueInfo("x", (None, 3), dtype)], [ValueInfo("x", ())], [], {})
    assert derive(resolve(graph, 1))["x"] == expected
