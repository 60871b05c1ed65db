"""Definition of batch norm, which resolve() turns into element-wise arithmetic."""

from __future__ import annotations

import numpy as np

from gossamer.expression import Expression, ExpressionStep
from gossamer.model.graph import Node
from gossamer.model.opset.definition import define, never_jumps, resolved
from gossamer.model.opset.state import InferenceState

AFFINE = Expression(4, (ExpressionStep("sub", (0, 1)), ExpressionStep("mul", (4, 2)),
                        ExpressionStep("add", (5, 3))))
"""The expression (x - mean) * scale + shift, with these inputs in the order x, mean, scale,
shift."""


def batch_norm_constants(
    arrays: list[np.ndarray], epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns mean, scale and shift in float64, with which batch norm is
    (x - mean) * scale + shift.

    arrays: gamma, beta, mean and variance.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        gamma, beta, mean, variance = (a.astype(np.float64) for a in arrays)
        return mean, gamma / np.sqrt(variance + epsilon), beta


def _batch_norm_shape(state: InferenceState, node: Node) -> None:
    """Emits (x - mean) * scale + shift in this order: in x * scale + (shift - mean * scale) the
    terms would cancel in float32."""
    shape = state.shapes[node.inputs[0]]
    arrays = [state.known[name] for name in node.inputs[1:]]
    if len(shape) < 2 or shape[1] != arrays[0].size:
        raise state.error(node, f"input has shape {list(shape)}, expected {arrays[0].size} "
                                "channels")
    operands = [node.inputs[0]]
    values = batch_norm_constants(arrays, node.attributes["epsilon"])
    for role, value in zip(("mean", "scale", "shift"), values, strict=True):
        array = value.astype(np.float32).reshape(-1, *[1] * (len(shape) - 2))
        operands.append(state.know(state.new_name(node, role), array))
    state.emit(node, shape, op="elementwise", inputs=operands, expression=AFFINE)


DEFINITIONS = (
    define("batch_norm", text="x, gamma, beta, mean, variance, all constants but x; epsilon",
           shape=_batch_norm_shape, evaluate=resolved, mixes=resolved, passes_values=True,
           jumps=never_jumps, facts=resolved, float_only=True, attribute_inputs=()),
)
