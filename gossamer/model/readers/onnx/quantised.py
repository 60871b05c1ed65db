"""Converters of ONNX's operators on quantised values, and of layers of floats between
DequantizeLinear and QuantizeLinear.

Sums are sums of integers, without rounding. All arithmetic on these sums is in float32, in the
order of ONNX Runtime, so that the results are the same integers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from onnx import TensorProto

from gossamer.errors import UnsupportedError, quoted
from gossamer.expression import identity
from gossamer.model.compose import Composer
from gossamer.model.readers.onnx.elementwise import ELEMENTWISE, TYPES
from gossamer.model.readers.onnx.integer_sums import (
    check_depth,
    give_int32,
    sliced_sums,
    slices,
    total,
)
from gossamer.model.readers.onnx.integers import (
    RANGES,
    Centred,
    Integers,
    Scaled,
    Sums,
    are_same,
    centre,
    constant,
    give,
    quantisation,
    renamed,
    requantise,
    with_scale,
)
from gossamer.model.readers.onnx.layers import LAYERS, bias_of, convolution_attributes
from gossamer.model.readers.onnx.layout import LAYOUT
from gossamer.model.readers.onnx.node import OnnxNode

IntegerConverter = Callable[[OnnxNode, Integers], None]
"""A converter that also reads and updates `Integers`, the facts known of quantised values."""

_NO_ZERO = np.zeros((), np.float32)


def _quantise(node: OnnxNode, integers: Integers) -> None:
    """Converts QuantizeLinear: clip(round(x / scale) + zero point)."""
    for of_other_types in ("saturate", "precision"):
        node.attribute(of_other_types)
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
    elif x in integers.sums and scale.size == 1 and node.is_only_reader_of(x):
        sums = integers.sums[x]
        value = _scaled_sums(node, c, Sums(sums.names, sums.scale / scale, None if (
            sums.bias is None) else sums.bias / scale))
    else:
        if integers.dtype(node, x) != "float32":
            x = node.emit("cast", [x], "number", dtype="float32")
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
    zero_point = requantise(node, zero, first, _NO_ZERO, "uint8", "zero")
    give(node, integers, zero_point, zero_name)
    q = Composer()
    shifted = q.apply("add", q.apply("round", q.apply("div", q.operand(x),
                                                      q.operand(scale_name))),
                      q.operand(zero_point.name))
    number = requantise(node, q, shifted, _NO_ZERO, "uint8", "number")
    node.emit("cast", [number.name], [output], dtype="uint8")
    less = Composer()
    centred = node.emit_expression(less, less.apply(
        "sub", less.operand(number.name), less.operand(zero_point.name)), "centred")
    integers.centred[output] = Centred(centred, zero_name, "uint8")


def _is_one_a_row(scale: np.ndarray, weight: np.ndarray) -> bool:
    """Returns whether a scale that broadcasts to weights is one number, or one for each row."""
    return scale.size == 1 or (scale.size == weight.shape[0] == scale.shape[0]
                               and scale.ndim == weight.ndim)


def _per_channel(array: np.ndarray, rank: int) -> np.ndarray:
    """Returns an array of one number, or one number a channel, in a shape that broadcasts to images
    of a rank."""
    return array.reshape(-1, *[1] * (rank - 2)) if array.size > 1 else array.reshape(())


def _sums_of_window(node: OnnxNode, x: Centred, weight: np.ndarray) -> list[str]:
    """Adds a convolution of integers without its bias, in slices of channels. Returns the names of
    the slices' results, whose sum is the convolution. weight: integers (M, C/groups, ...)."""
    attributes = convolution_attributes(node, weight)
    parts = slices(node, weight, x.bounds)
    if len(parts) > 1 and attributes["groups"] > 1:
        raise node.unsupported("adds products in groups up to a sum that float32 does not hold")
    is_1d = weight.ndim == 3

    def sums_of(piece: str, part: slice, role: str) -> str:
        own = np.ascontiguousarray(weight[:, part])
        inputs = [piece, node.add_constant(own[:, :, None] if is_1d else own, f"{role}.weight")]
        if is_1d:
            inputs[0] = node.emit("unsqueeze", [piece], f"{role}.lifted", axes=(2,))
        result = node.emit("conv2d", inputs, f"{role}.lifted_result" if is_1d else role,
                           epilogue=identity(), **attributes)
        return node.emit("squeeze", [result], role, axes=(2,)) if is_1d else result

    return sliced_sums(node, x.name, parts, 1, sums_of)


def _conv(node: OnnxNode, integers: Integers) -> None:
    """Converts Conv. Where input and weights are integers times a scale, the convolution multiplies
    the integers."""
    x, weight = (integers.scaled.get(node.input(index)) for index in (0, 1))
    if x is None or weight is None or weight.array is None or x.scale.size != 1 or (
            not x.integers.name or weight.array.ndim not in (3, 4)) or (
            not _is_one_a_row(weight.scale, weight.array)):
        LAYERS["Conv"](node)
        return
    begin, rows, rank = len(node.graph.nodes), weight.array.shape[0], weight.array.ndim
    bias = node.graph.constants[bias_of(node, 2, rows)] if node.input(2) else None
    try:
        sums = _sums_of_window(node, x.integers, weight.array)
    except UnsupportedError:
        del node.graph.nodes[begin:]
        LAYERS["Conv"](node)
        return
    _give_scaled(node, integers, Sums(
        sums, _per_channel(_for_each(x.scale * weight.scale.reshape(-1), rows), rank),
        None if bias is None else _per_channel(bias, rank)))


def _for_each(scale: np.ndarray, channels: int) -> np.ndarray:
    """Returns a vector with a scale for each channel. A single scale of all channels is repeated: a
    number in the code of a kernel would prevent layers of one shape from sharing a kernel."""
    return np.broadcast_to(scale.astype(np.float32).reshape(-1), channels)


def _scaled_sums(node: OnnxNode, c: Composer, sums: Sums) -> int:
    """Adds sums of integers times their scale, plus their bias, to the expression `c`, and returns
    the result's number in `c`."""
    value = c.apply("mul", total(c, sums.names), constant(node, c, sums.scale, "scale"))
    return value if sums.bias is None else c.apply(
        "add", value, constant(node, c, sums.bias, "bias"))


def _give_scaled(node: OnnxNode, integers: Integers, sums: Sums) -> None:
    """Adds the node that computes sums of integers times a scale, and notes the sums of which its
    output is made."""
    c = Composer()
    node.emit_expression(c, _scaled_sums(node, c, sums))
    integers.sums[node.outputs[0]] = sums


def _matrix_product(node: OnnxNode, integers: Integers) -> None:
    """Converts Gemm and MatMul. Where the input and a constant matrix are integers times a scale,
    the product multiplies the integers."""
    converter = LAYERS[node.op]
    a, b = (integers.scaled.get(node.input(index)) for index in (0, 1))
    if a is None or b is None or b.array is None or b.array.ndim != 2 or a.scale.size != 1 or (
            not a.integers.name):
        converter(node)
        return
    matrix, scale, bias = b.array, b.scale, None
    if node.op == "Gemm":
        bias = node.optional_constant(2)
        if (node.attribute("alpha", 1.0), node.attribute("beta", 1.0)) != (1.0, 1.0) or (
                node.attribute("transA", 0) or (node.input(2) and bias is None)):
            converter(node)
            return
        if node.attribute("transB", 0):
            matrix, scale = matrix.T, scale.T
    columns = matrix.shape[1]
    if (scale.size != 1 and scale.shape != (1, columns)) or (
            bias is not None and bias.size not in (1, columns)):
        converter(node)
        return
    begin = len(node.graph.nodes)
    try:
        sums = product(node, a.integers, matrix, integers)
    except UnsupportedError:
        del node.graph.nodes[begin:]
        converter(node)
        return
    _give_scaled(node, integers, Sums(sums, _for_each(a.scale * scale, columns),
                                      None if bias is None else of_columns(bias)))


def of_columns(array: np.ndarray) -> np.ndarray:
    """Returns an array of one number, or one number a column, in a shape that broadcasts to the
    rows of a matrix."""
    return array.reshape(-1 if array.size > 1 else ())


def _qlinear_conv(node: OnnxNode, integers: Integers) -> None:
    """Converts QLinearConv, whose bias is in units of the product of both scales."""
    weight = node.constant(3, "the weight")
    if weight.ndim not in (3, 4):
        raise node.unsupported(f"has {weight.ndim - 2} spatial dimensions; gossamer computes 1 or "
                               "2")
    rank = weight.ndim
    x_scale, x_zero, _ = quantisation(node, integers, (1, 2), node.required(0))
    w_scale, w_zero, _ = quantisation(node, integers, (4, 5), node.required(3), 0)
    y_scale, y_zero, dtype = quantisation(node, integers, (6, 7), node.outputs[0])
    _check_rows(node, w_scale, w_zero, weight.shape[0])
    x = centre(node, integers, 0, x_zero, "x")
    sums = _sums_of_window(node, x, weight.astype(np.float32) - w_zero)
    c = Composer()
    value = total(c, sums)
    if node.input(8):
        value = c.apply("add", value, bias_of_integers(node, c, 8, weight.shape[0], rank))
    factor = _for_each(x_scale * w_scale.reshape(-1) / y_scale, weight.shape[0])
    value = c.apply("mul", value, constant(node, c, _per_channel(factor, rank), "scale"))
    give(node, integers, requantise(node, c, value, y_zero, dtype), node.outputs[0])


def _check_rows(node: OnnxNode, scale: np.ndarray, zero: np.ndarray, rows: int) -> None:
    """Raises ModelError unless scale and zero point of the weights are each one number, or one
    number for each output channel."""
    for what, array in (("scale", scale), ("zero point", zero)):
        if array.size not in (1, rows):
            raise node.error(f"the weight's {what} has {array.size} values, expected one or "
                             f"{rows}, one for each output channel")


def bias_of_integers(node: OnnxNode, c: Composer, index: int, channels: int, rank: int) -> int:
    """Adds a bias of integers to the expression `c`, and returns its number in `c`."""
    bias = node.constant(index, "the bias")
    if bias.size != channels:
        raise node.error(f"bias {quoted(node.input(index))} has shape {list(bias.shape)}, expected "
                         f"[{channels}]")
    numbers = bias.reshape(-1).astype(np.float32)
    if (numbers.astype(np.float64) != bias.reshape(-1)).any():
        raise node.unsupported("its bias is larger than the integers that float32 holds")
    return constant(node, c, _per_channel(numbers, rank), "bias")


def product(node: OnnxNode, a: Centred, b: Centred | np.ndarray,
             integers: Integers) -> list[str]:
    """Adds a matrix product of integers, in slices of the summed axis. Returns the names of the
    slices' results, whose sum is the product. b: a constant matrix, or a value that the data
    decide."""
    if isinstance(b, Centred):
        shape = integers.probe.shape(node.required(0))
        check_depth(node, None if not shape else shape[-1],
                    *(max(map(abs, factor.bounds)) for factor in (a, b)))
        return [node.emit("matmul", [a.name, b.name], "sums")]
    if b.ndim != 2:
        raise node.unsupported(f"multiplies by a constant of {b.ndim} dimensions; gossamer "
                               "computes a matrix")

    def sums_of(piece: str, part: slice, role: str) -> str:
        return node.emit("matmul", [piece, node.add_constant(b[part], f"{role}.weight")], role)

    return sliced_sums(node, a.name, slices(node, b.T, a.bounds), -1, sums_of)


def _qlinear_matmul(node: OnnxNode, integers: Integers) -> None:
    """Converts QLinearMatMul."""
    a_scale, a_zero, _ = quantisation(node, integers, (1, 2), node.required(0))
    b_scale, b_zero, _ = quantisation(node, integers, (4, 5), node.required(3), -1)
    y_scale, y_zero, dtype = quantisation(node, integers, (6, 7), node.outputs[0])
    a = centre(node, integers, 0, a_zero, "a")
    constant_b = node.optional_constant(3)
    b = centre(node, integers, 3, b_zero, "b") if constant_b is None else (
        constant_b.astype(np.float32) - b_zero)
    c = Composer()
    factor = (a_scale * b_scale / y_scale).astype(np.float32)
    value = c.apply("mul", total(c, product(node, a, b, integers)),
                    constant(node, c, factor, "scale"))
    give(node, integers, requantise(node, c, value, y_zero, dtype), node.outputs[0])


def _zero_point(node: OnnxNode, integers: Integers, index: int,
                of_columns: bool) -> np.ndarray | str:
    """Returns the zero point of a factor of integers: one number; for columns also one number for
    each column; or the name of a zero point that the data decide."""
    name = node.input(index)
    if not name:
        return _NO_ZERO
    if name in integers.centred and integers.rank(name) == 0:
        return name
    zero = node.constant(index, "the zero point").astype(np.float32)
    if zero.size == 1:
        return zero.reshape(())
    if not of_columns or zero.ndim != 1:
        raise node.unsupported("has several zero points for its rows; gossamer computes one")
    return zero


def _matmul_integer(node: OnnxNode, integers: Integers) -> None:
    """Converts MatMulInteger, whose result is int32."""
    a = centre(node, integers, 0, _zero_point(node, integers, 2, False), "a")
    b_zero, constant_b = _zero_point(node, integers, 3, True), node.optional_constant(1)
    b = constant_b.astype(np.float32) - b_zero if (
        constant_b is not None and isinstance(b_zero, np.ndarray)) else (
        centre(node, integers, 1, b_zero, "b"))
    _give_sums(node, integers, product(node, a, b, integers))


def _conv_integer(node: OnnxNode, integers: Integers) -> None:
    """Converts ConvInteger, whose result is int32."""
    weight, zero = node.constant(1, "the weight"), _zero_point(node, integers, 3, True)
    if weight.ndim not in (3, 4) or isinstance(zero, str):
        raise node.unsupported("has other weights than constants of 1 or 2 spatial dimensions")
    _check_rows(node, _NO_ZERO, zero, weight.shape[0])
    x = centre(node, integers, 0, _zero_point(node, integers, 2, False), "x")
    rows = zero.reshape(-1, *[1] * (weight.ndim - 1)) if zero.size > 1 else zero
    _give_sums(node, integers, _sums_of_window(node, x, weight.astype(np.float32) - rows))


def _give_sums(node: OnnxNode, integers: Integers, sums: list[str]) -> None:
    exact = give_int32(node, sums, node.outputs[0])
    if exact is not None:
        integers.centred[node.outputs[0]] = Centred(exact, _NO_ZERO, "int32")


def _cast(node: OnnxNode, integers: Integers) -> None:
    """Converts Cast. A cast of integers to float32 is the float32 value that stands for them."""
    known = integers.centred.get(node.input(0))
    if known is None or TYPES.get(node.attribute("to", 0)) != "float32":
        ELEMENTWISE["Cast"](node)
        return
    for of_other_types in ("saturate", "round_mode"):
        node.attribute(of_other_types)
    whole = centre(node, integers, 0, _NO_ZERO, "number")
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
    x = node.input(0)
    if x not in integers.centred and integers.dtype(node, x) in ("int8", "uint8"):
        integers.centred[x] = centre(node, integers, 0, _NO_ZERO, "x")
    _selecting(node, integers, LAYERS["MaxPool"])


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
    c = Composer()
    value = c.operand(f"{output}.average")
    node.emit_expression(c, c.apply("mul", value, constant(node, c, scaled.scale, "scale")))


QUANTISED: dict[str, IntegerConverter] = {
    "QuantizeLinear": _quantise, "DequantizeLinear": _dequantise,
    "DynamicQuantizeLinear": _quantise_dynamically, "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul, "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer, "Conv": _conv, "Gemm": _matrix_product,
    "MatMul": _matrix_product, "Cast": _cast, "Concat": _concat,
    **{op: partial(_selecting, converter=LAYOUT[op]) for op in (
        "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Identity",
        "DepthToSpace", "SpaceToDepth", "Expand")},
    "MaxPool": _max_pool,
    **{op: partial(_averaging, converter=LAYERS[op]) for op in (
        "AveragePool", "GlobalAveragePool")},
}
"""Converters of operators on quantised values, and of operators whose results stay quantised."""
