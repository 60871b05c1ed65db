"""Definitions of layer norm and of two kinds of batch norm.

resolve() turns a batch norm that uses stored statistics into element-wise arithmetic; a batch norm
that uses the statistics of the batch stays a node.
"""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

from gossamer.expression import Expression, ExpressionStep
from gossamer.model.graph import Node
from gossamer.model.opset.definition import (
    BATCH_AXIS,
    RESOLVED,
    Images,
    InferenceState,
    OpDef,
    never,
    not_evaluated,
    nothing_known,
)

AFFINE = Expression(4, (ExpressionStep("sub", (0, 1)), ExpressionStep("mul", (4, 2)),
                        ExpressionStep("add", (5, 3))))
"""The expression (x - mean) * scale + shift, with the inputs x, mean, scale, shift."""
_SCALED = Expression(3, (ExpressionStep("mul", (0, 1)), ExpressionStep("add", (3, 2))))
"""The expression x * scale + bias, with the inputs x, scale, bias."""


def batch_norm_constants(
    arrays: list[np.ndarray], epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, scale and shift of a batch norm, in float64.

    The batch norm is (x - mean) * scale + shift.

    arrays: gamma, beta, mean and variance.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        gamma, beta, mean, variance = (a.astype(np.float64) for a in arrays)
        return mean, gamma / np.sqrt(variance + epsilon), beta


def affine_constants(arrays: list[np.ndarray], epsilon: float, rank: int
                     ) -> dict[str, np.ndarray]:
    """Return the constants of a batch norm as operands of AFFINE, by name.

    The names are "mean", "scale" and "shift". The arrays are float32, and broadcast to an x with
    `rank` dimensions.
    """
    values = batch_norm_constants(arrays, epsilon)
    return {role: value.astype(np.float32).reshape(-1, *[1] * (rank - 2))
            for role, value in zip(("mean", "scale", "shift"), values, strict=True)}


def _checked_shape(state: InferenceState, node: Node) -> tuple[int, ...]:
    """Return the shape of x.

    Raises ModelError unless x has as many channels as the constants.
    """
    shape, channels = state.shapes[node.inputs[0]], state.known[node.inputs[1]].size
    if len(shape) < 2 or shape[1] != channels:
        raise state.error(node, f"input has shape {list(shape)}, expected {channels} channels")
    return shape


def _batch_norm_shape(state: InferenceState, node: Node) -> None:
    """Emit (x - mean) * scale + shift.

    The order of operations matters: x * scale + (shift - mean * scale) would lose precision in
    float32 by cancellation.
    """
    shape = _checked_shape(state, node)
    arrays = [state.known[name] for name in node.inputs[1:]]
    constants = affine_constants(arrays, node.attributes["epsilon"], len(shape))
    operands = [state.know(state.new_name(node, role), array) for role, array in constants.items()]
    state.emit(node, shape, op="elementwise", inputs=[node.inputs[0], *operands],
               expression=AFFINE)


def _training_shape(state: InferenceState, node: Node) -> None:
    shape = _checked_shape(state, node)
    state.emit(node, shape, several=(shape, shape[1:2], shape[1:2]), **node.attributes)


def _training_mixes(images: Images, node: Node) -> str | None:
    return "normalises by the statistics of all inputs of a batch"


def _layer_norm_shape(state: InferenceState, node: Node) -> None:
    """Emit the node with scale and bias broadcast to the sizes of the normalised axes.

    If one of the two varies along other axes, both are applied after the node.
    """
    shape, axes = state.shapes[node.inputs[0]], node.attributes["axes"]
    if isinstance(axes, int):
        axes = range(state.axis(node, axes, len(shape)), len(shape))
    axes = tuple(sorted({state.axis(node, axis, len(shape)) for axis in axes}))
    if not axes:
        raise state.error(node, f"normalises no axis of its input, which has shape {list(shape)}")
    sizes = tuple(shape[axis] for axis in axes)
    arrays = [state.known[name] for name in node.inputs[1:]]
    fit_axes = all(_broadcasts(array.shape, sizes) for array in arrays)
    are_last = axes == tuple(range(len(shape)))[-len(axes):]
    for role, array in zip(("scale", "bias"), arrays, strict=True):
        if not (_broadcasts(array.shape, sizes) or (
                are_last and array.ndim <= len(shape) and _broadcasts(array.shape, shape))):
            raise state.error(node, f"{role} has shape {list(array.shape)}, expected "
                                    f"{list(sizes)}, the sizes of the normalised axes")
    operands = [node.inputs[0]]
    for role, name, array, plain in zip(("scale", "bias"), node.inputs[1:], arrays, (1, 0),
                                        strict=True):
        if not fit_axes:
            array = np.full(sizes, plain, np.float32)
        elif array.shape != sizes:
            extra = max(array.ndim - len(sizes), 0)  # leading axes, each of size 1
            array = np.broadcast_to(array.reshape(array.shape[extra:]), sizes)
        if array is not state.known[name]:
            name = state.know(state.new_name(node, role), np.ascontiguousarray(array))
        operands.append(name)
    outputs = node.outputs if fit_axes else [state.new_name(node, "normalised")]
    result = state.emit(node, shape, inputs=operands, outputs=outputs, axes=axes,
                        epsilon=node.attributes["epsilon"], centred=node.attributes["centred"])
    if not fit_axes:
        # scale or bias varies along axes that are not normalised, so apply both afterwards
        state.emit(node, shape, op="elementwise", inputs=[result, *node.inputs[1:]],
                   expression=_SCALED)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return whether a shape broadcasts to `target`, ignoring leading dimensions of 1."""
    return all(size in (1, wanted) for size, wanted in zip_longest(
        shape[::-1], target[::-1][:len(shape)], fillvalue=1))


def _layer_norm_mixes(images: Images, node: Node) -> str | None:
    axis = images.axes.get(node.inputs[0])
    return f"normalises along axis {axis}, {BATCH_AXIS}" if (
        axis in node.attributes["axes"]) else None


DEFINITIONS = (
    OpDef("batch_norm", text="x, gamma, beta, mean, variance (all but x are constants); epsilon",
          shape=_batch_norm_shape, **RESOLVED, passes_values=True, discontinuous=never,
          float_only=True, attribute_inputs=()),
    OpDef("batch_norm_training",
          text="x, gamma, beta, mean, variance (all but x are constants); epsilon, momentum; "
               "outputs: x normalised by the mean and the variance of x; momentum * mean + "
               "(1 - momentum) * the mean of x; and momentum * variance + (1 - momentum) * the "
               "variance of x",
          shape=_training_shape, evaluate=not_evaluated, mixes=_training_mixes, passes_values=True,
          discontinuous=never, facts=nothing_known, float_only=True, attribute_inputs=()),
    OpDef("layer_norm",
          text="x, scale, bias (scale and bias are constants with the sizes of the normalised "
               "axes); axes (before resolve() also an int, for all axes from this one on), "
               "epsilon; centred: whether the mean is subtracted",
          shape=_layer_norm_shape, evaluate=not_evaluated, mixes=_layer_norm_mixes,
          passes_values=True, discontinuous=never, facts=nothing_known, float_only=True,
          attribute_inputs=()),
)
