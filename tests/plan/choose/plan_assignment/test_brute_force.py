"""Assignments compared with brute force, for drawn networks and for all wirings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, milp

from tests.plan.choose.plan_assignment.network import (
    LAYOUTS,
    AssignmentNode,
    Network,
    NodeOption,
    counts_as,
)

integer_costs = st.integers(0, 60).map(float)
may_be_infinite = st.one_of(integer_costs, integer_costs, integer_costs, st.just(math.inf))


@st.composite
def networks(draw: st.DrawFn, costs: st.SearchStrategy[float] = may_be_infinite) -> Network:
    """Up to 6 nodes of up to 4 options: forks, joins, values read twice or never, two outputs."""
    fixed: dict[str, Hashable] = {f"in{i}": draw(st.sampled_from(LAYOUTS))
                                  for i in range(draw(st.integers(1, 2)))}
    values = list(fixed)
    layouts = st.sampled_from(LAYOUTS[:draw(st.integers(2, 4))])
    nodes = []
    for index in range(draw(st.integers(1, 6))):
        inputs = tuple(draw(st.lists(st.sampled_from(values), max_size=3)))
        outputs = tuple(f"v{index}.{i}" for i in range(draw(st.integers(1, 2))))
        options = draw(st.lists(st.builds(
            NodeOption, costs, st.tuples(*[layouts] * len(inputs)),
            st.tuples(*[layouts] * len(outputs))), min_size=1, max_size=4))
        nodes.append(AssignmentNode(tuple(options), inputs, outputs))
        values += outputs
    required: dict[str, Hashable] = {
        value: draw(layouts) for value in draw(st.lists(st.sampled_from(values), max_size=3))}
    conversions: dict[tuple[str, Hashable, Hashable], float] = {
        (value, a, b): draw(costs)
        for value in values for a, b in itertools.permutations(LAYOUTS, 2)}
    return Network(tuple(nodes), fixed, required, conversions)


@given(networks(), st.sampled_from([0.0, 0.02, 0.25]))
@settings(max_examples=400)
def test_the_plan_assignment_is_the_one_that_brute_force_finds(network: Network,
                                                               slack: float) -> None:
    costs = network.all_costs()
    best = min(costs.values())
    if best == math.inf:
        with pytest.raises(ValueError, match="no plan assignment has a finite cost"):
            network.minimise(slack)
        return
    assignment = network.minimise(slack)
    assert assignment.options in network.preferred(slack)
    assert assignment.cost == costs[assignment.options] <= best * (1 + slack)


@given(networks(st.floats(1.0, 2.0)), st.sampled_from([0.0, 0.02, 0.25]))
@settings(max_examples=100)
def test_no_node_has_an_option_of_the_same_layouts_that_is_cheaper_by_more(
        network: Network, slack: float) -> None:
    for node, index in zip(network.nodes, network.minimise(slack).options, strict=True):
        assigned = node.options[index]
        assert all(assigned.cost <= option.cost * (1 + slack) for option in node.options
                   if (option.needs, option.gives) == (assigned.needs, assigned.gives))


@given(networks(integer_costs))
@settings(max_examples=100)
def test_the_next_assignments_are_those_that_brute_force_finds(network: Network) -> None:
    costs = network.all_costs()
    found: list[tuple[int, ...]] = []
    for least in sorted(costs.values())[:3]:
        assignment = network.minimise(0.0, found)
        assert assignment.options not in found
        assert assignment.cost == costs[assignment.options] == least
        found.append(assignment.options)
    if len(costs) == len(found):
        with pytest.raises(ValueError, match="no plan assignment has a finite cost"):
            network.minimise(0.0, found)


@given(networks(st.floats(0.01, 100.0)))
@settings(max_examples=100)
def test_costs_that_are_no_whole_numbers(network: Network) -> None:
    costs = network.all_costs()
    best = min(costs.values())
    # networks with sums that differ by less than options do by their order are left out
    counted = network.counted(0.02).all_costs()
    least = min(counted.values())
    assume(not any(1e-12 < cost / least - 1 < 1e-5 for cost in counted.values()))
    assignment = network.minimise()
    assert counted[assignment.options] == pytest.approx(least, rel=1e-12)
    assert assignment.cost == pytest.approx(costs[assignment.options], rel=1e-12)
    assert best <= assignment.cost * (1 + 1e-12) <= best * 1.02 * (1 + 2e-12)


@given(networks(st.integers(1, 60).map(float)), st.data())
@settings(max_examples=100)
def test_noise_below_the_slack_keeps_the_options(network: Network, data: st.DataObject) -> None:
    noise, slack = 0.002, 0.02
    # left out are networks where the noise may decide: an option's cost is close to the threshold,
    # or a total is close to the least one without counting as equal to it
    assume(all(abs(option.cost / other.cost - (1 + slack)) > 3 * noise
               for node in network.nodes for option in node.options for other in node.options))
    first = network.preferred(slack)[0]
    least = network.counted(slack).cost(first)
    assume(all(_alike(network, options, first, slack) for options, cost in
               network.counted(slack).all_costs().items() if cost <= least * (1 + 3 * noise)))
    factor = st.floats(1 - noise, 1 + noise)
    noisy = replace(
        network,
        nodes=tuple(replace(node, options=tuple(
            replace(option, cost=option.cost * data.draw(factor)) for option in node.options))
            for node in network.nodes),
        conversions={key: cost * data.draw(factor) for key, cost in network.conversions.items()})
    assert noisy.minimise(slack).options == network.minimise(slack).options


def _alike(network: Network, one: tuple[int, ...], other: tuple[int, ...], slack: float) -> bool:
    """Whether two plan assignments convert the same, and each node's options count as the same."""
    for node, pair in zip(network.nodes, zip(one, other, strict=True), strict=True):
        a, b = (node.options[index] for index in pair)
        if (a.needs, a.gives, counts_as(a, node, slack)) != (b.needs, b.gives,
                                                             counts_as(b, node, slack)):
            return False
    return True


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
