"""Definitions of ops that are products with constant matrices, and of reshape_by.

The matrices follow from shapes and attributes. reshape_by is a reshape whose sizes are products of
sizes of other values. resolve() turns all ops of this module into matrix products and other ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gossamer.expression import apply
from gossamer.model.graph import Node
from gossamer.model.opset.definition import RESOLVED, InferenceState, OpDef, never
from gossamer.resampling import between

_LONGEST_SUMS = {"float32": 4096, "int32": 512, "int64": 512}
"""Maximum length of an axis for cumulative sums, by dtype. The limit is lower for integers, whose
sums need memory for each pair of elements."""
_ARRAYS_AT_ONCE = 8
"""Number of arrays, each as large as the weights, that interpolation() holds in memory at once."""


def _reshape_by_shape(state: InferenceState, node: Node) -> None:
    sizes = [math.prod(state.shapes[node.inputs[index]][axis] for index, axis in pairs)
             for pairs in node.attributes["sizes"]]
    if math.prod(sizes) != math.prod(state.shapes[node.inputs[0]]):
        raise state.error(node, f"inputs of shapes "
                                f"{' and '.join(str(list(state.shapes[n])) for n in node.inputs)} "
                                "do not fit each other")
    if node.inputs[0] in state.known:
        state.know(node.outputs[0], state.known[node.inputs[0]].reshape(sizes))
    else:
        state.reshape(node, sizes)


def _sums_up_to_shape(state: InferenceState, node: Node) -> None:
    """Emit cumulative sums as a product with a triangular matrix.

    Integers are multiplied element by element and summed, because matrix products support floats
    only.
    """
    x = node.inputs[0]
    shape, dtype = state.shapes[x], state.dtypes[x]
    axis = state.axis(node, node.attributes["axis"], len(shape))
    length = shape[axis]
    longest = _LONGEST_SUMS.get(dtype, 0)
    if length > longest:
        raise state.unsupported(node, f"sums along {length} elements of {dtype}; gossamer computes "
                                      f"up to {longest}")
    state.check_constant(node, (length, length), dtype)
    ones = np.ones((length, length), dtype)
    offset = 1 if node.attributes["exclusive"] else 0
    matrix = np.tril(ones, -offset) if node.attributes["reverse"] else np.triu(ones, offset)
    if dtype == "float32":
        _multiply(state, node, x, [(axis, matrix)])
        return
    # the sums are over `axis`, and a new axis after it indexes the results
    name = state.know(state.new_name(node, "matrix"),
                      matrix.reshape(length, length, *[1] * (len(shape) - axis - 1)))
    spread = (*shape[:axis + 1], 1, *shape[axis + 1:])
    x = state.reshape(node, spread, x, [state.new_name(node, "spread")])
    terms = state.emit(node, np.broadcast_shapes(spread, state.shapes[name]), op="elementwise",
                       inputs=[x, name], outputs=[state.new_name(node, "terms")], dtype=dtype,
                       expression=apply("mul"))
    state.emit(node, shape, op="reduce", inputs=[terms], kind="sum", axes=(axis,), keepdims=False)


def _resize_linearly_shape(state: InferenceState, node: Node) -> None:
    """Emit a product with a matrix of weights for each dimension that is resampled."""
    shape = state.shapes[node.inputs[0]]
    axes = [state.axis(node, axis, len(shape))
            for axis in node.attributes.get("axes") or range(len(shape))]
    scales, sizes = node.attributes.get("scales"), node.attributes.get("sizes")
    factors = sizes or scales
    if not factors or len(factors) != len(axes) or min(factors) < 0:
        raise state.error(node, f"has {'sizes' if sizes else 'scales'} {list(factors or ())}, "
                                f"expected {len(axes)} numbers")
    matrices = []
    for index, (axis, factor) in enumerate(zip(axes, factors, strict=True)):
        size = shape[axis]
        is_same = (not sizes or factor == size) and (not scales or scales[index] == 1)
        if is_same or (axis == 0 and sizes and factor == state.graph.fixed_batch
                       and state.follows_batch(node.inputs[0])):
            continue
        length = int(factor) if sizes else math.floor(size * factor)
        if not size and not length:
            continue
        if not size or not length:
            raise state.unsupported(node, f"resizes dimension {axis} from {size} to {length}")
        scale = float(scales[index]) if scales else length / size
        state.check_constant(node, (size, length), "float64")
        state.check_size(node, weights_while_computed(length, scale, node.attributes), "float64")
        matrices.append((axis, interpolation(size, length, scale, node.attributes)))
    if matrices:
        _multiply(state, node, node.inputs[0], matrices)
    else:
        state.alias(node)


def _multiply(state: InferenceState, node: Node, x: str,
              matrices: list[tuple[int, np.ndarray]]) -> None:
    """Multiply x by a matrix along each of the given axes.

    The axes are processed one after another; each axis is moved to the end for its product.

    matrices: pairs of an axis and its matrix.
    """
    rank = len(state.shapes[x])
    order = list(range(rank))
    for axis, matrix in matrices:
        wanted = [*(other for other in order if other != axis), axis]
        x = _reordered(state, node, x, order, wanted, f"last{axis}")
        order = wanted
        name = state.know(state.new_name(node, f"matrix{axis}"), matrix.astype(np.float32))
        is_last = axis == matrices[-1][0] and order == list(range(rank))
        x = state.emit(node, (*state.shapes[x][:-1], matrix.shape[1]), op="matmul",
                       inputs=[x, name],
                       outputs=node.outputs if is_last else [state.new_name(node, f"by{axis}")])
    if order != list(range(rank)):
        state.emit(node, [state.shapes[x][order.index(axis)] for axis in range(rank)],
                   op="transpose", inputs=[x],
                   permutation=tuple(order.index(axis) for axis in range(rank)))


def _reordered(state: InferenceState, node: Node, x: str, order: list[int], wanted: list[int],
               role: str) -> str:
    """Emit a transpose of x from one order of its dimensions to another.

    Returns the name of the result; x itself if the orders `order` and `wanted` are equal.
    """
    if order == wanted:
        return x
    permutation = tuple(order.index(axis) for axis in wanted)
    return state.emit(node, [state.shapes[x][axis] for axis in permutation], op="transpose",
                      inputs=[x], outputs=[state.new_name(node, role)], permutation=permutation)


def interpolation(size: int, length: int, scale: float, rule: Mapping[str, Any]) -> np.ndarray:
    """Return the float64 matrix (size, length) of an interpolation.

    The product of a vector of `size` elements with the matrix is the vector resized to `length`
    elements, as ONNX's Resize defines.

    scale: ratio of output to input.
    rule: attributes of ONNX's Resize by name.
    "mode": "cubic" or "linear".
    "coordinates": one of gossamer.resampling.COORDINATES.
    "antialias": whether the filter is widened if the vector becomes shorter.
    "cubic_coefficient": the coefficient `a` of the cubic filter.
    "exclude_outside": if true, positions outside the vector have weight 0, and the other weights
    are scaled so that their sum is 1. If false, the weights of positions outside the vector are
    added to the weight of the first or the last element.
    """
    low, part = between(size, length, scale, rule["coordinates"])
    stretch, reach = _reach(scale, rule)
    taps = np.arange(-reach, reach + 2)
    elements = low[:, None] + taps
    distance = np.abs(part[:, None] - taps) * stretch
    weights = _cubic(distance, rule["cubic_coefficient"]) if rule["mode"] == "cubic" else (
        np.maximum(1 - distance, 0))
    if rule["exclude_outside"] or rule["antialias"]:
        if rule["exclude_outside"]:
            weights[(elements < 0) | (elements >= size)] = 0
        weights /= weights.sum(1, keepdims=True)
    matrix = np.zeros((size, length))
    np.add.at(matrix, (np.clip(elements, 0, size - 1), np.arange(length)[:, None]), weights)
    return matrix


def weights_while_computed(length: int, scale: float, rule: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a float64 array as large as the temporaries of interpolation().

    Callers check whether an array of this shape is allowed.
    """
    return (_ARRAYS_AT_ONCE, length, 2 * _reach(scale, rule)[1] + 2)


def _reach(scale: float, rule: Mapping[str, Any]) -> tuple[float, int]:
    """Return the factor by which distances are multiplied, and the filter's radius in elements.

    Elements farther away than the radius have weight 0.
    """
    stretch = min(scale, 1.0) if rule["antialias"] else 1.0
    return stretch, math.ceil((2 if rule["mode"] == "cubic" else 1) / stretch)


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Return the weights of R. G. Keys's cubic convolution (1981) at some distances."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


DEFINITIONS = (
    OpDef("reshape_by",
          text="x, and further values, of which only the shapes are read; sizes: for each "
               "dimension of the result, pairs (index of an input, axis of this input); the size "
               "of the dimension is the product of the sizes of these axes",
          shape=_reshape_by_shape, **RESOLVED, passes_values=True, discontinuous=never,
          float_only=False, attribute_inputs=()),
    OpDef("sums_up_to",
          text="x; axis; exclusive: whether the sum at an element excludes this element; reverse: "
               "whether sums begin at the end of the axis",
          shape=_sums_up_to_shape, **RESOLVED, passes_values=True, discontinuous=never,
          float_only=False, attribute_inputs=()),
    OpDef("resize_linearly",
          text="x; axes; scales and sizes of these axes; mode, coordinates, antialias, "
               "cubic_coefficient, exclude_outside: as in interpolation()",
          shape=_resize_linearly_shape, **RESOLVED, passes_values=True, discontinuous=never,
          float_only=True, attribute_inputs=("scales", "sizes")),
)
