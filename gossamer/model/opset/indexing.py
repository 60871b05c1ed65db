"""Definitions of ops that repeat, select or replace elements at known positions.

The positions do not depend on the data. resolve() turns these ops into simpler ones, such as
gathers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gossamer.expression import Expression, ExpressionStep
from gossamer.model.graph import Node
from gossamer.model.opset.definition import RESOLVED, InferenceState, OpDef, Shape, never
from gossamer.model.opset.elementwise import check_dtypes

_KEEP_WHERE = Expression(2, (ExpressionStep("constant", (), (0.0,)),
                             ExpressionStep("where", (0, 1, 2))))
"""An expression: input 1 where input 0 is not 0, and 0 elsewhere."""


def _tile_shape(state: InferenceState, node: Node) -> None:
    """Repeat a value along its dimensions.

    A dimension of size 1 is inserted before each repeated dimension, expanded to the number of
    repeats, and merged with the repeated dimension.
    """
    shape, repeats = state.shapes[node.inputs[0]], node.attributes["repeats"]
    if len(repeats) != len(shape) or min(repeats, default=1) < 0:
        raise state.error(node, f"repeats shape {list(shape)} by {list(repeats)}, expected "
                                f"{len(shape)} numbers of 0 or more")
    spread: list[int] = []
    wide: list[int] = []
    for size, count in zip(shape, repeats, strict=True):
        spread += [size] if count == 1 else [1, size]
        wide += [size] if count == 1 else [count, size]
    if spread == list(shape):
        state.alias(node)
        return
    if node.inputs[0] in state.known:
        state.check_size(node, wide, "float64")
        _know(state, node, np.tile(state.known[node.inputs[0]], repeats))
        return
    x = state.reshape(node, spread, node.inputs[0], [state.new_name(node, "spread")])
    x = state.emit(node, wide, op="expand", inputs=[x], outputs=[state.new_name(node, "wide")],
                   shape=tuple(wide))
    state.reshape(node, [a * b for a, b in zip(shape, repeats, strict=True)], x, node.outputs)


def _triangle_shape(state: InferenceState, node: Node) -> None:
    """Keep the upper or lower triangle of matrices with an element-wise `where`."""
    shape = state.shapes[node.inputs[0]]
    if len(shape) < 2:
        raise state.error(node, f"input has shape {list(shape)}, expected 2 dimensions or more")
    # clamped: a diagonal outside of the matrix keeps all elements or none, however far away it is
    diagonal = max(-shape[-2], min(shape[-1], int((node.attributes.get("diagonal") or (0,))[0])))
    dtype = state.dtypes[node.inputs[0]]
    check_dtypes(state, node, [dtype])
    dtype = "float32" if dtype == "bool" else dtype
    state.check_constant(node, shape[-2:], "float64")
    kept = np.ones(shape[-2:], dtype)
    if kept.size:
        # skipped for empty matrices, which may have more rows or columns than fit in memory
        row, column = np.arange(shape[-2])[:, None] + diagonal, np.arange(shape[-1])
        kept[column < row if node.attributes["upper"] else column > row] = 0
    name = state.know(state.new_name(node, "kept"), kept)
    state.emit(node, shape, op="elementwise", inputs=[name, node.inputs[0]], dtype=dtype,
               expression=_KEEP_WHERE)


def _known_indices(state: InferenceState, node: Node) -> np.ndarray:
    """Return the indices that a node reads as its second input.

    Raises UnsupportedError if the indices depend on the data.
    """
    name = node.inputs[1]
    if name not in state.known:
        raise state.unsupported(node, f"reads indices from {name!r}, which depends on the data; "
                                      "expected indices that follow from shapes and constants")
    return state.known[name].astype(np.int64)


def positive(state: InferenceState, node: Node, indices: np.ndarray, size: int,
             axis: int) -> np.ndarray:
    """Return nonnegative indices along an axis of `size` elements.

    Negative indices count from the end. Raises ModelError for an index outside of the axis.
    """
    if indices.size and (indices.min() < -size or indices.max() >= size):
        wrong = indices.min() if indices.min() < -size else indices.max()
        raise state.error(node, f"index {wrong} is outside dimension {axis} of shape "
                                f"{list(state.shapes[node.inputs[0]])}")
    return np.where(indices < 0, indices + size, indices)


def _positions_of_slices(state: InferenceState, node: Node, batch_dims: int
                      ) -> tuple[np.ndarray, Shape]:
    """Return the flat indices of slices, and the sizes of the leading dimensions.

    The leading dimensions of the first input are its first `batch_dims` dimensions, and one further
    dimension for each element along the last axis of the second input, which is an index along that
    dimension. A slice is the part of the first input at one position in the leading dimensions. A
    flat index is a position in the leading dimensions after they are flattened.
    """
    shape, indices = state.shapes[node.inputs[0]], _known_indices(state, node)
    count = batch_dims + (indices.shape[-1] if indices.ndim else len(shape) + 1)
    if count > len(shape) or indices.ndim <= batch_dims or (
            indices.shape[:batch_dims] != shape[:batch_dims]):
        raise state.error(node, f"indices of shape {list(indices.shape)} do not fit an input of "
                                f"shape {list(shape)} with batch_dims {batch_dims}")
    state.check_size(node, indices.shape, "int64")
    positions = np.zeros(indices.shape[:-1], np.int64)
    for axis in range(count):
        along = (np.arange(shape[axis]).reshape(-1, *[1] * (positions.ndim - axis - 1))
                 if axis < batch_dims else
                 positive(state, node, indices[..., axis - batch_dims], shape[axis], axis))
        positions = positions * shape[axis] + along
    return positions, shape[:count]


def _positions_of_elements(state: InferenceState, node: Node) -> np.ndarray:
    """Return the flat positions, in the first input, of the elements that the indices select.

    Along the node's axis, the coordinate of an element is the index itself. Along every other axis,
    the element has the same coordinate in the first input as the index has in the array of indices.
    """
    shape, indices = state.shapes[node.inputs[0]], _known_indices(state, node)
    axis = state.axis(node, node.attributes["axis"], len(shape))
    if indices.ndim != len(shape) or any(
            count > size for other, (count, size)
            in enumerate(zip(indices.shape, shape, strict=True)) if other != axis):
        raise state.error(node, f"indices of shape {list(indices.shape)} do not fit an input of "
                                f"shape {list(shape)} along axis {axis}")
    state.check_size(node, indices.shape, "int64")
    positions = np.zeros(indices.shape, np.int64)
    for other, size in enumerate(indices.shape):
        along = (positive(state, node, indices, shape[axis], axis) if other == axis else
                 np.arange(size).reshape(-1, *[1] * (indices.ndim - other - 1)))
        positions = positions * shape[other] + along
    return positions


def _gather_flat(state: InferenceState, node: Node, x: str, positions: np.ndarray, rest: Shape
                 ) -> None:
    """Emit a gather of slices of shape `rest` along the first axis of x."""
    state.check_constant(node, positions.shape, "int64")
    name = state.know(state.new_name(node, "positions"), positions)
    state.emit(node, (*positions.shape, *rest), op="gather", inputs=[x, name], axis=0)


def _gather_nd_shape(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    positions, leading = _positions_of_slices(state, node, node.attributes["batch_dims"])
    rest = shape[len(leading):]
    flat = state.reshape(node, (math.prod(leading), *rest), node.inputs[0],
                         [state.new_name(node, "flat")])
    _gather_flat(state, node, flat, positions, rest)


def _gather_elements_shape(state: InferenceState, node: Node) -> None:
    positions = _positions_of_elements(state, node)
    flat = state.reshape(node, (math.prod(state.shapes[node.inputs[0]]),), node.inputs[0],
                         [state.new_name(node, "flat")])
    _gather_flat(state, node, flat, positions, ())


def _scatter_nd_shape(state: InferenceState, node: Node) -> None:
    positions, leading = _positions_of_slices(state, node, 0)
    _replace(state, node, positions, leading)


def _scatter_elements_shape(state: InferenceState, node: Node) -> None:
    _replace(state, node, _positions_of_elements(state, node), state.shapes[node.inputs[0]])


def _know(state: InferenceState, node: Node, result: np.ndarray) -> None:
    """Record the result of a node with known inputs, instead of emitting nodes.

    If nodes were emitted, all their results would become constants, which together might exceed the
    memory limit of the file.
    """
    state.check_constant(node, result.shape, result.dtype.name)
    state.know(node.outputs[0], result)


def _replace(state: InferenceState, node: Node, positions: np.ndarray,
             leading: Sequence[int]) -> None:
    """Emit nodes that replace slices of the first input by slices of the third.

    The two inputs are concatenated, and each slice of the result is gathered from the
    concatenation. If every slice is replaced, only the third input is read.

    positions: the indices of the replaced slices, in the flattened leading dimensions. If an index
    occurs several times, the last slice of the third input with this index is used.
    leading: sizes of the leading dimensions.
    """
    x, updates = node.inputs[0], node.inputs[2]
    shape, rest = state.shapes[x], state.shapes[x][len(leading):]
    if state.shapes[updates] != (*positions.shape, *rest):
        raise state.error(node, f"updates have shape {list(state.shapes[updates])}, expected "
                                f"{[*positions.shape, *rest]}")
    count = math.prod(leading)
    if x in state.known and updates in state.known:
        result = state.known[x].reshape(count, *rest).copy()
        result[positions.reshape(-1)] = state.known[updates].reshape(positions.size, *rest)
        _know(state, node, result.reshape(shape))
        return
    state.check_size(node, (count,), "int64")
    taken = np.arange(count)
    taken[positions.reshape(-1)] = count + np.arange(positions.size)
    if (taken >= count).all():
        if np.array_equal(taken, count + np.arange(positions.size)):
            node.inputs = [updates]
            state.reshape(node, shape)
            return
        flat = state.reshape(node, (positions.size, *rest), updates, [state.new_name(node, "flat")])
        _gather_flat(state, node, flat, (taken - count).reshape(tuple(leading)), rest)
        return
    parts = [state.reshape(node, (size, *rest), name, [state.new_name(node, f"flat{index}")])
             for index, (name, size) in enumerate(((x, count), (updates, positions.size)))]
    both = state.emit(node, (count + positions.size, *rest), op="concat",
                      inputs=state.in_one_dtype(node, parts),
                      outputs=[state.new_name(node, "both")], axis=0)
    _gather_flat(state, node, both, taken.reshape(tuple(leading)), rest)


DEFINITIONS = tuple(
    OpDef(name, text=text, shape=shape, **RESOLVED, passes_values=True, discontinuous=never,
          float_only=False, attribute_inputs=inputs)
    for name, text, shape, inputs in (
        ("tile", "x; repeats", _tile_shape, ("repeats",)),
        ("triangle", "x: matrices; upper: whether the upper triangle is kept, else the lower; "
                     "diagonal: a tuple with the offset of the triangle's edge from the main "
                     "diagonal", _triangle_shape, ("diagonal",)),
        ("gather_nd", "x, indices; batch_dims", _gather_nd_shape, ()),
        ("gather_elements", "x, indices; axis", _gather_elements_shape, ()),
        ("scatter_nd", "x, indices, updates; no attributes", _scatter_nd_shape, ()),
        ("scatter_elements", "x, indices, updates; axis", _scatter_elements_shape, ())))
