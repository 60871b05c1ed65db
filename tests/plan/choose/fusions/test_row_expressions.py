"""Norms in networks: which layers become one row expression, and plans with them."""

from __future__ import annotations

import numpy as np

import gossamer
from gossamer.device.registry import find
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from gossamer.ops.fused.row_expression import row_expression_of
from gossamer.plan.fusion import find_fusions
from gossamer.plan.lower.rules import lower
from tests.model.executor import execute
from tests.model.graph_builder import Builder
from tests.tolerances import normalised_error, tolerance


def rows_of(graph: Graph, batch: int = 2) -> list[tuple[str, ...]]:
    """Return the ops of the layers of each row expression of an optimised graph."""
    layers, _ = lower(resolve(optimise(graph), batch))
    fusions = find_fusions(layers, [info.name for info in graph.outputs])
    return [tuple(part.op for part in fusion.problem.parts) for fusion in fusions
            if row_expression_of(fusion.problem) is not None]


def _norm(build: Builder, x: str, axes: tuple[int, ...], output: str = "") -> str:
    """Add (x - mean) / sqrt(mean((x - mean)^2) + 0.001) * scale."""
    mean = build.add("reduce", [x], kind="mean", axes=axes, keepdims=True)
    centred = build.apply("sub", x, mean)
    squares = build.apply("mul", centred, centred)
    variance = build.add("reduce", [squares], kind="mean", axes=axes, keepdims=True)
    deviation = build.apply("sqrt", build.apply("add", variance, build.scalar(1e-3)))
    quotient = build.apply("div", centred, deviation)
    return build.apply("mul", quotient, build.constant(4, 1, 1), output=output)


def _network() -> Builder:
    """Return a norm between two convolutions, whose input is added to its activated result."""
    build = Builder()
    x = build.conv("x")
    y = build.apply("relu", _norm(build, x, (1,)))
    build.conv(build.apply("add", y, x), output="y")
    return build


def test_a_norm_with_its_activation_and_residual_is_one() -> None:
    (ops,) = rows_of(_network().graph)
    assert ops.count("reduce") == 2
    assert len(ops) == len(lower(resolve(optimise(_network().graph), 2))[0]) - 2


def check_plan(graph: Graph, algorithm: str) -> None:
    """Check a plan with one step of an algorithm for fusions against the reference."""
    plan = gossamer.compile(graph, find("opencl:0").name, only=algorithm)
    x = np.random.default_rng(3).standard_normal((2, 4, 5, 5)).astype(np.float32)
    expected = execute(resolve(graph, 2), {"x": x})["y"]
    assert normalised_error(plan(x), expected) <= tolerance("network")
    assert [row["algorithm"] for row in plan.report(2).rows].count(algorithm) == 1


def test_a_plan_with_row_expressions_computes_the_network() -> None:
    check_plan(_network().graph, "row_expression")


def test_a_mean_that_others_read_ends_the_row_expression_before_it() -> None:
    build = Builder(("y", "z"))
    x = build.conv("x")
    squares = build.apply("mul", x, x)
    total = build.add("reduce", [squares], kind="sum", axes=(2, 3), keepdims=True)
    length = build.apply("sqrt", total, output="z")
    build.apply("div", x, length, output="y")
    assert rows_of(build.graph) == [("elementwise", "reduce", "elementwise")]


def test_reductions_over_different_axes_are_different_row_expressions() -> None:
    build = Builder()
    x = build.conv("x")
    total = build.add("reduce", [build.apply("mul", x, x)], kind="sum", axes=(2, 3), keepdims=True)
    length = build.apply("sqrt", total)
    mean = build.add("reduce", [length], kind="mean", axes=(1,), keepdims=True)
    share = build.apply("div", length, build.apply("add", mean, build.scalar(1e-6)))
    build.apply("add", build.apply("mul", x, share), x, output="y")
    assert sorted(rows_of(build.graph)) == [
        ("elementwise", "reduce", "elementwise"), ("reduce", "elementwise", "elementwise")]
