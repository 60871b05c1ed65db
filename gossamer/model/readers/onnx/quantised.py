"""Converters of ONNX's operators on quantised values, and of layers of floats between
DequantizeLinear and QuantizeLinear. The quantiser of ONNX Runtime writes further operators, of the
domain com.microsoft.

Sums are computed from integers, without rounding. All arithmetic on these sums is in float32, in
the order of ONNX Runtime, so that the results are the same integers as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from onnx import TensorProto

from gossamer.model.compose import Composer
from gossamer.model.readers.onnx.elementwise import ELEMENTWISE, FLOAT8_ATTRIBUTES, TYPES
from gossamer.model.readers.onnx.integers import (
    RANGES,
    Centred,
    Integers,
    Scaled,
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
from gossamer.model.readers.onnx.node import OnnxNode
from gossamer.model.readers.onnx.quantised_products import (
    NO_ZERO,
    PRODUCTS,
    IntegerConverter,
    bias_of_integers,
    of_columns,
    product,
    scaled_sums,
)


def _quantise(node: OnnxNode, integers: Integers) -> None:
    """Converts QuantizeLinear: clip(round(x / scale) + zero point)."""
    # `saturate` changes only floats of 8 bits, and x is divided in float32 whatever `precision` is
    node.allow("saturate", "precision")
    if node.attribute("block_size", 0):
        raise node.unsupported("has scales of blocks; gossamer computes one scale, or one a "
                               "channel")
    x = node.required(0)
    scale, zero, dtype = quantisation(node, integers, (1, 2), x, node.attribute("axis", 1))
    wanted = node.attribute("output_dtype", 0)
    dtype = dtype or (TYPES.get(wanted, "another type") if wanted else "uint8")
    if dtype not in RANGES:
        raise node.unsupported(f"quantises to {dtype}; gossamer computes {', '.join(RANGES)}")
    c = Composer()
    known = integers.scaled.get(x)
    if known is not None and known.array is None and are_same(known.scale, scale):
        # integers that were multiplied by a scale and are divided by the same scale stay the same
        if known.integers.dtype == dtype and are_same(known.integers.zero_point, zero):
            give(node, integers, known.integers, node.outputs[0])
            return
        value = c.operand(known.integers.name)
    elif x in integers.layers and scale.size == zero.size == 1 and node.is_only_reader_of(x):
        give(node, integers, integers.layers[x](node, scale, zero, dtype), node.outputs[0])
        return
    else:
        if integers.dtype(node, x) != "float32":
            x = node.emit("cast", [x], "floats", dtype="float32")
        value = c.apply("div", c.operand(x), constant(node, c, scale, "scale"))
    give(node, integers, requantise(node, c, value, zero, dtype), node.outputs[0])


def _dequantise(node: OnnxNode, integers: Integers) -> None:
    """Converts DequantizeLinear: (q - zero point) * scale."""
    if node.attribute("block_size", 0):
        raise node.unsupported("has scales of blocks; gossamer computes one scale, or one a "
                               "channel")
    if TYPES.get(node.attribute("output_dtype", 0) or TensorProto.FLOAT) != "float32":
        raise node.error("gives another type than floats")
    q = node.required(0)
    scale, zero, dtype = quantisation(node, integers, (1, 2), q, node.attribute("axis", 1))
    given = integers.dtype(node, q)
    if dtype and given and dtype != given:
        raise node.error(f"its zero point is {dtype} and its input {given}, expected the same type")
    centred = centre(node, integers, 0, zero, "centred")
    with_scale(node, integers, Scaled(centred, scale), node.outputs[0])


def _quantise_dynamically(node: OnnxNode, integers: Integers) -> None:
    """Converts DynamicQuantizeLinear. Its scale and zero point follow from the least and the
    greatest value of the input, with 0 counted among the values."""
    x, (output, scale_name, zero_name) = node.required(0), node.outputs
    negated = Composer()
    greatest = node.emit("reduce", [x], "greatest", kind="max", axes=None, keepdims=False)
    opposite = node.emit_expression(negated, negated.apply("neg", negated.operand(x)), "negated")
    least = node.emit("reduce", [opposite], "least", kind="max", axes=None, keepdims=False)
    c = Composer()
    low = c.apply("neg", c.apply("max", c.operand(least), c.constant(0)))
    range_ = c.apply("sub", c.apply("max", c.operand(greatest), c.constant(0)), low)
    scale = c.apply("where", c.apply("equal", range_, c.constant(0)), c.constant(1),
                    c.apply("div", range_, c.constant(255)))
    node.emit_expression(c, scale, [scale_name])
    zero = Composer()
    low = zero.apply("neg", zero.apply("max", zero.operand(least), zero.constant(0)))
    first = zero.apply("sub", zero.constant(0),
                       zero.apply("div", low, zero.operand(scale_name)))
    zero_point = requantise(node, zero, first, NO_ZERO, "uint8", "zero")
    give(node, integers, zero_point, zero_name)
    q = Composer()
    shifted = q.apply("add", q.apply("round", q.apply("div", q.operand(x),
                                                      q.operand(scale_name))),
                      q.operand(zero_point.name))
    number = requantise(node, q, shifted, NO_ZERO, "uint8", "number")
    node.emit("cast", [number.name], [output], dtype="uint8")
    less = Composer()
    centred = node.emit_expression(less, less.apply(
        "sub", less.operand(number.name), less.operand(zero_point.name)), "centred")
    integers.centred[output] = Centred(centred, zero_name, "uint8")


def _cast(node: OnnxNode, integers: Integers) -> None:
    """Converts Cast. A cast of quantised integers to float32 is computed from the float32 value
    that stands for the integers."""
    known = integers.centred.get(node.input(0))
    if known is None or node.attribute("to", 0) not in (TensorProto.FLOAT, TensorProto.DOUBLE):
        ELEMENTWISE["Cast"](node)
        return
    node.allow(*FLOAT8_ATTRIBUTES)
    whole = centre(node, integers, 0, NO_ZERO, "number")
    node.emit("identity", [whole.name])


def _selecting(node: OnnxNode, integers: Integers, converter: Callable[[OnnxNode], None]) -> None:
    """Converts an op whose outputs hold values of its input. Where the input is quantised, the op
    takes the integers less their zero point."""
    source, outputs = node.input(0), list(node.outputs)
    centred, scaled = integers.centred.get(source), integers.scaled.get(source)
    known = scaled.integers if scaled is not None else centred
    is_one = known is not None and known.name and (
        isinstance(known.zero_point, str) or known.zero_point.size == 1) and (
        scaled is None or scaled.scale.size == 1)
    if known is None or not is_one:
        converter(node)
        return
    node.inputs[0] = known.name
    node.outputs = [f"{name}.selected" if name else "" for name in outputs]
    converter(node)
    selected, node.outputs = node.outputs, outputs
    for inner, name in zip(selected, outputs, strict=False):
        node.outputs = [name]
        if inner and scaled is not None:
            with_scale(node, integers, renamed(scaled, inner), name)
        elif inner:
            give(node, integers, Centred(inner, known.zero_point, known.dtype), name)
    node.outputs = outputs


def _max_pool(node: OnnxNode, integers: Integers) -> None:
    """Converts MaxPool; integers are computed as floats."""
    node.only_first_output()
    x = node.input(0)
    if x not in integers.centred and integers.dtype(node, x) in ("int8", "uint8"):
        integers.centred[x] = centre(node, integers, 0, NO_ZERO, "x")
    _selecting(node, integers, LAYERS["MaxPool"])


def _reduce_min(node: OnnxNode, integers: Integers) -> None:
    """Converts ReduceMin of floats: the maximum of the negated numbers is negated. Some integers
    have no negative."""
    dtype = integers.dtype(node, node.required(0))
    if dtype not in (None, "float32", "bool"):
        raise node.unsupported(f"computes with {dtype}; gossamer computes it in float32")
    LAYERS["ReduceMin"](node)


def _concat(node: OnnxNode, integers: Integers) -> None:
    """Converts Concat. Integers are concatenated where all inputs are integers times the same
    scale, or integers with the same zero point."""
    scaled = [integers.scaled.get(name) for name in node.inputs]
    centred = [integers.centred.get(name) for name in node.inputs]
    first = scaled[0]
    if first is not None and first.scale.size == 1 and all(
            part is not None and part.integers.name and are_same(part.scale, first.scale)
            for part in scaled):
        parts, output = [part.integers.name for part in scaled if part is not None], node.outputs[0]
        node.emit("concat", parts, "selected", axis=node.attribute("axis"))
        bounds = max((part.integers for part in scaled if part is not None),
                     key=lambda part: part.bounds[1] - part.bounds[0])
        with_scale(node, integers, Scaled(Centred(f"{output}.selected", bounds.zero_point,
                                                  bounds.dtype), first.scale), output)
        return
    zero = centred[0]
    if zero is not None and isinstance(zero.zero_point, np.ndarray) and (
            zero.zero_point.size == 1) and all(
            part is not None and part.dtype == zero.dtype
            and are_same(part.zero_point, zero.zero_point) for part in centred):
        name = node.emit("concat", [part.name for part in centred if part is not None], "selected",
                         axis=node.attribute("axis"))
        give(node, integers, Centred(name, zero.zero_point, zero.dtype), node.outputs[0])
        return
    LAYOUT["Concat"](node)


def _averaging(node: OnnxNode, integers: Integers, converter: Callable[[OnnxNode], None]) -> None:
    """Converts an average. Where the input is integers times a scale, the result is the average of
    the integers times the scale."""
    scaled = integers.scaled.get(node.input(0))
    if scaled is None or not scaled.integers.name or scaled.scale.size != 1:
        converter(node)
        return
    (output,) = node.outputs
    node.inputs[0], node.outputs = scaled.integers.name, [f"{output}.average"]
    converter(node)
    node.outputs = [output]

    def times(c: Composer, node: OnnxNode, scale: np.ndarray) -> int:
        return c.apply("mul", c.operand(f"{output}.average"), constant(node, c, scale, "scale"))

    def requantised(quantiser: OnnxNode, to: np.ndarray, zero: np.ndarray, dtype: str) -> Centred:
        c = Composer()
        return requantise(quantiser, c, times(c, quantiser, scaled.scale / to), zero, dtype)

    c = Composer()
    node.emit_expression(c, times(c, node, scaled.scale))
    integers.layers[output] = requantised


def sum_of_scaled(node: OnnxNode, a: Scaled, b: Scaled, scale: np.ndarray, zero: np.ndarray,
                  dtype: str) -> Centred:
    """Returns the integers of the sum of two values that are integers times a scale, and adds the
    node that computes these integers. `scale`, `zero` and `dtype` are the scale, zero point and
    dtype of the sum. The node rounds as ONNX Runtime does, which adds all zero points as one
    number. The zero points of a and b are arrays."""
    of_a, of_b = a.scale / scale, b.scale / scale
    a_zero, b_zero = (np.asarray(each.integers.zero_point) for each in (a, b))
    zeros = of_a.astype(np.float64) * a_zero + of_b * b_zero
    c = Composer()
    x, y = c.operand(a.integers.name), c.operand(b.integers.name)
    value = constant(node, c, zero - zeros.astype(np.float32), "rest")
    for each, origin, ratio, role in ((y, b_zero, of_b, "b"), (x, a_zero, of_a, "a")):
        value = c.apply("fma", c.apply("add", each, constant(node, c, origin, role)),
                        constant(node, c, ratio, f"of_{role}"), value)
    return requantise(node, c, value, zero, dtype, is_shifted=True)


def _add(node: OnnxNode, integers: Integers) -> None:
    """Converts Add. Where both operands are integers times a scale, also notes the function that
    rounds their sum to integers for a QuantizeLinear."""
    ELEMENTWISE["Add"](node)
    a, b = (integers.scaled.get(node.input(index)) for index in (0, 1))
    if a is not None and b is not None and all(
            each.integers.name and each.scale.size == 1
            and isinstance(each.integers.zero_point, np.ndarray)
            and each.integers.zero_point.size == 1 for each in (a, b)):
        integers.layers[node.outputs[0]] = lambda quantiser, *to: sum_of_scaled(
            quantiser, a, b, *to)


def _input(node: OnnxNode, integers: Integers, first: int,
           role: str) -> tuple[Centred, np.ndarray, np.ndarray]:
    """Returns three things: the integers of an input after subtraction of their zero point, the
    scale, and the zero point. The integers are input `first` of the node; the next two inputs are
    the scale and the zero point."""
    scale, zero, _ = quantisation(node, integers, (first + 1, first + 2), node.required(first))
    return centre(node, integers, first, zero, role), scale, zero


def _output(node: OnnxNode, integers: Integers, first: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns scale, zero point and dtype of the output. Input `first` holds the scale, and the
    next input the zero point. Without a zero point, the dtype is the dtype of input 0."""
    scale, zero, dtype = quantisation(node, integers, (first, first + 1), node.outputs[0])
    return scale, zero, dtype or integers.dtype(node, node.required(0)) or "uint8"


def _arithmetic(node: OnnxNode, integers: Integers, function: str) -> None:
    """Converts QLinearAdd and QLinearMul."""
    (a, a_scale, _), (b, b_scale, _) = (
        _input(node, integers, first, role) for first, role in ((0, "a"), (3, "b")))
    scale, zero, dtype = _output(node, integers, 6)
    if function == "add":
        result = sum_of_scaled(node, Scaled(a, a_scale), Scaled(b, b_scale), scale, zero, dtype)
    else:
        c = Composer()
        value = c.apply("mul", c.apply("mul", c.operand(a.name), c.operand(b.name)),
                        constant(node, c, a_scale * b_scale / scale, "scale"))
        value = c.apply("add", value, constant(node, c, zero, "zero"))
        result = requantise(node, c, value, zero, dtype, is_shifted=True)
    give(node, integers, result, node.outputs[0])


def _function(node: OnnxNode, integers: Integers, function: str) -> None:
    """Converts QLinearSigmoid and QLinearLeakyRelu."""
    x, x_scale, _ = _input(node, integers, 0, "x")
    scale, zero, dtype = _output(node, integers, 3)
    constants = (node.attribute("alpha", 0.01),) if function == "leaky_relu" else ()
    c = Composer()
    number = c.apply("mul", c.operand(x.name), constant(node, c, x_scale, "of_x"))
    value = c.apply("div", c.apply(function, number, constants=constants),
                    constant(node, c, scale, "scale"))
    give(node, integers, requantise(node, c, value, zero, dtype), node.outputs[0])


def _average(node: OnnxNode, integers: Integers, of: str) -> None:
    """Converts QLinearAveragePool and QLinearGlobalAveragePool."""
    node.only("channels_last", 0)
    x, x_scale, _ = _input(node, integers, 0, "x")
    scale, zero, dtype = _output(node, integers, 3)
    (output,), inputs = node.outputs, node.inputs
    node.inputs, node.outputs = [x.name], [f"{output}.average"]
    LAYERS[of](node)
    node.inputs, node.outputs = inputs, [output]
    c = Composer()
    value = c.apply("mul", c.operand(f"{output}.average"),
                    constant(node, c, x_scale / scale, "scale"))
    give(node, integers, requantise(node, c, value, zero, dtype), output)


def _qlinear_concat(node: OnnxNode, integers: Integers) -> None:
    """Converts QLinearConcat, whose first two inputs are scale and zero point of the output."""
    scale, zero, dtype = quantisation(node, integers, (0, 1), node.outputs[0])
    axis = node.attribute("axis")
    if axis is None or len(node.inputs) % 3 != 2:
        raise node.error("its axis or an input is missing")
    parts = []
    for number, first in enumerate(range(2, len(node.inputs), 3)):
        x, x_scale, x_zero = _input(node, integers, first, f"x{number}")
        if (x_scale == scale).all() and x.dtype == dtype and np.array_equal(x_zero, zero):
            parts.append(x.name)
            continue
        c = Composer()
        value = c.apply("mul", c.operand(x.name), constant(node, c, x_scale / scale, "scale"))
        parts.append(requantise(node, c, value, zero, dtype, f"part{number}").name)
    name = node.emit("concat", parts, "joined", axis=axis)
    give(node, integers, Centred(name, zero, dtype), node.outputs[0])


def _qgemm(node: OnnxNode, integers: Integers) -> None:
    """Converts QGemm. Its result is integers where the node has a scale of the output, else
    floats."""
    a, a_scale, _ = _input(node, integers, 0, "a")
    node.only("transA", 0)
    matrix, transposed = node.constant(3, "the second matrix"), bool(node.attribute("transB", 0))
    b_scale, b_zero, _ = quantisation(node, integers, (4, 5), node.required(3),
                                      0 if transposed else -1)
    b = matrix.astype(np.float32) - b_zero
    sums = product(node, a, b.T if transposed else b, integers)
    bias = bias_of_integers(node, 6, matrix.shape[0 if transposed else -1], 2)
    factor = of_columns(np.float32(node.attribute("alpha", 1.0)) * a_scale * b_scale)
    c = Composer()
    if not node.input(7):
        node.emit_expression(c, scaled_sums(node, c, sums, bias, factor))
        return
    scale, zero, dtype = _output(node, integers, 7)
    value = scaled_sums(node, c, sums, bias, (factor / scale).astype(np.float32))
    give(node, integers, requantise(node, c, value, zero, dtype), node.outputs[0])


QUANTISED: dict[str, IntegerConverter] = {
    "QuantizeLinear": _quantise, "DequantizeLinear": _dequantise,
    "DynamicQuantizeLinear": _quantise_dynamically, **PRODUCTS, "Cast": _cast, "Concat": _concat,
    **{op: partial(_selecting, converter=LAYOUT[op]) for op in (
        "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Identity",
        "DepthToSpace", "SpaceToDepth", "Expand")},
    "MaxPool": _max_pool, "ReduceMin": _reduce_min, "Add": _add,
    **{op: partial(_averaging, converter=LAYERS[op]) for op in (
        "AveragePool", "GlobalAveragePool")},
}
"""Converters of operators on quantised values, and of operators whose results stay quantised."""

MICROSOFT: dict[str, IntegerConverter] = {
    "QuantizeLinear": QUANTISED["QuantizeLinear"],
    "DequantizeLinear": QUANTISED["DequantizeLinear"],
    "QLinearAdd": partial(_arithmetic, function="add"),
    "QLinearMul": partial(_arithmetic, function="mul"),
    "QLinearSigmoid": partial(_function, function="sigmoid"),
    "QLinearLeakyRelu": partial(_function, function="leaky_relu"),
    "QLinearAveragePool": partial(_average, of="AveragePool"),
    "QLinearGlobalAveragePool": partial(_average, of="GlobalAveragePool"),
    "QLinearConcat": _qlinear_concat, "QGemm": _qgemm,
}
"""The converters by the name of the op."""
