"""Networks wired like real ones: another integer program, brute force and dynamic programming
agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, milp

from tests.plan.choose.plan_assignment.network import (
    LAYOUTS,
    AssignmentNode,
    Network,
    NodeOption,
)

Wiring = list[tuple[tuple[str, ...], str]]
"""The values that each node reads, and the value that it writes."""


def _random_network(wiring: Wiring, count: int, seed: int,
                    same: Callable[[int], bool] = lambda node: False) -> Network:
    """Returns nodes with these values, `count` options each, and random costs and layouts. Nodes
    for which same() is true (joins) have one option for each layout, which they read and write."""
    random = np.random.default_rng(seed)
    layouts = LAYOUTS[:3]
    nodes = []
    for index, (inputs, output) in enumerate(wiring):
        if same(index):
            options = [NodeOption(float(random.integers(1, 20)), (layout,) * len(inputs), (layout,))
                       for layout in layouts]
        else:
            options = [NodeOption(float(random.integers(50, 200)),
                                  tuple(str(random.choice(layouts)) for _ in inputs),
                                  (str(random.choice(layouts)),)) for _ in range(count)]
        nodes.append(AssignmentNode(tuple(options), inputs, (output,)))
    values = ["x", *(output for _, output in wiring)]
    conversions: dict[tuple[str, Hashable, Hashable], float] = {
        (value, a, b): float(random.integers(1, 60))
        for value in values for a, b in itertools.permutations(layouts, 2)}
    return Network(tuple(nodes), {"x": "NCHW"}, {values[-1]: "NCHW"}, conversions)


def _chain(length: int) -> Wiring:
    return [((f"v{i}" if i else "x",), f"v{i + 1}") for i in range(length)]


def _residual(blocks: int) -> Wiring:
    wiring: Wiring = [(("x",), "r0")]
    for i in range(blocks):
        wiring += [((f"r{i}",), f"a{i}"), ((f"a{i}",), f"b{i}"),
                   ((f"b{i}", f"r{i}"), f"r{i + 1}")]
    return wiring


def _inception(blocks: int) -> Wiring:
    wiring: Wiring = []
    source = "x"
    for i in range(blocks):
        wiring += [((source,), f"a{i}"), ((source,), f"b{i}"), ((f"b{i}",), f"c{i}"),
                   ((source,), f"d{i}"), ((f"d{i}",), f"e{i}"), ((source,), f"f{i}"),
                   ((f"f{i}",), f"g{i}"), ((f"a{i}", f"c{i}", f"e{i}", f"g{i}"), f"j{i}")]
        source = f"j{i}"
    return wiring


def _dense(layers: int) -> Wiring:
    """Returns layers each of which joins all values before it."""
    wiring: Wiring = [(("x",), "v0")]
    for i in range(layers):
        wiring += [(tuple(f"v{j}" for j in range(i + 1)), f"j{i}"), ((f"j{i}",), f"v{i + 1}")]
    return wiring


def _integer_program(network: Network) -> float:
    """Returns the least cost as SciPy's solver of mixed-integer programs finds it."""
    columns: list[tuple[float, bool]] = []
    rows: list[tuple[dict[int, float], float, float]] = []

    def column(cost: float, integer: bool) -> int:
        columns.append((cost, integer))
        return len(columns) - 1

    picks = [[column(option.cost, True) for option in node.options] for node in network.nodes]
    rows += [(dict.fromkeys(pick, 1.0), 1.0, 1.0) for pick in picks]
    always = column(0.0, True)
    rows.append(({always: 1.0}, 1.0, 1.0))
    gives: dict[str, list[tuple[int, Hashable]]] = {
        value: [(always, layout)] for value, layout in network.fixed.items()}
    needs = [(value, always, layout) for value, layout in network.required.items()]
    for node, pick in zip(network.nodes, picks, strict=True):
        for variable, option in zip(pick, node.options, strict=True):
            for value, layout in zip(node.outputs, option.gives, strict=True):
                gives.setdefault(value, []).append((variable, layout))
            needs += [(value, variable, layout)
                      for value, layout in zip(node.inputs, option.needs, strict=True)]
    copies: dict[tuple[int, str, Hashable], int] = {}
    for value, reader, layout in needs:
        for writer, source in gives[value]:
            if source != layout:
                key = (writer, value, layout)
                if key not in copies:
                    copies[key] = column(network.conversion(value, source, layout), False)
                rows.append(({copies[key]: 1.0, writer: -1.0, reader: -1.0}, -1.0, np.inf))
    matrix = np.zeros((len(rows), len(columns)))
    for i, (terms, _, _) in enumerate(rows):
        for j, factor in terms.items():
            matrix[i, j] += factor
    result = milp(np.array([cost for cost, _ in columns]),
                  integrality=np.array([integer for _, integer in columns], int),
                  constraints=LinearConstraint(matrix, [low for _, low, _ in rows],
                                               [high for _, _, high in rows]))
    assert result.success
    return float(result.fun)


@pytest.mark.parametrize("wiring", [_residual(4), _inception(2), _dense(5)],
                         ids=["residual", "inception", "dense"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_least_cost_is_that_of_an_integer_program(wiring: Wiring, seed: int) -> None:
    network = _random_network(wiring, 4, seed, lambda node: len(wiring[node][0]) > 1)
    assignment = network.minimise(0.0)
    assert assignment.cost == network.cost(assignment.options)
    assert assignment.cost == pytest.approx(_integer_program(network), rel=1e-6)


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_dense_blocks_as_brute_force_finds(seed: int) -> None:
    wiring = _dense(3)
    network = _random_network(wiring, 3, seed, lambda node: len(wiring[node][0]) > 1)
    assert network.minimise().options in network.preferred(0.02)


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_values_with_the_same_readers_that_need_them_otherwise(seed: int) -> None:
    wiring: Wiring = [((), "a"), ((), "b"), *((("a", "b"), name) for name in "cde")]
    network = _random_network(wiring, 4, seed, lambda node: node == 4)
    assert network.minimise(0.0).options in network.preferred(0.0)


@pytest.mark.parametrize(("wiring", "count"), [
    (_chain(200), 30),
    (_residual(60), 30),
    (_inception(30), 30),
    (_dense(10), 20),
], ids=["chain", "residual", "inception", "dense"])
def test_networks_of_hundreds_of_layers(wiring: Wiring, count: int) -> None:
    network = _random_network(wiring, count, 7, lambda node: len(wiring[node][0]) > 1)
    least = network.minimise(0.0)
    assert least.cost == network.cost(least.options)
    chosen = network.minimise()
    assert least.cost <= chosen.cost == network.cost(chosen.options) <= 1.02 * least.cost


def test_a_chain_is_what_dynamic_programming_finds() -> None:
    network = _random_network(_chain(200), 30, 11)

    def moved(value: str, source: Hashable, target: Hashable) -> float:
        return 0.0 if source == target else network.conversion(value, source, target)

    reached: dict[Hashable, float] = {"NCHW": 0.0}
    for node in network.nodes:
        totals: dict[Hashable, float] = {}
        for option in node.options:
            total = option.cost + min(cost + moved(node.inputs[0], layout, option.needs[0])
                                      for layout, cost in reached.items())
            totals[option.gives[0]] = min(total, totals.get(option.gives[0], math.inf))
        reached = totals
    assert network.minimise(0.0).cost == min(
        cost + moved("v200", layout, "NCHW") for layout, cost in reached.items())
