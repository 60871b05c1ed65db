"""The cheapest plan assignment agrees with that of a search over all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

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
