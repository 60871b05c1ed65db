"""The reference that contenders are checked against: a network's first output in float64."""

from __future__ import annotations

import numpy as np

from gossamer.model.graph import Graph
from gossamer.plan.tune import reference as network_reference


def reference(graph: Graph, x: np.ndarray) -> np.ndarray:
    """Returns the network's first output for its one input `x`, in float64."""
    outputs = network_reference.reference(graph, {graph.inputs[0].name: x})
    return outputs[graph.outputs[0].name]
