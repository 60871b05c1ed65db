"""Optimises a graph for a device."""

from __future__ import annotations

from gossamer.device.base import Device
from gossamer.model.graph import Graph
from gossamer.model.passes.optimise import optimise


def optimised_for(graph: Graph, device: Device) -> Graph:
    """Returns the graph with the same results that is planned for a device."""
    return optimise(graph, channels_first=device.compiles,
                    chooses_by_weights=device.compiles and not device.on_processors)
