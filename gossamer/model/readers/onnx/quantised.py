"""Converters of ONNX's operators on quantised values.

The operators include float layers between DequantizeLinear and QuantizeLinear, and the quantised
operators of ONNX Runtime's domain com.microsoft.

Sums are computed from integers, without rounding. All arithmetic on the sums is in float32, with
the order of operations of ONNX Runtime, so the results are the same integers as in ONNX Runtime.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from onnx import TensorProto

from gossamer.expression import Composer, Value
from gossamer.model.readers.onnx.elementwise import ELEMENTWISE, FLOAT8_ATTRIBUTES
from gossamer.model.readers.onnx.integers import (
    are_same,
    centre,
    constant,
    give,
    quantisation,
    renamed,
    requantise,
    with_scale,
)
from gossamer.model.readers.onnx.layers import LAYERS
from gossamer.model.readers.onnx.layout import LAYOUT
from gossamer.model.readers.onnx.node import RANGES, Centred, Converter, OnnxNode, Scaled
from gossamer.model.readers.onnx.quantised_products import (
    NO_ZERO,
    PRODUCTS,
    PRODUCTS_OF_FLOATS,
    bias_of_integers,
    of_columns,
    product,
    scaled_sums,
)
from gossamer.model.readers.onnx.value_types import TYPES


def _quantise(node: OnnxNode) -> None:
    """Convert QuantizeLinear: clip(round(x / scale) + zero point)."""
    # accepted but not used: `saturate` affects only 8-bit floats, and x is divided in float32 for
    # any `precision`
    node.allow("saturate", "precision")
    _refuse_blocks(node)
    x = node.required(0)
    scale, zero, dtype = quantisation(node, (1, 2), x, node.attribute("axis", 1))
    wanted = node.attribute("output_dtype", 0)
    dtype = dtype or (TYPES.get(wanted, "another type") if wanted else "uint8")
    if dtype not in RANGES:
        raise node.unsupported(f"quantises to {dtype}; gossamer computes {', '.join(RANGES)}")
    known = node.integers.scaled.get(x)
    if known is not None and known.array is None and are_same(known.scale, scale):
        # multiplying and dividing integers by the same scale does not change them
        if known.integers.dtype == dtype and are_same(known.integers.zero_point, zero):
            give(node, known.integers, node.outputs[0])
            return
        value = Composer().operand(known.integers.name)
    elif x in node.integers.layers and scale.size == zero.size == 1 and node.is_only_reader_of(x):
        give(node, node.integers.layers[x](node, scale, zero, dtype), node.outputs[0])
        return
    else:
        if node.dtype(x) != "float32":
            x = node.emit("cast", [x], "floats", dtype="float32")
        value = Composer().operand(x) / constant(node, scale, "scale")
    give(node, requantise(node, value, zero, dtype), node.outputs[0])


def _dequantise(node: OnnxNode) -> None:
    """Convert DequantizeLinear: (q - zero point) * scale."""
    _refuse_blocks(node)
    if TYPES.get(node.attribute("output_dtype", 0) or TensorProto.FLOAT) != "float32":
        raise node.error("its output_dtype is not a floating-point type")
    q = node.required(0)
    scale, zero, dtype = quantisation(node, (1, 2), q, node.attribute("axis", 1))
    given = node.dtype(q)
    if dtype and given and dtype != given:
        raise node.error(f"its zero point is {dtype} and its input {given}, expected the same type")
    centred = centre(node, 0, zero, "centred")
    with_scale(node, Scaled(centred, scale), node.outputs[0])


def _refuse_blocks(node: OnnxNode) -> None:
    if node.attribute("block_size", 0):
        raise node.unsupported("has a scale for each block; gossamer computes one scale, or one "
                               "for each channel")


def _quantise_dynamically(node: OnnxNode) -> None:
    """Convert DynamicQuantizeLinear.

    The scale and zero point are computed from the range [min(x, 0), max(x, 0)].
    """
    x, (output, scale_name, zero_name) = node.required(0), node.outputs
    greatest = node.emit("reduce", [x], "greatest", kind="max", axes=None, keepdims=False)
    opposite = node.emit_expression(-Composer().operand(x), "negated")
    least = node.emit("reduce", [opposite], "least", kind="max", axes=None, keepdims=False)
    c = Composer()
    low = -c.operand(least).apply("max", 0)
    range_ = c.operand(greatest).apply("max", 0) - low
    node.emit_expression(range_.apply("equal", 0).apply("where", 1, range_ / 255), [scale_name])
    low = -Composer().operand(least).apply("max", 0)
    zero_point = requantise(node, 0 - low / scale_name, NO_ZERO, "uint8", "zero")
    give(node, zero_point, zero_name)
    shifted = (Composer().operand(x) / scale_name).apply("round") + zero_point.name
    number = requantise(node, shifted, NO_ZERO, "uint8", "number")
    node.emit("cast", [number.name], [output], dtype="uint8")
    centred = node.emit_expression(Composer().operand(number.name) - zero_point.name, "centred")
    node.integers.centred[output] = Centred(centred, zero_name, "uint8")


def _cast(node: OnnxNode) -> None:
    """Convert Cast.

    If the input is quantised, a cast to float32 is computed from the float32 value that represents
    the integers.
    """
    known = node.integers.centred.get(node.input(0))
    if known is None or node.attribute("to", 0) not in (TensorProto.FLOAT, TensorProto.DOUBLE):
        ELEMENTWISE["Cast"](node)
        return
    node.allow(*FLOAT8_ATTRIBUTES)
    whole = centre(node, 0, NO_ZERO, "number")
    node.emit("identity", [whole.name])


def _selecting(node: OnnxNode, converter: Converter) -> None:
    """Convert an op that only moves or selects elements of its input, such as Reshape or MaxPool.

    If the input is quantised with one scale and one zero point, the op is applied to the integers
    minus the zero point.
    """
    source, outputs = node.input(0), list(node.outputs)
    centred, scaled = node.integers.centred.get(source), node.integers.scaled.get(source)
    known = scaled.integers if scaled is not None else centred
    is_uniform = known is not None and known.name and (
        isinstance(known.zero_point, str) or known.zero_point.size == 1) and (
        scaled is None or scaled.scale.size == 1)
    if known is None or not is_uniform:
        converter(node)
        return
    node.inputs[0] = known.name
    node.outputs = [name and node.new_name("selected", name) for name in outputs]
    converter(node)
    selected, node.outputs = node.outputs, outputs
    for inner, name in zip(selected, outputs, strict=False):
        node.outputs = [name]
        if inner and scaled is not None:
            with_scale(node, renamed(scaled, inner), name)
        elif inner:
            give(node, Centred(inner, known.zero_point, known.dtype), name)
    node.outputs = outputs


def _max_pool(node: OnnxNode) -> None:
    """Convert MaxPool; integers are computed as floats."""
    node.only_first_output()
    x = node.input(0)
    if x not in node.integers.centred and node.dtype(x) in ("int8", "uint8"):
        node.integers.centred[x] = centre(node, 0, NO_ZERO, "x")
    _selecting(node, LAYERS["MaxPool"])


def _reduce_min(node: OnnxNode) -> None:
    """Convert ReduceMin to the negative of the maximum of the negated numbers.

    Integers are refused, because the smallest integer of a dtype cannot be negated.
    """
    dtype = node.dtype(node.required(0))
    if dtype not in (None, "float32", "bool"):
        raise node.unsupported(f"computes with {dtype}; gossamer computes this op in float32 only")
    LAYERS["ReduceMin"](node)


def _concat(node: OnnxNode) -> None:
    """Convert Concat.

    If all inputs are integers times the same scale, or integers with the same zero point, the
    integers minus the zero point are concatenated.
    """
    scaled = [node.integers.scaled.get(name) for name in node.inputs]
    centred = [node.integers.centred.get(name) for name in node.inputs]
    first = scaled[0]
    if first is not None and first.scale.size == 1 and all(
            part is not None and part.integers.name and are_same(part.scale, first.scale)
            for part in scaled):
        parts = [part.integers.name for part in scaled if part is not None]
        name = node.emit("concat", parts, "selected", axis=node.attribute("axis"))
        bounds = max((part.integers for part in scaled if part is not None),
                     key=lambda part: part.bounds[1] - part.bounds[0])
        with_scale(node, Scaled(Centred(name, bounds.zero_point, bounds.dtype), first.scale),
                   node.outputs[0])
        return
    zero = centred[0]
    if zero is not None and isinstance(zero.zero_point, np.ndarray) and (
            zero.zero_point.size == 1) and all(
            part is not None and part.dtype == zero.dtype
            and are_same(part.zero_point, zero.zero_point) for part in centred):
        name = node.emit("concat", [part.name for part in centred if part is not None], "selected",
                         axis=node.attribute("axis"))
        give(node, Centred(name, zero.zero_point, zero.dtype), node.outputs[0])
        return
    LAYOUT["Concat"](node)


def _averaging(node: OnnxNode, converter: Converter) -> None:
    """Convert an average pool.

    If the input is integers times a scale, the integers are averaged and then multiplied by the
    scale.
    """
    scaled = node.integers.scaled.get(node.input(0))
    if scaled is None or not scaled.integers.name or scaled.scale.size != 1:
        converter(node)
        return
    (output,), average = node.outputs, node.new_name("average")
    node.inputs[0], node.outputs = scaled.integers.name, [average]
    converter(node)
    node.outputs = [output]

    def times(node: OnnxNode, scale: np.ndarray) -> Value:
        return Composer().operand(average) * constant(node, scale, "scale")

    def requantised(quantiser: OnnxNode, to: np.ndarray, zero: np.ndarray, dtype: str) -> Centred:
        return requantise(quantiser, times(quantiser, scaled.scale / to), zero, dtype)

    node.emit_expression(times(node, scaled.scale))
    node.integers.layers[output] = requantised


def sum_of_scaled(node: OnnxNode, a: Scaled, b: Scaled, scale: np.ndarray, zero: np.ndarray,
                  dtype: str) -> Centred:
    """Add the node that computes the integers of a sum of two values, and return the integers.

    Both values are integers times a scale. As in ONNX Runtime, all zero points are combined into
    one addend, so that the node rounds in the same way.

    a, b: the values; their zero points must be arrays.
    scale, zero, dtype: the scale, zero point and dtype of the sum.
    """
    a_ratio, b_ratio = a.scale / scale, b.scale / scale
    a_zero, b_zero = (np.asarray(each.integers.zero_point) for each in (a, b))
    zeros = a_ratio.astype(np.float64) * a_zero + b_ratio * b_zero
    c = Composer()
    x, y = c.operand(a.integers.name), c.operand(b.integers.name)
    value = c.value(constant(node, zero - zeros.astype(np.float32), "rest"))
    for each, origin, ratio, role in ((y, b_zero, b_ratio, "b"), (x, a_zero, a_ratio, "a")):
        value = (each + constant(node, origin, role)).apply(
            "fma", constant(node, ratio, f"of_{role}"), value)
    return requantise(node, value, zero, dtype, is_shifted=True)


def _add(node: OnnxNode) -> None:
    """Convert Add.

    If both operands are integers times a scale, also record the function that rounds their sum to
    integers for a QuantizeLinear.
    """
    ELEMENTWISE["Add"](node)
    a, b = (node.integers.scaled.get(node.input(index)) for index in (0, 1))
    if a is not None and b is not None and all(
            each.integers.name and each.scale.size == 1
            and isinstance(each.integers.zero_point, np.ndarray)
            and each.integers.zero_point.size == 1 for each in (a, b)):
        node.integers.layers[node.outputs[0]] = lambda quantiser, *to: sum_of_scaled(
            quantiser, a, b, *to)


def _input(node: OnnxNode, first: int,
           role: str) -> tuple[Centred, np.ndarray, np.ndarray]:
    """Return the integers of an input minus their zero point, the scale, and the zero point.

    first: index of the input with the integers; the next two inputs are scale and zero point.
    """
    scale, zero, _ = quantisation(node, (first + 1, first + 2), node.required(first))
    return centre(node, first, zero, role), scale, zero


def _output(node: OnnxNode, first: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Return scale, zero point and dtype of the output.

    first: index of the input with the scale; the next input is the zero point. Without a zero
    point, the dtype is the dtype of input 0.
    """
    scale, zero, dtype = quantisation(node, (first, first + 1), node.outputs[0])
    return scale, zero, dtype or node.dtype(node.required(0)) or "uint8"


def _arithmetic(node: OnnxNode, function: str) -> None:
    """Convert QLinearAdd and QLinearMul."""
    (a, a_scale, _), (b, b_scale, _) = (
        _input(node, first, role) for first, role in ((0, "a"), (3, "b")))
    scale, zero, dtype = _output(node, 6)
    if function == "add":
        result = sum_of_scaled(node, Scaled(a, a_scale), Scaled(b, b_scale), scale, zero, dtype)
    else:
        value = Composer().operand(a.name) * b.name
        value = value * constant(node, a_scale * b_scale / scale, "scale")
        value = value + constant(node, zero, "zero")
        result = requantise(node, value, zero, dtype, is_shifted=True)
    give(node, result, node.outputs[0])


def _function(node: OnnxNode, function: str) -> None:
    """Convert QLinearSigmoid and QLinearLeakyRelu."""
    x, x_scale, _ = _input(node, 0, "x")
    scale, zero, dtype = _output(node, 3)
    constants = (node.attribute("alpha", 0.01),) if function == "leaky_relu" else ()
    number = Composer().operand(x.name) * constant(node, x_scale, "of_x")
    value = number.apply(function, constants=constants) / constant(node, scale, "scale")
    give(node, requantise(node, value, zero, dtype), node.outputs[0])


def _average(node: OnnxNode, op: str) -> None:
    """Convert QLinearAveragePool and QLinearGlobalAveragePool.

    op: the operator on floats.
    """
    node.only("channels_last", 0)
    x, x_scale, _ = _input(node, 0, "x")
    scale, zero, dtype = _output(node, 3)
    (output,), inputs, average = node.outputs, node.inputs, node.new_name("average")
    node.inputs, node.outputs = [x.name], [average]
    LAYERS[op](node)
    node.inputs, node.outputs = inputs, [output]
    value = Composer().operand(average) * constant(node, x_scale / scale, "scale")
    give(node, requantise(node, value, zero, dtype), output)


def _qlinear_concat(node: OnnxNode) -> None:
    """Convert QLinearConcat. Its first two inputs are scale and zero point of the output."""
    scale, zero, dtype = quantisation(node, (0, 1), node.outputs[0])
    axis = node.attribute("axis")
    if axis is None or len(node.inputs) % 3 != 2:
        raise node.error("its axis or an input is missing")
    parts = []
    for number, first in enumerate(range(2, len(node.inputs), 3)):
        x, x_scale, x_zero = _input(node, first, f"x{number}")
        if (x_scale == scale).all() and x.dtype == dtype and np.array_equal(x_zero, zero):
            parts.append(x.name)
            continue
        value = Composer().operand(x.name) * constant(node, x_scale / scale, "scale")
        parts.append(requantise(node, value, zero, dtype, f"part{number}").name)
    name = node.emit("concat", parts, "joined", axis=axis)
    give(node, Centred(name, zero, dtype), node.outputs[0])


def _qgemm(node: OnnxNode) -> None:
    """Convert QGemm. The result is integers if the node has a scale for the result, else floats."""
    a, a_scale, _ = _input(node, 0, "a")
    node.only("transA", 0)
    matrix, transposed = node.constant(3, "the second matrix"), bool(node.attribute("transB", 0))
    b_scale, b_zero, _ = quantisation(node, (4, 5), node.required(3),
                                      0 if transposed else -1)
    b = matrix.astype(np.float32) - b_zero
    sums = product(node, a, b.T if transposed else b)
    bias = bias_of_integers(node, 6, matrix.shape[0 if transposed else -1], 2)
    factor = of_columns(np.float32(node.attribute("alpha", 1.0)) * a_scale * b_scale)
    if not node.input(7):
        node.emit_expression(scaled_sums(node, sums, bias, factor))
        return
    scale, zero, dtype = _output(node, 7)
    value = scaled_sums(node, sums, bias, (factor / scale).astype(np.float32))
    give(node, requantise(node, value, zero, dtype), node.outputs[0])


QUANTISED: dict[str, Converter] = {
    "QuantizeLinear": _quantise, "DequantizeLinear": _dequantise,
    "DynamicQuantizeLinear": _quantise_dynamically, **PRODUCTS, "MaxPool": _max_pool,
    "ReduceMin": _reduce_min,
}
"""Converters of operators on quantised values, and of operators that treat integers differently
from floats."""

KEEPING: dict[str, Converter] = {
    **PRODUCTS_OF_FLOATS, "Cast": _cast, "Concat": _concat, "Add": _add,
    **{op: partial(_selecting, converter=LAYOUT[op]) for op in (
        "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Identity",
        "DepthToSpace", "SpaceToDepth", "Expand")},
    **{op: partial(_averaging, converter=LAYERS[op]) for op in (
        "AveragePool", "GlobalAveragePool")},
}
"""Converters of operators on floats for nodes that read quantised values."""

MICROSOFT: dict[str, Converter] = {
    "QuantizeLinear": QUANTISED["QuantizeLinear"],
    "DequantizeLinear": QUANTISED["DequantizeLinear"],
    "QLinearAdd": partial(_arithmetic, function="add"),
    "QLinearMul": partial(_arithmetic, function="mul"),
    "QLinearSigmoid": partial(_function, function="sigmoid"),
    "QLinearLeakyRelu": partial(_function, function="leaky_relu"),
    "QLinearAveragePool": partial(_average, op="AveragePool"),
    "QLinearGlobalAveragePool": partial(_average, op="GlobalAveragePool"),
    "QLinearConcat": _qlinear_concat, "QGemm": _qgemm,
}
"""Converters of the operators of the domain com.microsoft, by name."""
