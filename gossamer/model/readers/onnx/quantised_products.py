"""Converters of ONNX's convolutions and matrix products on quantised values.

This includes float convolutions and products between DequantizeLinear and QuantizeLinear. Sums of
products of integers are exact in float32: a sum that might be too large is split into sums over
slices of the channels.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gossamer.errors import UnsupportedError, quoted
from gossamer.expression import Composer, Value, identity
from gossamer.model.readers.onnx.integers import (
    centre,
    constant,
    give,
    quantisation,
    requantise,
)
from gossamer.model.readers.onnx.layers import LAYERS, bias_of, convolution_attributes
from gossamer.model.readers.onnx.node import Centred, Converter, OnnxNode, Scaled

NO_ZERO = np.zeros((), np.float32)
"""The zero point of integers that have none."""
_LARGEST = 2.0**24
"""The magnitude up to which float32 represents all integers exactly."""
_MULTIPLES = (64, 16, 8)
"""Kernels are efficient if the number of input channels is a multiple of one of these numbers; the
best number comes first."""
_UNIT = 2.0**12
"""If there are more than two slices, their sums are each split into a multiple of this unit and a
remainder. The multiples and the remainders are added separately, so that both totals are exact in
float32."""


def _is_one_per_row(scale: np.ndarray, weight: np.ndarray) -> bool:
    """Return whether a scale that broadcasts to weights is one number, or one number per row."""
    return scale.size == 1 or (scale.size == weight.shape[0] == scale.shape[0]
                               and scale.ndim == weight.ndim)


def _per_channel(array: np.ndarray, rank: int) -> np.ndarray:
    """Reshape an array of one number, or of one number per channel, to broadcast to images.

    rank: number of dimensions of the images.
    """
    return array.reshape(-1, *[1] * (rank - 2)) if array.size > 1 else array.reshape(())


def _sums_of_window(node: OnnxNode, x: Centred, weight: np.ndarray) -> list[str]:
    """Add a convolution of integers without its bias, in slices of channels.

    Returns the names of the slices' results; their sum is the convolution.

    weight: integers (M, C/groups, ...).
    """
    attributes = convolution_attributes(node, weight)
    parts = slices(node, weight, x.bounds)
    if len(parts) > 1 and attributes["groups"] > 1:
        raise node.unsupported("has groups with sums that float32 may not hold exactly")
    is_1d = weight.ndim == 3

    def sums_of(sliced: str, part: slice, role: str) -> str:
        own = np.ascontiguousarray(weight[:, part])
        inputs = [sliced, node.add_constant(own[:, :, None] if is_1d else own, f"{role}.weight")]
        if is_1d:
            inputs[0] = node.emit("unsqueeze", [sliced], f"{role}.lifted", axes=(2,))
        result = node.emit("conv2d", inputs, f"{role}.lifted_result" if is_1d else role,
                           epilogue=identity(), **attributes)
        return node.emit("squeeze", [result], role, axes=(2,)) if is_1d else result

    return sliced_sums(node, x.name, parts, 1, sums_of)


def _conv(node: OnnxNode) -> None:
    """Convert Conv.

    If input and weights are integers times a scale, the convolution multiplies the integers.
    """
    x, weight = (node.integers.scaled.get(node.input(index)) for index in (0, 1))
    if x is None or weight is None or weight.array is None or x.scale.size != 1 or (
            not x.integers.name or weight.array.ndim not in (3, 4)) or (
            not _is_one_per_row(weight.scale, weight.array)):
        LAYERS["Conv"](node)
        return
    begin, rows, rank = len(node.graph.nodes), weight.array.shape[0], weight.array.ndim
    bias = bias_of(node, 2, rows) if node.input(2) else ""
    try:
        sums = _sums_of_window(node, x.integers, weight.array)
    except UnsupportedError:
        del node.graph.nodes[begin:]
        LAYERS["Conv"](node)
        return
    scale = _for_each(x.scale * weight.scale.reshape(-1), rows)
    _give_scaled(node, sums, scale, bias, partial(_per_channel, rank=rank))


def _for_each(scale: np.ndarray, channels: int) -> np.ndarray:
    """Return a vector with one scale per channel.

    A single scale is repeated for all channels: a single number would be compiled into the kernel,
    and layers of the same shape with different scales could not share a kernel.
    """
    return np.broadcast_to(scale.astype(np.float32).reshape(-1), channels)


def _give_scaled(node: OnnxNode, sums: Sequence[str], scale: np.ndarray,
                 bias: str, shaped: Callable[[np.ndarray], np.ndarray]) -> None:
    """Add the node that computes sums of integers times a scale, plus a bias.

    Also records the function that rounds the node's output to integers for a QuantizeLinear. If the
    bias is integers times the same scale, this function adds these integers to the sums before it
    scales the sums.

    scale: one number per channel.
    bias: the name of the constant to add, or "".
    shaped: function that reshapes an array of one number, or of one number per channel, so that it
    broadcasts to the result.
    """
    numbers = node.graph.constants[bias] if bias else None
    if numbers is not None and not numbers.any():
        bias, numbers = "", None
    units = _in_units(node.integers.scaled.get(bias), scale)

    def scaled(node: OnnxNode, scale: np.ndarray, addend: np.ndarray | None) -> Value:
        value = total(sums) * constant(node, shaped(scale), "scale")
        return value if addend is None else value + constant(node, shaped(addend), "bias")

    def requantised(quantiser: OnnxNode, to: np.ndarray, zero: np.ndarray, dtype: str) -> Centred:
        if units is None:
            value = scaled(quantiser, scale / to, None if numbers is None else numbers / to)
        else:
            value = scaled_sums(quantiser, sums, shaped(units), shaped(scale / to))
        return requantise(quantiser, value, zero, dtype)

    node.emit_expression(scaled(node, scale, numbers))
    node.integers.layers[node.outputs[0]] = requantised


def _in_units(bias: Scaled | None, scale: np.ndarray) -> np.ndarray | None:
    """Return bias / scale as integers.

    Returns None if the bias has another scale, or if float32 cannot represent the integers.

    scale: one number per channel.
    """
    if bias is None or bias.array is None or bias.array.ndim != 1 or not np.allclose(
            bias.scale.reshape(-1), scale, rtol=1e-5, atol=0) or (
            np.abs(bias.array) > _LARGEST).any():
        return None
    return bias.array


def _matrix_product(node: OnnxNode) -> None:
    """Convert Gemm and MatMul.

    If the input and a constant matrix are integers times a scale, the product multiplies the
    integers.
    """
    converter = LAYERS[node.op]
    a, b = (node.integers.scaled.get(node.input(index)) for index in (0, 1))
    if a is None or b is None or b.array is None or b.array.ndim != 2 or a.scale.size != 1 or (
            not a.integers.name):
        converter(node)
        return
    matrix, scale, bias = b.array, b.scale, ""
    if node.op == "Gemm":
        bias = node.input(2)
        if (node.attribute("alpha", 1.0), node.attribute("beta", 1.0)) != (1.0, 1.0) or (
                node.attribute("transA", 0) or (bias and node.optional_constant(2) is None)):
            converter(node)
            return
        if node.attribute("transB", 0):
            matrix, scale = matrix.T, scale.T
    columns = matrix.shape[1]
    if (scale.size != 1 and scale.shape != (1, columns)) or (
            bias and node.graph.constants[bias].size not in (1, columns)):
        converter(node)
        return
    begin = len(node.graph.nodes)
    try:
        sums = product(node, a.integers, matrix)
    except UnsupportedError:
        del node.graph.nodes[begin:]
        converter(node)
        return
    _give_scaled(node, sums, _for_each(a.scale * scale, columns), bias, of_columns)


def of_columns(array: np.ndarray) -> np.ndarray:
    """Reshape an array of one number, or of one number per column, to broadcast to rows."""
    return array.reshape(-1 if array.size > 1 else ())


def _qlinear_conv(node: OnnxNode) -> None:
    """Convert QLinearConv. The bias is in units of the input's scale times the weight's scale."""
    weight = node.constant(3, "the weight")
    if weight.ndim not in (3, 4):
        raise node.unsupported(f"has {weight.ndim - 2} spatial dimensions; gossamer computes 1 or "
                               "2")
    rank = weight.ndim
    x_scale, x_zero, _ = quantisation(node, (1, 2), node.required(0))
    w_scale, w_zero, _ = quantisation(node, (4, 5), node.required(3), 0)
    y_scale, y_zero, dtype = quantisation(node, (6, 7), node.outputs[0])
    _check_rows(node, w_scale, w_zero, weight.shape[0])
    x = centre(node, 0, x_zero, "x")
    sums = _sums_of_window(node, x, weight.astype(np.float32) - w_zero)
    bias = bias_of_integers(node, 8, weight.shape[0], rank)
    factor = _for_each(x_scale * w_scale.reshape(-1) / y_scale, weight.shape[0])
    value = scaled_sums(node, sums, bias, _per_channel(factor, rank))
    give(node, requantise(node, value, y_zero, dtype), node.outputs[0])


def _check_rows(node: OnnxNode, scale: np.ndarray, zero: np.ndarray, rows: int) -> None:
    """Raise ModelError unless scale and zero point of the weights have the right sizes.

    Each must be one number, or one number per output channel.
    """
    for what, array in (("scale", scale), ("zero point", zero)):
        if array.size not in (1, rows):
            raise node.error(f"the weight's {what} has {array.size} values, expected one or "
                             f"{rows}, one for each output channel")


def scaled_sums(node: OnnxNode, sums: Sequence[str], bias: np.ndarray | None,
                factor: np.ndarray) -> Value:
    """Return (sums + bias) * factor.

    sums: names of the values to add first.
    bias: integers that broadcast to the sums, or None.
    factor: numbers that broadcast to the sums.
    """
    value = total(sums)
    if bias is not None:
        value = value + constant(node, bias, "bias")
    return value * constant(node, factor, "scale")


def bias_of_integers(node: OnnxNode, index: int, channels: int, rank: int) -> np.ndarray | None:
    """Return a bias of integers, in a shape that broadcasts to a value of `rank` dimensions.

    The bias has one integer per channel. Returns None if the node has no bias.
    """
    if not node.input(index):
        return None
    bias = node.constant(index, "the bias")
    if bias.size != channels:
        raise node.error(f"bias {quoted(node.input(index))} has shape {list(bias.shape)}, expected "
                         f"[{channels}]")
    numbers = bias.reshape(-1).astype(np.float32)
    if (numbers.astype(np.float64) != bias.reshape(-1)).any():
        raise node.unsupported("its bias is larger than the integers that float32 holds")
    return _per_channel(numbers, rank)


def product(node: OnnxNode, a: Centred, b: Centred | np.ndarray) -> list[str]:
    """Add a matrix product of integers, in slices of the summed axis.

    Returns the names of the slices' results; their sum is the product.

    b: a constant matrix, or a value that depends on the data.
    """
    if isinstance(b, Centred):
        shape = node.integers.probe.shape(node.required(0))
        check_depth(node, None if not shape else shape[-1],
                    *(max(map(abs, factor.bounds)) for factor in (a, b)))
        return [node.emit("matmul", [a.name, b.name], "sums")]
    if b.ndim != 2:
        raise node.unsupported(f"multiplies by a constant of {b.ndim} dimensions; gossamer "
                               "multiplies quantised values by matrices only")

    def sums_of(sliced: str, part: slice, role: str) -> str:
        return node.emit("matmul", [sliced, node.add_constant(b[part], f"{role}.weight")], role)

    return sliced_sums(node, a.name, slices(node, b.T, a.bounds), -1, sums_of)


def _qlinear_matmul(node: OnnxNode) -> None:
    """Convert QLinearMatMul."""
    a_scale, a_zero, _ = quantisation(node, (1, 2), node.required(0))
    b_scale, b_zero, _ = quantisation(node, (4, 5), node.required(3), -1)
    y_scale, y_zero, dtype = quantisation(node, (6, 7), node.outputs[0])
    a = centre(node, 0, a_zero, "a")
    constant_b = node.optional_constant(3)
    b = centre(node, 3, b_zero, "b") if constant_b is None else (
        constant_b.astype(np.float32) - b_zero)
    factor = (a_scale * b_scale / y_scale).astype(np.float32)
    value = scaled_sums(node, product(node, a, b), None, factor)
    give(node, requantise(node, value, y_zero, dtype), node.outputs[0])


def _zero_point(node: OnnxNode, index: int, *, per_column: bool = False) -> np.ndarray | str:
    """Return the zero point of one factor of a product of integers.

    The result is an array of one number or, if `per_column` is set, possibly of one number per
    column. If the zero point depends on the data, its name is returned.
    """
    name = node.input(index)
    if not name:
        return NO_ZERO
    if name in node.integers.centred and node.integers.rank(name) == 0:
        return name
    zero = node.constant(index, "the zero point").astype(np.float32)
    if zero.size == 1:
        return zero.reshape(())
    if not per_column or zero.ndim != 1:
        raise node.unsupported("has several zero points for its rows; gossamer supports only one "
                               "zero point for all rows")
    return zero


def _matmul_integer(node: OnnxNode) -> None:
    """Convert MatMulInteger. Its result is int32."""
    a = centre(node, 0, _zero_point(node, 2), "a")
    b_zero, constant_b = _zero_point(node, 3, per_column=True), node.optional_constant(1)
    b = constant_b.astype(np.float32) - b_zero if (
        constant_b is not None and isinstance(b_zero, np.ndarray)) else (
        centre(node, 1, b_zero, "b"))
    _give_sums(node, product(node, a, b))


def _conv_integer(node: OnnxNode) -> None:
    """Convert ConvInteger. Its result is int32."""
    weight, zero = node.constant(1, "the weight"), _zero_point(node, 3, per_column=True)
    if weight.ndim not in (3, 4) or isinstance(zero, str):
        raise node.unsupported("needs constant weights of 1 or 2 spatial dimensions, with constant "
                               "zero points")
    _check_rows(node, NO_ZERO, zero, weight.shape[0])
    x = centre(node, 0, _zero_point(node, 2), "x")
    rows = zero.reshape(-1, *[1] * (weight.ndim - 1)) if zero.size > 1 else zero
    _give_sums(node, _sums_of_window(node, x, weight.astype(np.float32) - rows))


def _give_sums(node: OnnxNode, sums: list[str]) -> None:
    exact = give_int32(node, sums, node.outputs[0])
    if exact is not None:
        node.integers.centred[node.outputs[0]] = Centred(exact, NO_ZERO, "int32")


def slices(node: OnnxNode, weight: np.ndarray, bounds: tuple[float, float]
           ) -> list[tuple[int, int]]:
    """Return slices (begin, end) of the input channels with sums that are exact in float32.

    The number of slices is as small as possible. The sum of each slice, and each of its partial
    sums in any order, is exact for all inputs within `bounds`. Where possible, all slices but the
    last have the same number of channels, a multiple of one of _MULTIPLES.

    weight: integers (rows, channels, ...), one row per output channel.
    bounds: the least and the greatest input; zeros of padding may occur as well.
    Raises UnsupportedError if the sum of the products of one channel alone is too large.
    """
    low, high = min(bounds[0], 0.0), max(bounds[1], 0.0)
    rows, channels = weight.shape[:2]
    positive = np.maximum(weight, 0).reshape(rows, channels, -1).sum(axis=2, dtype=np.float64)
    negative = positive - weight.reshape(rows, channels, -1).sum(axis=2, dtype=np.float64)
    # the largest magnitudes of positive and of negative sums
    reached = np.stack([positive * high - negative * low, negative * high - positive * low])
    if not reached.size or reached.sum(axis=2).max() <= _LARGEST:
        return [(0, channels)]
    if reached.max() > _LARGEST:
        raise node.unsupported("has sums for one input channel that float32 may not hold exactly")
    found = _greedy(reached)
    for multiple in _MULTIPLES:
        size = -(-channels // (len(found) * multiple)) * multiple
        equal = [(begin, min(begin + size, channels)) for begin in range(0, channels, size)]
        if all(reached[:, :, begin:end].sum(axis=2).max() <= _LARGEST for begin, end in equal):
            return equal
    return found


def _greedy(reached: np.ndarray) -> list[tuple[int, int]]:
    """Return the fewest slices, each as long as possible.

    reached: the largest magnitudes of positive and of negative sums (2, rows, channels) for each
    input channel, none above _LARGEST.
    """
    found, begin = [], 0
    while begin < reached.shape[2]:
        most = np.cumsum(reached[:, :, begin:], axis=2).max(axis=(0, 1))
        end = begin + int((most <= _LARGEST).sum())
        found.append((begin, end))
        begin = end
    return found


def sliced_sums(node: OnnxNode, x: str, parts: Sequence[tuple[int, int]], axis: int,
                sums_of: Callable[[str, slice, str], str]) -> list[str]:
    """Add nodes for the sums of each slice of channels, and return the names of the sums.

    x: the value to multiply by the weights, with its channels along `axis`.
    sums_of: function that adds the nodes for the sums of one slice, and returns the name of the
    sums. The function's arguments are the name of the value that holds the slice of x, the Python
    slice of the channels, and the end of new names.
    """
    if len(parts) == 1:
        return [sums_of(x, slice(*parts[0]), "sums")]
    names = []
    for number, (begin, end) in enumerate(parts):
        sliced = node.emit("slice", [x], f"slice{number}", starts=(begin,), ends=(end,),
                          axes=(axis,))
        names.append(sums_of(sliced, slice(begin, end), f"sums{number}"))
    return names


def total(sums: Sequence[str]) -> Value:
    """Return the sum of some values.

    The values are integers. If float32 cannot represent their sum exactly, the sum is rounded only
    once.
    """
    c = Composer()
    values = [c.operand(name) for name in sums]
    if len(values) <= 2:
        return functools.reduce(operator.add, values)
    unit, inverse = c.constant(_UNIT), c.constant(1 / _UNIT)
    multiples = [(value * inverse).apply("round") for value in values]
    rests = [value - multiple * unit for value, multiple in zip(values, multiples, strict=True)]
    return functools.reduce(operator.add, multiples) * unit + functools.reduce(operator.add, rests)


def give_int32(node: OnnxNode, sums: Sequence[str], output: str) -> str | None:
    """Add the nodes that compute the sum over all slices as int32.

    Returns the name of the float32 value with the same integers; None if there are several slices.
    """
    if len(sums) == 1:
        node.emit("cast", sums, [output], dtype="int32")
        return sums[0]
    c = Composer()
    parts = [c.operand(node.emit("cast", [name], f"{index}.int32", dtype="int32"))
             for index, name in enumerate(sums)]
    node.emit_expression(functools.reduce(operator.add, parts), [output])
    return None


def check_depth(node: OnnxNode, depth: int | None, first: float, second: float) -> None:
    """Raise UnsupportedError if a sum of products may not be exact in float32.

    depth: number of products of two run-time values; None if unknown.
    first, second: the largest magnitudes of the factors.
    """
    if depth is None or depth * first * second > _LARGEST:
        raise node.unsupported("multiplies two values that depend on the data, and float32 may not "
                               "hold the sums exactly")


PRODUCTS: dict[str, Converter] = {
    "QLinearConv": _qlinear_conv, "QLinearMatMul": _qlinear_matmul,
    "MatMulInteger": _matmul_integer, "ConvInteger": _conv_integer,
}
"""Converters of products of integers, by the name of the op."""
PRODUCTS_OF_FLOATS: dict[str, Converter] = {
    "Conv": _conv, "Gemm": _matrix_product, "MatMul": _matrix_product}
"""Converters of products of floats that may be integers times a scale, by the name of the op."""
