"""Converters of operators on quantised values that ONNX Runtime adds to ONNX (domain
com.microsoft). The quantiser of ONNX Runtime writes networks with these operators."""

from __future__ import annotations

from functools import partial

import numpy as np

from gossamer.model.compose import Composer
from gossamer.model.readers.onnx.integers import (
    Centred,
    Integers,
    Scaled,
    centre,
    constant,
    give,
    quantisation,
    requantise,
)
from gossamer.model.readers.onnx.layers import LAYERS
from gossamer.model.readers.onnx.node import OnnxNode
from gossamer.model.readers.onnx.quantised import QUANTISED, sum_of_scaled
from gossamer.model.readers.onnx.quantised_products import (
    IntegerConverter,
    bias_of_integers,
    of_columns,
    product,
    scaled_sums,
)


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


def _concat(node: OnnxNode, integers: Integers) -> None:
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


def _gemm(node: OnnxNode, integers: Integers) -> None:
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


MICROSOFT: dict[str, IntegerConverter] = {
    "QuantizeLinear": QUANTISED["QuantizeLinear"],
    "DequantizeLinear": QUANTISED["DequantizeLinear"],
    "QLinearAdd": partial(_arithmetic, function="add"),
    "QLinearMul": partial(_arithmetic, function="mul"),
    "QLinearSigmoid": partial(_function, function="sigmoid"),
    "QLinearLeakyRelu": partial(_function, function="leaky_relu"),
    "QLinearAveragePool": partial(_average, of="AveragePool"),
    "QLinearGlobalAveragePool": partial(_average, of="GlobalAveragePool"),
    "QLinearConcat": _concat, "QGemm": _gemm,
}
"""The converters by the name of the op."""
