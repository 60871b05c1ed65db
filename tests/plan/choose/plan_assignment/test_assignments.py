"""Assignments of small networks: conversions, fusions, slack, and what is refused."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Hashable, Sequence

import pytest

from gossamer.plan.choose.plan_assignment import Option, PlanAssignment, minimise
from tests.plan.choose.plan_assignment.network import AssignmentNode, Network, NodeOption


def test_a_slower_option_is_taken_for_the_conversions_that_it_saves() -> None:
    options = (NodeOption(100.0, ("NHWC",), ("NCHW",)), NodeOption(110.0, ("NCHW",), ("NCHW",)),
               NodeOption(109.0, ("NCHW",), ("NCHW",)))
    nodes = (AssignmentNode(options, ("x",), ("y",)),)
    network = Network(nodes, {"x": "NCHW"}, {"y": "NCHW"}, {("x", "NCHW", "NHWC"): 20.0})
    assert network.minimise() == PlanAssignment((1,), (), 110.0)


def test_readers_share_one_conversion() -> None:
    reader = AssignmentNode((NodeOption(4.0, ("NCHW",), ()), NodeOption(1.0, ("NHWC",), ())),
                        ("x",), ())
    nodes = (AssignmentNode((NodeOption(1.0, (), ("NCHW",)),), (), ("x",)), *[reader] * 3)
    network = Network(nodes, {}, {}, {("x", "NCHW", "NHWC"): 5.0})
    assert network.minimise() == PlanAssignment(
        (0, 1, 1, 1), (("x", "NCHW", "NHWC"),), 9.0)


def test_an_empty_network_converts_its_inputs() -> None:
    network = Network((), {"x": "NCHW"}, {"x": "NHWC"}, {("x", "NCHW", "NHWC"): 3.0})
    assert network.minimise() == PlanAssignment((), (("x", "NCHW", "NHWC"),), 3.0)


def test_conversions_are_in_the_order_of_the_network() -> None:
    """Conversions are measured in this order, so that it must not differ between processes."""
    values = [f"value {index}" for index in range(20)]
    network = Network((), dict.fromkeys(values, "NCHW"), dict.fromkeys(values, "NHWC"),
                      {(value, "NCHW", "NHWC"): 1.0 for value in values})
    assert [value for value, _, _ in network.minimise().conversions] == values


LAYOUTS = ("NCHW", "NHWC", "CHWN")


def _network(seed: int) -> tuple[list[Option], dict[tuple[str, Hashable, Hashable], float]]:
    """Returns options of five nodes, alone and in fusions, and the costs of conversions. The value
    that a node writes has the node's name, and each node but the first reads up to two values of
    nodes before it."""
    rng = random.Random(seed)
    nodes = "abcde"
    reads: dict[str, list[str]] = {node: rng.choices(nodes[:index], k=rng.randint(1, 2))
                                   if index else ["x"] for index, node in enumerate(nodes)}
    options = []
    members = [node for node in nodes for _ in range(rng.randint(1, 3))]
    members += [nodes[first:first + rng.randint(2, 3)] for first in
                (rng.randrange(4) for _ in range(rng.randint(2, 6)))]
    for covered in members:
        format_of = {value: rng.choice(LAYOUTS) for node in covered for value in reads[node]}
        entries = tuple(((node, port), value, format_of[value]) for node in covered
                        for port, value in enumerate(reads[node]) if value not in covered)
        # a value that only nodes of the fusion read need not be written for others
        exits = [node for node in covered if node == "e" or rng.random() < 0.3 or any(
            node in reads[other] for other in nodes if other not in covered)]
        options.append(Option(float(rng.randint(1, 60) * len(covered)) if rng.random() < 0.95
                              else math.inf, tuple(covered), entries,
                              tuple((node, rng.choice(LAYOUTS)) for node in exits),
                              len(covered) > 1))
    conversions = {(value, *pair): float(rng.randint(1, 60)) if rng.random() < 0.9 else math.inf
                   for value in "x" + nodes for pair in itertools.permutations(LAYOUTS, 2)}
    return options, conversions


def _costs(options: Sequence[Option], conversions: dict[tuple[str, Hashable, Hashable], float]
           ) -> dict[tuple[int, ...], float]:
    """Returns the cost of each choice of options that computes each node once, by definition."""
    costs: dict[tuple[int, ...], float] = {}

    def extend(taken: tuple[int, ...], left: frozenset[str]) -> None:
        if not left:
            written = {"x": "NCHW", **{value: format_ for index in taken
                                       for value, format_ in options[index].writes}}
            needed = {(value, format_) for index in taken
                      for _, value, format_ in options[index].reads} | {("e", "NCHW")}
            costs[tuple(sorted(taken))] = sum(options[index].cost for index in taken) + sum(
                math.inf if value not in written else conversions[value, written[value], format_]
                for value, format_ in needed if written.get(value) != format_)
            return
        node = min(left)
        for index, option in enumerate(options):
            if node in option.nodes and left.issuperset(option.nodes):
                extend((*taken, index), left - set(option.nodes))

    extend((), frozenset("abcde"))
    return costs


def _minimised(options: Sequence[Option],
               conversions: dict[tuple[str, Hashable, Hashable], float]) -> PlanAssignment:
    return minimise(options, {"x": "NCHW"}, lambda *each: conversions[each],
                    required={"e": "NCHW"}, slack=0.0)


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_fusions_are_taken_as_brute_force_takes_them(first: int) -> None:
    fused = 0
    for seed in range(first, first + 40):
        options, conversions = _network(seed)
        costs = _costs(options, conversions)
        least = min(costs.values(), default=math.inf)
        if least == math.inf:
            with pytest.raises(ValueError, match="no plan assignment has a finite cost"):
                _minimised(options, conversions)
            continue
        found = _minimised(options, conversions)
        assert costs[found.options] == found.cost == least, seed
        fused += any(options[index].of_fusion for index in found.options)
    assert fused > 10


def _pair(cost: float, conversion: float) -> Network:
    nodes = (AssignmentNode((NodeOption(cost, ("NCHW",), ("NCHW",)),), ("x",), ("y",)),
             AssignmentNode((NodeOption(1.0, ("NHWC",), ("NHWC",)),), ("y",), ("z",)))
    return Network(nodes, {"x": "NCHW"}, {}, {("y", "NCHW", "NHWC"): conversion})


@pytest.mark.parametrize(("network", "message"), [
    (_pair(math.inf, 1.0), "finite cost: 'node 0' has no usable option"),
    (_pair(1.0, math.inf), "finite cost: some options need conversions that exclude each"),
    (Network((), {}, {"y": "NCHW"}, {}), "exclude each other"),
])
def test_a_network_without_a_plan_assignment_is_named(network: Network, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network.minimise()


def test_options_that_rule_each_other_out() -> None:
    alike = tuple(NodeOption(1.0, (), (layout, layout)) for layout in ("NCHW", "NHWC"))
    unlike = (NodeOption(1.0, ("NCHW", "NHWC"), ()), NodeOption(1.0, ("NHWC", "NCHW"), ()))
    conversions = {(value, *pair): math.inf
                   for value in "ab" for pair in (("NCHW", "NHWC"), ("NHWC", "NCHW"))}
    nodes = (AssignmentNode(alike, (), ("a", "b")), AssignmentNode(unlike, ("a", "b"), ()))
    network = Network(nodes, {}, {}, conversions)
    with pytest.raises(ValueError, match="exclude each other"):
        network.minimise()


def _line(*costs: float) -> Network:
    """Returns one node whose options, all of one layout, have these costs."""
    options = tuple(NodeOption(cost, ("NCHW",), ("NCHW",)) for cost in costs)
    return Network((AssignmentNode(options, ("x",), ("y",)),), {"x": "NCHW"}, {"y": "NCHW"}, {})


@pytest.mark.parametrize(("costs", "slack", "index"), [
    ((102.0, 100.0), 0.02, 0),
    ((103.0, 101.0, 100.0), 0.02, 1),
    ((102.0, 100.0), 0.0, 1),
    ((100.0, 100.0), 0.0, 0),
    ((math.inf, 0.0, 0.0), 0.02, 1),
    ((1e30, 1.0, math.inf), 0.02, 1),
])
def test_the_first_option_within_the_slack_is_taken(costs: tuple[float, ...], slack: float,
                                                    index: int) -> None:
    assert _line(*costs).minimise(slack).options == (index,)


def test_the_slack_is_each_nodes_own() -> None:
    """A small node takes no option that is slow for it, however small its share of the total is."""
    def node(index: int, *costs: float) -> AssignmentNode:
        return AssignmentNode(tuple(NodeOption(cost, ("NCHW",), ("NCHW",)) for cost in costs),
                          (f"v{index}",), (f"v{index + 1}",))

    network = Network((node(0, 3.0, 2.0), node(1, 51.0, 50.0), node(2, 5001.0, 5000.0)),
                      {"v0": "NCHW"}, {}, {})
    assert network.minimise() == PlanAssignment((1, 0, 0), (), 5054.0)


@pytest.mark.parametrize(("conversion", "index"), [(0.0, 0), (0.5, 1), (20.0, 1)])
def test_layouts_that_are_converted_are_no_equal_of_others(conversion: float, index: int) -> None:
    options = (NodeOption(101.0, ("NHWC",), ("NCHW",)), NodeOption(100.0, ("NCHW",), ("NCHW",)))
    nodes = (AssignmentNode(options, ("x",), ("y",)),)
    network = Network(nodes, {"x": "NCHW"}, {"y": "NCHW"}, {("x", "NCHW", "NHWC"): conversion})
    assert network.minimise().options == (index,)


def test_as_few_nodes_as_possible_have_options_that_are_not_wanted() -> None:
    """Two nodes take the fusion, which is wanted for both, though all else is cheaper."""
    def alone(name: str, source: str, target: str, layout: str, cost: float,
              unwanted: int) -> Option:
        return Option(cost, (name,), (((name, 0), source, layout),), ((target, layout),), False,
                      unwanted)

    def taken(fusion_us: float, second: Sequence[Option]) -> tuple[int, ...]:
        options = [
            alone("a", "x", "y", "NCHW", 1.0, 1), alone("a", "x", "y", "NHWC", 900.0, 0),
            Option(fusion_us, ("a", "b"), ((("a", 0), "x", "NCHW"),), (("z", "NCHW"),), True),
            *second]
        return minimise(options, {"x": "NCHW"}, lambda value, source, target: 50.0,
                        required={"z": "NCHW"}).options

    unwanted = alone("b", "y", "z", "NCHW", 1.0, 1)
    wanted = alone("b", "y", "z", "NHWC", 900.0, 0)
    assert taken(math.inf, [unwanted, wanted]) == (1, 4)
    assert taken(500.0, [unwanted, wanted]) == (2,)
    # where no option of a node is wanted, the costs of its options decide
    assert taken(math.inf, [unwanted]) == (1, 3)


def test_options_of_a_fusion_that_are_wanted_for_some_nodes_count_by_nodes() -> None:
    """A fusion that is wanted for neither of its two nodes is as bad as two such options."""
    def option(cost: float, nodes: str, unwanted: int) -> Option:
        return Option(cost, tuple(nodes), (), tuple((node, "NCHW") for node in nodes),
                      len(nodes) > 1, unwanted)

    options = [option(1.0, "a", 1), option(80.0, "a", 0), option(1.0, "b", 1),
               option(1.0, "ab", 2), option(5.0, "ab", 1)]
    least = minimise(options, {}, lambda value, source, target: math.inf, required={})
    assert least.options == (4,)
    assert minimise(options[:4], {}, lambda value, source, target: math.inf,
                    required={}).options == (1, 2)
