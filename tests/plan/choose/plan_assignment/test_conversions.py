"""Conversions of layouts count in what a plan assignment costs."""

from __future__ import annotations

from gossamer.plan.choose.plan_assignment import NodeOption, OptionNode, PlanAssignment
from tests.plan.choose.plan_assignment.network import Network


def test_a_slower_choice_is_taken_for_the_conversions_that_it_saves() -> None:
    nodes = (OptionNode((NodeOption(100.0, ("NHWC",), ("NCHW",)), NodeOption(110.0, ("NCHW",), ("NCHW",)),
                   NodeOption(109.0, ("NCHW",), ("NCHW",))), ("x",), ("y",)),)
    network = Network(nodes, {"x": "NCHW"}, {"y": "NCHW"}, {("x", "NCHW", "NHWC"): 20.0})
    assert network.minimise() == PlanAssignment((1,), 110.0, 109.0)


def test_readers_share_one_conversion() -> None:
    nodes = (OptionNode((NodeOption(1.0, (), ("NCHW",)),), (), ("x",)),
             *(OptionNode((NodeOption(4.0, ("NCHW",), ()), NodeOption(1.0, ("NHWC",), ())), ("x",), ())
               for _ in range(3)))
    network = Network(nodes, {}, {}, {("x", "NCHW", "NHWC"): 5.0})
    assert network.minimise() == PlanAssignment((0, 1, 1, 1), 9.0, 9.0)


def test_an_empty_network_converts_its_inputs() -> None:
    network = Network((), {"x": "NCHW"}, {"x": "NHWC"}, {("x", "NCHW", "NHWC"): 3.0})
    assert network.minimise() == PlanAssignment((), 3.0, 3.0)
