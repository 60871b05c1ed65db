"""The cost of a plan assignment includes the conversions of layouts."""

from __future__ import annotations

from gossamer.plan.choose.plan_assignment import AssignmentNode, NodeOption, PlanAssignment
from tests.plan.choose.plan_assignment.network import Network


def test_a_slower_option_is_taken_for_the_conversions_that_it_saves() -> None:
    options = (NodeOption(100.0, ("NHWC",), ("NCHW",)), NodeOption(110.0, ("NCHW",), ("NCHW",)),
               NodeOption(109.0, ("NCHW",), ("NCHW",)))
    nodes = (AssignmentNode(options, ("x",), ("y",)),)
    network = Network(nodes, {"x": "NCHW"}, {"y": "NCHW"}, {("x", "NCHW", "NHWC"): 20.0})
    assert network.minimise() == PlanAssignment((1,), frozenset(), 110.0)


def test_readers_share_one_conversion() -> None:
    reader = AssignmentNode((NodeOption(4.0, ("NCHW",), ()), NodeOption(1.0, ("NHWC",), ())),
                        ("x",), ())
    nodes = (AssignmentNode((NodeOption(1.0, (), ("NCHW",)),), (), ("x",)), *[reader] * 3)
    network = Network(nodes, {}, {}, {("x", "NCHW", "NHWC"): 5.0})
    assert network.minimise() == PlanAssignment(
        (0, 1, 1, 1), frozenset({("x", "NCHW", "NHWC")}), 9.0)


def test_an_empty_network_converts_its_inputs() -> None:
    network = Network((), {"x": "NCHW"}, {"x": "NHWC"}, {("x", "NCHW", "NHWC"): 3.0})
    assert network.minimise() == PlanAssignment((), frozenset({("x", "NCHW", "NHWC")}), 3.0)
