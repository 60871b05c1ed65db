"""Options that are slower by no more than the slack count as the cheapest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gossamer.plan.choose.plan_assignment import AssignmentNode, NodeOption, PlanAssignment
from tests.plan.choose.plan_assignment.network import Network


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
    """Two nodes take the fusion, of which both options are wanted, though all else is cheaper."""
    def node(source: str, target: str, *, cost: float, needs: str, gives: str) -> AssignmentNode:
        return AssignmentNode((
            NodeOption(1.0, ("NCHW",), ("NCHW",), is_wanted=False),
            NodeOption(cost, (needs,), (gives,), of_fusion=True),
            NodeOption(900.0, ("NHWC",), ("NHWC",))), (source,), (target,))

    nodes = (node("x", "y", cost=math.inf, needs="NCHW", gives="inside"),
             node("y", "z", cost=0.0, needs="inside", gives="NCHW"))
    conversions = {(value, *pair): cost for value in "xyz" for pair, cost in {
        ("NCHW", "NHWC"): 50.0, ("NHWC", "NCHW"): 50.0, ("NCHW", "inside"): math.inf,
        ("NHWC", "inside"): math.inf, ("inside", "NCHW"): math.inf,
        ("inside", "NHWC"): math.inf}.items()}
    network = Network(nodes, {"x": "NCHW"}, {"z": "NCHW"}, conversions)
    assert network.minimise().options == (2, 2)
    first = replace(nodes[0], options=(
        nodes[0].options[0], replace(nodes[0].options[1], cost=500.0), nodes[0].options[2]))
    assert replace(network, nodes=(first, nodes[1])).minimise().options == (1, 1)
    # where no option of a node is wanted, the costs of its options decide
    second = replace(nodes[1], options=nodes[1].options[:1])
    assert replace(network, nodes=(first, second)).minimise().options == (2, 0)
