"""Networks that have no plan assignment are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gossamer.plan.choose.plan_assignment import AssignmentNode, NodeOption
from tests.plan.choose.plan_assignment.network import Network


def _pair(cost: float, conversion: float) -> Network:
    nodes = (AssignmentNode((NodeOption(cost, ("NCHW",), ("NCHW",)),), ("x",), ("y",)),
             AssignmentNode((NodeOption(1.0, ("NHWC",), ("NHWC",)),), ("y",), ("z",)))
    return Network(nodes, {"x": "NCHW"}, {}, {("y", "NCHW", "NHWC"): conversion})


@pytest.mark.parametrize(("network", "message"), [
    (_pair(math.inf, 1.0), r"finite cost: node 0 \(writes 'y'\) has no option that can be used"),
    (_pair(1.0, math.inf), "finite cost: value 'y' can be converted from no format"),
    (_pair(-1.0, 1.0), r"node 0 \(writes 'y'\): an option costs -1.0, expected 0 or more"),
    (_pair(math.nan, 1.0), "an option costs nan"),
    (_pair(1.0, -2.0), "conversion of 'y' from NCHW to NHWC costs -2.0"),
    (replace(_pair(1.0, 1.0), fixed={}), r"node 0 \(writes 'y'\) reads 'x', which is neither"),
    (replace(_pair(1.0, 1.0), required={"w": "NCHW"}), "network outside reads 'w'"),
    (replace(_pair(1.0, 1.0), fixed={"x": "NCHW", "y": "NCHW"}), "'y' is written twice"),
    (Network((AssignmentNode((NodeOption(1.0, (), ("NCHW",)),), ("x",), ("y",)),),
             {"x": "NCHW"}, {}, {}),
     "needs 0 and gives 1 formats, the node has 1 inputs and 1 outputs"),
    (Network((AssignmentNode((), (), ("y",)),), {}, {}, {}), "node 0 .* has no option"),
    (Network((AssignmentNode((NodeOption(1.0, ("NCHW",), ("NCHW",)),
                          NodeOption(1.0, ("NHWC",), ("NCHW",))),
                         ("y",), ("y",)),), {}, {}, {}), "reads its own output 'y'"),
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
