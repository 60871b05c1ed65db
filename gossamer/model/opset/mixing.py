"""Mixing rules that several ops share."""

from __future__ import annotations

import numpy as np

from gossamer.model.graph import Node, StaticGraph


def works_across_images(static: StaticGraph, node: Node, with_batch: set[str]) -> str | None:
    """The mixing rule of an op that works along its attribute `axis`."""
    rank = len(static.shapes[node.inputs[0]])
    if rank and node.attributes["axis"] % rank == 0:
        return "works across axis 0, along which the inputs of a batch lie"
    return None


def broadcasts_across_images(static: StaticGraph, node: Node, with_batch: set[str]) -> str | None:
    """The mixing rule of an op whose inputs broadcast to its output's shape."""
    shape = static.shapes[node.outputs[0]]
    if any(len(static.shapes[name]) < len(shape) for name in node.inputs if name in with_batch):
        return "lays the batch along another axis"
    for name in node.inputs:
        constant = static.constants.get(name)
        if constant is None or constant.ndim < len(shape) or len(constant) < 2:
            continue
        if not np.array_equal(constant, np.broadcast_to(constant[:1], constant.shape)):
            return "treats the inputs of a batch by their place in it"
    return None
