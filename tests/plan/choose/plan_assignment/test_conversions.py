"""The cost of a plan assignment includes the conversions of layouts."""

from __future__ import annotations

from gossamer.plan.choose.plan_assignment import PlanAssignment
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
