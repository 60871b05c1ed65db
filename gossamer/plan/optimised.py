"""Optimises a graph for a device."""

from __future__ import annotations

from gossamer.device.base import Device
from gossamer.model.graph import Graph
from gossamer.model.passes.optimise import optimise


def optimised_for(graph: Graph, device: Device) -> Graph:
    """Returns the graph from which plans for a device are made: optimised, with the same results as
    `graph`."""
    return optimise(graph, channels_first=device.compiles,
                    chooses_by_weights=device.compiles and not device.on_processors)
