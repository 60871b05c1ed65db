"""What a network's outputs should be: computed in float64, layer by layer, nothing folded."""

from __future__ import annotations

import numpy as np

from gossamer.model.graph import Graph
from gossamer.model.shapes import resolve
from gossamer.ops import OPS
from gossamer.plan.lower import lower


def reference(graph: Graph, x: np.ndarray) -> np.ndarray:
    """The first output for the first input `x`, in float64."""
    static = resolve(graph, len(x))
    layers, constants = lower(static)
    values: dict[str, np.ndarray] = {**constants, graph.inputs[0].name: x.astype(np.float64)}
    for layer in layers:
        inputs = [values[name] for name in layer.inputs]
        if layer.problem is None:
            values[layer.outputs[0]] = inputs[0].reshape(layer.output_specs[0].shape)
            continue
        results = OPS[layer.op].reference(layer.problem, inputs, layer.weights)
        values.update(zip(layer.outputs, results, strict=True))
    return values[graph.outputs[0].name]


def normalised_error(y: np.ndarray, expected: np.ndarray) -> float:
    """The largest, over the images, of |y - expected| / |expected| in 2-norms; infinite where y
    is not finite."""
    if y.shape != expected.shape:
        raise ValueError(f"the output has shape {y.shape}, expected {expected.shape}")
    wide = y.astype(np.float64).reshape(len(y), -1)
    if not np.isfinite(wide).all():
        return float("inf")
    expected = expected.reshape(len(y), -1)
    difference = np.linalg.norm(wide - expected, axis=1)
    return float((difference / np.maximum(np.linalg.norm(expected, axis=1), 1e-300)).max())
