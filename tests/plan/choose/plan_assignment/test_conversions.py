"""Conversions of layouts count in what a labelling costs."""

from __future__ import annotations

from gossamer.plan.choose.plan_assignment import Choice, Labelling, Node
from tests.plan.choose.plan_assignment.network import Network


def test_a_slower_choice_is_taken_for_the_conversions_that_it_saves() -> None:
    nodes = (Node((Choice(100.0, ("NHWC",), ("NCHW",)), Choice(110.0, ("NCHW",), ("NCHW",)),
                   Choice(109.0, ("NCHW",), ("NCHW",))), ("x",), ("y",)),)
    network = Network(nodes, {"x": "NCHW"}, {"y": "NCHW"}, {("x", "NCHW", "NHWC"): 20.0})
    assert network.minimise() == Labelling((1,), 110.0, 109.0)


def test_readers_share_one_conversion() -> None:
    nodes = (Node((Choice(1.0, (), ("NCHW",)),), (), ("x",)),
             *(Node((Choice(4.0, ("NCHW",), ()), Choice(1.0, ("NHWC",), ())), ("x",), ())
               for _ in range(3)))
    network = Network(nodes, {}, {}, {("x", "NCHW", "NHWC"): 5.0})
    assert network.minimise() == Labelling((0, 1, 1, 1), 9.0, 9.0)


def test_an_empty_network_converts_its_inputs() -> None:
    network = Network((), {"x": "NCHW"}, {"x": "NHWC"}, {("x", "NCHW", "NHWC"): 3.0})
    assert network.minimise() == Labelling((), 3.0, 3.0)
