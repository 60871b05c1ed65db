"""An interpreter of static graphs in float64, by the references of the ops that they are lowered
to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gossamer.model.graph import StaticGraph
from gossamer.ops.registry import OPS
from gossamer.plan.lower.rules import lower


def execute(static: StaticGraph, inputs: Mapping[str, np.ndarray], stored: str = "float64"
            ) -> dict[str, np.ndarray]:
    """Returns every value of the graph, floating-point ones in float64, and checks their shapes
    against the graph's.

    stored: dtype to which all floats are rounded: weights, inputs and the results of layers.
    """
    # weights may be constants of this batch size alone
    static = replace(static, graph=replace(static.graph, constants=static.constants))
    layers, constants = lower(static)
    values = {name: _rounded(array, stored) for name, array in {**constants, **inputs}.items()}
    for layer in layers:
        arrays = [values[name] for name in layer.inputs]
        if layer.is_reshape:
            results = [arrays[0].reshape(layer.problem.outputs[0].shape)]
        else:
            weights = {name: _rounded(array, stored).astype(array.dtype, copy=False)
                       for name, array in layer.weights.items()}
            results = OPS[layer.op].reference(layer.problem, arrays, weights)
        for name, result in zip(layer.outputs, results, strict=True):
            assert name not in values, layer
            assert result.shape == static.shapes[name], (layer, result.shape)
            declared = np.dtype(static.dtypes[name])
            assert result.dtype.kind == declared.kind, (layer, result.dtype, declared)
            values[name] = _rounded(result, stored)
    return values


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False).astype(np.float64, copy=False)
