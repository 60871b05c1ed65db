"""Converters of ONNX's element-wise ops. Most converters emit one elementwise node."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from onnx import TensorProto

from gossamer.expression import Composer, Value, apply
from gossamer.model.readers.onnx.node import Converter, OnnxNode
from gossamer.model.readers.onnx.value_types import TYPES

_ROUNDING = {TensorProto.FLOAT16: "to_float16", TensorProto.BFLOAT16: "to_bfloat16"}
"""For casts to a shorter float, the function that rounds; the result is stored as float32."""
FLOAT8_ATTRIBUTES = ("saturate", "round_mode")
"""Attributes that affect only casts to 8-bit floats, which gossamer does not compute."""


def _function(node: OnnxNode, name: str) -> None:
    """Convert an op that is one function of gossamer.expression."""
    inputs = [node.required(index) for index in range(len(node.inputs))]
    expression = apply(name)
    if len(inputs) != expression.inputs:
        raise node.error(f"has {len(inputs)} inputs, expected {expression.inputs}")
    node.emit_elementwise(expression, inputs)


def _composed(node: OnnxNode, formula: Callable[..., Value]) -> None:
    """Convert an op that is a formula of several functions of gossamer.expression.

    formula: function of the node and the values of its inputs.
    """
    composer = Composer()
    values = [composer.operand(node.required(index)) for index in range(len(node.inputs))]
    node.emit_expression(formula(node, *values))


def _variadic(node: OnnxNode, *values: Value, function: str) -> Value:
    """Return the formula of an op with any number of inputs, such as Sum."""
    total = values[0]
    for value in values[1:]:
        total = total.apply(function, value)
    if node.op == "Mean":
        return total / len(values)
    return total + 0 if len(values) == 1 and function == "add" else total


def _pow(node: OnnxNode) -> None:
    """Convert Pow. The result has the dtype of the base, for any dtype of the exponent."""
    c = Composer()
    x, exponent = c.operand(node.required(0)), node.optional_constant(1)
    if exponent is not None and exponent.shape == () and exponent == 2:
        node.emit_expression(x * x)
        return
    if exponent is not None and exponent.shape == () and exponent == 0.5:
        value = x.apply("sqrt")
    else:
        value = x.apply("pow", c.operand(node.required(1)))
    power = node.emit_expression(value, "power")
    node.emit("cast_like", [power, node.required(0)])


def _mod(node: OnnxNode) -> None:
    node.emit("mod", [node.required(0), node.required(1)],
              of_dividend=bool(node.attribute("fmod", 0)))


def _selu(node: OnnxNode, x: Value) -> Value:
    gamma = x.composer.constant(node.attribute("gamma", 1.050701))
    return gamma * _exponential_below_zero(x, node.attribute("alpha", 1.6732632))


def _exponential_below_zero(x: Value, alpha: float, *, divided: bool = False) -> Value:
    """Return alpha * (exp(x) - 1) for x below 0, and x itself for other x.

    divided: whether the exponent is x / alpha.
    """
    exponent = x.apply("min", 0)
    if divided:
        exponent = exponent / alpha
    grown = exponent.apply("exp") - 1
    return x.apply("greater", 0).apply("where", x, grown * alpha)


def _gelu(node: OnnxNode, x: Value) -> Value:
    if node.only("approximate", "none", "tanh") == "none":
        gate = (x * math.sqrt(0.5)).apply("erf")
    else:
        cube = x * x * x
        inner = x + cube * 0.044715
        gate = (inner * math.sqrt(2 / math.pi)).apply("tanh")
    half = x * 0.5
    return half * (gate + 1)


def _softplus(x: Value) -> Value:
    # The argument of exp is never positive, so exp cannot overflow. log(1 + small) is computed by
    # W. Kahan's formula, in which the rounding error of the sum cancels: the relative error of the
    # result is that of `small`.
    small = (-x.apply("abs")).apply("exp")
    total = small + 1
    logarithm = total.apply("log") * (small / (total - 1))
    return x.apply("relu") + total.apply("equal", 1).apply("where", small, logarithm)


def _is_infinite(node: OnnxNode, x: Value) -> Value:
    signs = [sign for sign, name in ((1, "detect_positive"), (-1, "detect_negative"))
             if node.attribute(name, 1)]
    if not signs:
        raise node.unsupported("detects neither of the infinities")
    found = [x.apply("equal", sign * math.inf) for sign in signs]
    return found[0] if len(found) == 1 else found[0].apply("or", found[1])


def _leaky_relu(node: OnnxNode) -> None:
    node.emit_elementwise(apply("leaky_relu", node.attribute("alpha", 0.01)), [node.required(0)])


def _hard_sigmoid(node: OnnxNode) -> None:
    alpha, beta = node.attribute("alpha", 0.2), node.attribute("beta", 0.5)
    node.emit_elementwise(apply("hard_sigmoid", alpha, beta), [node.required(0)])


def _clip(node: OnnxNode) -> None:
    """Convert Clip.

    The bounds are attributes before opset 11, and optional inputs from opset 11 on. The attributes
    default to the lowest and the greatest finite number.
    """
    composer = Composer()
    value = composer.operand(node.required(0))
    bounds: list[tuple[str, float | str]] = []
    for index, (function, name) in enumerate((("max", "min"), ("min", "max")), start=1):
        known = node.optional_constant(index)
        if node.opset < 11:
            most = float(np.finfo(np.float32).max)
            bound = node.attribute(name, -most if name == "min" else most)
            if bound != (-math.inf if name == "min" else math.inf):
                bounds.append((function, bound))
        elif known is not None:
            bounds.append((function, known.item()))
        elif node.input(index):
            bounds.append((function, node.input(index)))
    if len(bounds) == 2 and not any(isinstance(bound, str) for _, bound in bounds):
        low, high = (bound for _, bound in bounds)
        value = value.apply("clip", constants=(low, high))  # type: ignore[arg-type]
    else:
        for function, bound in bounds:
            limit = composer.operand(bound) if isinstance(bound, str) else bound
            value = value.apply(function, limit)
    if bounds:
        node.emit_expression(value)
    else:
        node.emit("identity", [node.required(0)])


def _cast(node: OnnxNode) -> None:
    target = node.attribute("to")
    node.allow(*FLOAT8_ATTRIBUTES)
    x = node.required(0)
    if target == TensorProto.BOOL:
        composer = Composer()
        is_zero = composer.operand(x).apply("equal", 0)
        node.emit_expression(is_zero.apply("not"))
        return
    if target not in TYPES:
        raise node.unsupported(f"casts to ONNX type {target}; gossamer knows "
                               f"{', '.join(sorted(set(TYPES.values())))}")
    if target in _ROUNDING:
        x = node.emit("cast", [x], "number", dtype="float32")
        node.emit_elementwise(apply(_ROUNDING[target]), [x])
    else:
        node.emit("cast", [x], dtype=TYPES[target])


def _cast_like(node: OnnxNode) -> None:
    node.allow(*FLOAT8_ATTRIBUTES)
    node.emit("cast_like", [node.required(0), node.required(1)])


_FORMULAS: dict[str, Callable[..., Value]] = {
    "Elu": lambda node, x: _exponential_below_zero(x, node.attribute("alpha", 1.0)),
    "Celu": lambda node, x: _exponential_below_zero(x, node.attribute("alpha", 1.0), divided=True),
    "Selu": _selu, "Gelu": _gelu, "IsInf": _is_infinite,
    "Softsign": lambda node, x: x / (x.apply("abs") + 1),
    "Softplus": lambda node, x: _softplus(x),
    "Mish": lambda node, x: x * _softplus(x).apply("tanh"),
    "HardSwish": lambda node, x: x * x.apply("hard_sigmoid", constants=(1 / 6, 0.5)),
    "Reciprocal": lambda node, x: 1 / x,
    "Ceil": lambda node, x: -(-x).apply("floor"),
    "Xor": lambda node, x, y: x.apply("not").apply("equal", y.apply("not")).apply("not"),
    # only NaN differs from itself
    "IsNaN": lambda node, x: x.apply("equal", x).apply("not"),
}
"""The formulas, as functions of the node and its inputs, by the name of the op."""
ELEMENTWISE: dict[str, Converter] = {
    **{op: partial(_function, name=name) for op, name in {
        "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Less": "less",
        "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
        "Equal": "equal", "And": "and", "Or": "or", "Not": "not", "Where": "where",
        "Neg": "neg", "Abs": "abs", "Exp": "exp", "Log": "log", "Sqrt": "sqrt",
        "Tanh": "tanh", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Atan": "atan",
        "Erf": "erf", "Floor": "floor", "Round": "round", "Sigmoid": "sigmoid",
        "Sign": "sign", "Relu": "relu", "PRelu": "prelu",
    }.items()},
    **{op: partial(_composed, formula=partial(_variadic, function=function))
       for op, function in {"Sum": "add", "Mean": "add", "Min": "min", "Max": "max"}.items()},
    **{op: partial(_composed, formula=formula) for op, formula in _FORMULAS.items()},
    "LeakyRelu": _leaky_relu, "HardSigmoid": _hard_sigmoid, "Clip": _clip,
    "Mod": _mod, "Pow": _pow, "Cast": _cast, "CastLike": _cast_like,
}
