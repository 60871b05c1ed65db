"""The input pixels of a nearest-neighbour resize, and their repetitions."""

from __future__ import annotations

import numpy as np

from gossamer.model.graph import Node, StaticGraph
from gossamer.ops.resize.problem import ResizeProblem, nearest
from gossamer.tensor import default_spec


def nearest_positions(static: StaticGraph, node: Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the input row of each output row, and the input column of each output column.

    Returns None for a resize that interpolates, or whose input is not an image.
    """
    a, shape = node.attributes, static.shapes[node.inputs[0]]
    if a["mode"] != "nearest" or len(shape) != 4:
        return None
    problem = ResizeProblem(default_spec(shape), tuple(a["sizes"]), tuple(a["scales"]), a["mode"],
                            a["coordinates"], a["nearest_mode"])
    return nearest(problem, 0), nearest(problem, 1)


def repetitions(positions: np.ndarray, size: int) -> int | None:
    """Return how many times each of `size` input pixels is repeated.

    Returns None unless the output contains all input pixels in order, each repeated equally often.
    """
    times = len(positions) // size
    return times if np.array_equal(positions, np.arange(size).repeat(times)) else None
