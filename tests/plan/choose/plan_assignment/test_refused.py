"""Networks that have no plan assignment are refused."""

from __future__ import annotations

import math

import pytest

from tests.plan.choose.plan_assignment.network import AssignmentNode, Network, NodeOption


def _pair(cost: float, conversion: float) -> Network:
    nodes = (AssignmentNode((NodeOption(cost, ("NCHW",), ("NCHW",)),), ("x",), ("y",)),
             AssignmentNode((NodeOption(1.0, ("NHWC",), ("NHWC",)),), ("y",), ("z",)))
    return Network(nodes, {"x": "NCHW"}, {}, {("y", "NCHW", "NHWC"): conversion})


@pytest.mark.parametrize(("network", "message"), [
    (_pair(math.inf, 1.0), "finite cost: 'node 0' has no option that can be used"),
    (_pair(1.0, math.inf), "finite cost: the conversions that some options need rule each other"),
    (Network((), {}, {"y": "NCHW"}, {}), "rule each other out"),
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
    with pytest.raises(ValueError, match="rule each other out"):
        network.minimise()
