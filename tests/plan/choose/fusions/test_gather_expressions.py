"""Moves and arithmetic in networks: which layers become one gather expression."""

from __future__ import annotations

from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from gossamer.plan.fusion import find_fusions, recognising
from gossamer.plan.lower.rules import lower
from tests.model.graph_builder import Builder
from tests.plan.choose.fusions.test_row_expressions import check_plan


def gathers_of(graph: Graph, batch: int = 2) -> list[list[str]]:
    """Return the ops of the layers, but for reshapes, of each gather expression."""
    layers, _ = lower(resolve(optimise(graph), batch))
    return [sorted(part.op for part in fusion.problem.parts if part.op != "reshape")
            for fusion in find_fusions(layers, [info.name for info in graph.outputs])
            if any(algorithm.name == "gather_expression" for algorithm in recognising(fusion))]


def _gated() -> Builder:
    """Return a gated linear unit between two convolutions, with a transpose behind it."""
    build = Builder()
    x = build.conv("x")
    first = build.add("slice", [x], starts=(0,), ends=(2,), axes=(1,))
    second = build.add("slice", [x], starts=(2,), ends=(4,), axes=(1,))
    gated = build.apply("mul", first, build.apply("sigmoid", second))
    whole = build.add("concat", [gated, gated], axis=1)
    build.add("transpose", [build.conv(whole)], permutation=(0, 2, 3, 1), output="y")
    return build


def test_slices_with_arithmetic_and_a_concatenation_are_one() -> None:
    assert gathers_of(_gated().graph) == [["concat", "copy", "copy", "elementwise"]]


def test_a_plan_with_gather_expressions_computes_the_network() -> None:
    check_plan(_gated().graph, "gather_expression")


def test_values_that_others_read_are_written() -> None:
    build = Builder(("y", "z"))
    first = build.add("slice", [build.conv("x")], starts=(0,), ends=(2,), axes=(1,))
    halved = build.apply("mul", first, build.scalar(0.5), output="z")
    build.add("transpose", [halved], permutation=(0, 2, 3, 1), output="y")
    assert gathers_of(build.graph) == [["copy", "elementwise"]]


def test_moves_at_the_end_may_belong_to_the_next_fusion() -> None:
    """The transpose may be computed with the gather expression, or by itself."""
    build = Builder()
    first = build.add("slice", [build.conv("x")], starts=(0,), ends=(2,), axes=(1,))
    halved = build.apply("sqrt", build.apply("exp", first))
    build.add("transpose", [halved], permutation=(0, 2, 3, 1), output="y")
    assert gathers_of(build.graph) == [["copy", "copy", "elementwise"], ["copy", "elementwise"]]


def test_copies_of_copies_are_one() -> None:
    """Slices of a transpose read what the transpose reads."""
    build = Builder(("y", "z"))
    x = build.add("reshape", [build.conv("x")], shape=(-1, 2, 2, 5, 5))
    turned = build.add("transpose", [x], permutation=(1, 0, 2, 3, 4))
    for index, name in enumerate("yz"):
        build.add("slice", [turned], starts=(index,), ends=(index + 1,), axes=(0,), output=name)
    layers, _ = lower(resolve(optimise(build.graph), 2))
    assert [layer.op for layer in layers].count("copy") == 2
