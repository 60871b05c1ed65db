"""Definitions of the ops that compute values from shapes. No such value depends on the data."""

from __future__ import annotations

import math

import numpy as np

from gossamer.model.graph import Node
from gossamer.model.opset.definition import define, never_jumps, resolved
from gossamer.model.opset.state import InferenceState


def _shape_shape(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    start, end = node.attributes.get("start") or 0, node.attributes.get("end")
    state.know(node.outputs[0], np.array(shape[start:end], dtype=np.int64))


def _size_shape(state: InferenceState, node: Node) -> None:
    state.know(node.outputs[0], np.array(math.prod(state.shapes[node.inputs[0]]), dtype=np.int64))


def _known_inputs(state: InferenceState, node: Node) -> list[np.ndarray]:
    """Returns the values of all inputs. Raises UnsupportedError where the data decide a value."""
    for name in node.inputs:
        if name not in state.known:
            raise state.unsupported(node, f"depends on {name!r}, which the data decides; expected "
                                          "a value that follows from the input's shape")
    return [state.known[name] for name in node.inputs]


def _constant_of_shape_shape(state: InferenceState, node: Node) -> None:
    (shape,) = _known_inputs(state, node)
    value = np.asarray(node.attributes["value"])
    state.check_constant(node, shape.tolist(), value.dtype.name)
    state.know(node.outputs[0], np.full(shape.tolist(), value))


def _range_shape(state: InferenceState, node: Node) -> None:
    start, limit, delta = (array.item() for array in _known_inputs(state, node))
    dtype = state.dtypes[node.inputs[0]]
    state.check_constant(node, [math.ceil((limit - start) / delta)], "float64")
    state.know(node.outputs[0], np.arange(start, limit, delta).astype(dtype))


DEFINITIONS = tuple(
    define(name, text=text, shape=shape, evaluate=resolved, mixes=resolved, passes_values=False,
           jumps=never_jumps, facts=resolved, float_only=False, attribute_inputs=())
    for name, text, shape in (
        ("shape", "x; start, end", _shape_shape), ("size", "x; no attributes", _size_shape),
        ("constant_of_shape", "shape; value", _constant_of_shape_shape),
        ("range", "start, limit, delta; no attributes", _range_shape)))
