"""Options that are slower by no more than the slack count as the cheapest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from gossamer.plan.choose.plan_assignment import Option, PlanAssignment, minimise
from tests.plan.choose.plan_assignment.network import AssignmentNode, Network, NodeOption


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
