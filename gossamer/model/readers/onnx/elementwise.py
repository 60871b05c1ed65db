"""Converters of ONNX's element-wise ops. Most of these ops become one elementwise node."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from onnx import TensorProto

from gossamer.expression import apply
from gossamer.model.compose import Composer
from gossamer.model.readers.onnx.node import Converter, OnnxNode

TYPES: dict[int, str] = {
    **{TensorProto.DataType.Value(name.upper()): name for name in (
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")},
    **{kind: "float32" for kind in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE,
                                    TensorProto.BFLOAT16)},
}
"""The dtype that a tensor of each ONNX type has in a graph."""
_ROUNDING = {TensorProto.FLOAT16: "to_float16", TensorProto.BFLOAT16: "to_bfloat16"}
"""The function by which a cast rounds the float32 that stands for a shorter float."""
FLOAT8_ATTRIBUTES = ("saturate", "round_mode")
"""Attributes that change only casts to floats of 8 bits, which gossamer does not compute."""


def _function(node: OnnxNode, name: str) -> None:
    """Converts an op that is one function of gossamer.expression."""
    inputs = [node.required(index) for index in range(len(node.inputs))]
    expression = apply(name)
    if len(inputs) != expression.inputs:
        raise node.error(f"has {len(inputs)} inputs, expected {expression.inputs}")
    node.emit_elementwise(expression, inputs)


def _composed(node: OnnxNode, formula: Callable[[Composer, list[int], OnnxNode], int]) -> None:
    """Converts an op that is a formula of several functions of gossamer.expression."""
    composer = Composer()
    values = [composer.operand(node.required(index)) for index in range(len(node.inputs))]
    node.emit_expression(composer, formula(composer, values, node))


def _variadic(c: Composer, values: list[int], node: OnnxNode, function: str) -> int:
    """Returns the formula of an op with any number of inputs, such as Sum."""
    total = values[0]
    for value in values[1:]:
        total = c.apply(function, total, value)
    if node.op == "Mean":
        return c.apply("div", total, c.constant(len(values)))
    if len(values) == 1:
        return c.apply(function, total, c.constant(0)) if function == "add" else total
    return total


def _pow(node: OnnxNode) -> None:
    """Converts Pow. Its result has the dtype of the base, whatever the exponent's dtype is."""
    c = Composer()
    x, exponent = c.operand(node.required(0)), node.optional_constant(1)
    if exponent is not None and exponent.shape == () and exponent == 2:
        node.emit_expression(c, c.apply("mul", x, x))
        return
    if exponent is not None and exponent.shape == () and exponent == 0.5:
        value = c.apply("sqrt", x)
    else:
        value = c.apply("pow", x, c.operand(node.required(1)))
    power = node.emit_expression(c, value, "power")
    node.emit("cast_like", [power, node.required(0)])


def _mod(node: OnnxNode) -> None:
    node.emit("mod", [node.required(0), node.required(1)],
              of_dividend=bool(node.attribute("fmod", 0)))


def _elu(c: Composer, values: list[int], node: OnnxNode) -> int:
    alpha = c.constant(node.attribute("alpha", 1.0))
    return _exponential_below_zero(c, values[0], alpha)


def _celu(c: Composer, values: list[int], node: OnnxNode) -> int:
    alpha = c.constant(node.attribute("alpha", 1.0))
    return _exponential_below_zero(c, values[0], alpha, divided=True)


def _selu(c: Composer, values: list[int], node: OnnxNode) -> int:
    alpha = c.constant(node.attribute("alpha", 1.6732632))
    gamma = c.constant(node.attribute("gamma", 1.050701))
    return c.apply("mul", gamma, _exponential_below_zero(c, values[0], alpha))


def _exponential_below_zero(c: Composer, x: int, alpha: int, *, divided: bool = False) -> int:
    """Returns alpha * (exp(x) - 1) for x below 0, and x itself for other x. divided: whether the
    exponent is x / alpha."""
    zero = c.constant(0)
    exponent = c.apply("min", x, zero)
    if divided:
        exponent = c.apply("div", exponent, alpha)
    grown = c.apply("sub", c.apply("exp", exponent), c.constant(1))
    return c.apply("where", c.apply("greater", x, zero), x, c.apply("mul", grown, alpha))


def _softsign(c: Composer, values: list[int], node: OnnxNode) -> int:
    return c.apply("div", values[0], c.apply("add", c.apply("abs", values[0]), c.constant(1)))


def _gelu(c: Composer, values: list[int], node: OnnxNode) -> int:
    (x,) = values
    if node.only("approximate", "none", "tanh") == "none":
        gate = c.apply("erf", c.apply("mul", x, c.constant(math.sqrt(0.5))))
    else:
        cube = c.apply("mul", c.apply("mul", x, x), x)
        inner = c.apply("add", x, c.apply("mul", cube, c.constant(0.044715)))
        gate = c.apply("tanh", c.apply("mul", inner, c.constant(math.sqrt(2 / math.pi))))
    half = c.apply("mul", x, c.constant(0.5))
    return c.apply("mul", half, c.apply("add", gate, c.constant(1)))


def _softplus(c: Composer, values: list[int], node: OnnxNode) -> int:
    # exp takes no positive number, so that it cannot overflow
    small = c.apply("exp", c.apply("neg", c.apply("abs", values[0])))
    return c.apply("add", c.apply("relu", values[0]),
                   c.apply("log", c.apply("add", small, c.constant(1))))


def _mish(c: Composer, values: list[int], node: OnnxNode) -> int:
    return c.apply("mul", values[0], c.apply("tanh", _softplus(c, values, node)))


def _hard_swish(c: Composer, values: list[int], node: OnnxNode) -> int:
    gate = c.apply("hard_sigmoid", values[0], constants=(1 / 6, 0.5))
    return c.apply("mul", values[0], gate)


def _reciprocal(c: Composer, values: list[int], node: OnnxNode) -> int:
    return c.apply("div", c.constant(1), values[0])


def _ceil(c: Composer, values: list[int], node: OnnxNode) -> int:
    return c.apply("neg", c.apply("floor", c.apply("neg", values[0])))


def _xor(c: Composer, values: list[int], node: OnnxNode) -> int:
    return c.apply("not", c.apply("equal", *[c.apply("not", value) for value in values]))


def _is_nan(c: Composer, values: list[int], node: OnnxNode) -> int:
    # only NaN differs from itself
    return c.apply("not", c.apply("equal", values[0], values[0]))


def _is_infinite(c: Composer, values: list[int], node: OnnxNode) -> int:
    signs = [sign for sign, name in ((1, "detect_positive"), (-1, "detect_negative"))
             if node.attribute(name, 1)]
    if not signs:
        raise node.unsupported("looks for neither of the infinities")
    found = [c.apply("equal", values[0], c.constant(sign * math.inf)) for sign in signs]
    return found[0] if len(found) == 1 else c.apply("or", *found)


def _leaky_relu(node: OnnxNode) -> None:
    node.emit_elementwise(apply("leaky_relu", node.attribute("alpha", 0.01)), [node.required(0)])


def _hard_sigmoid(node: OnnxNode) -> None:
    alpha, beta = node.attribute("alpha", 0.2), node.attribute("beta", 0.5)
    node.emit_elementwise(apply("hard_sigmoid", alpha, beta), [node.required(0)])


def _clip(node: OnnxNode) -> None:
    """Converts Clip, whose bounds are attributes before opset 11, and optional inputs since. The
    defaults of the attributes are the greatest finite numbers."""
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
        value = composer.apply("clip", value, constants=(low, high))  # type: ignore[arg-type]
    else:
        for function, bound in bounds:
            limit = (composer.operand(bound) if isinstance(bound, str)
                     else composer.constant(bound))
            value = composer.apply(function, value, limit)
    if bounds:
        node.emit_expression(composer, value)
    else:
        node.emit("identity", [node.required(0)])


def _prelu(node: OnnxNode) -> None:
    node.emit_elementwise(apply("prelu"), [node.required(0), node.required(1)])


def _cast(node: OnnxNode) -> None:
    target = node.attribute("to")
    node.allow(*FLOAT8_ATTRIBUTES)
    x = node.required(0)
    if target == TensorProto.BOOL:
        composer = Composer()
        is_zero = composer.apply("equal", composer.operand(x), composer.constant(0))
        node.emit_expression(composer, composer.apply("not", is_zero))
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


ELEMENTWISE: dict[str, Converter] = {
    **{op: partial(_function, name=name) for op, name in {
        "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Less": "less",
        "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
        "Equal": "equal", "And": "and", "Or": "or", "Not": "not", "Where": "where",
        "Neg": "neg", "Abs": "abs", "Exp": "exp", "Log": "log", "Sqrt": "sqrt",
        "Tanh": "tanh", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Atan": "atan",
        "Erf": "erf", "Floor": "floor", "Round": "round", "Sigmoid": "sigmoid",
        "Sign": "sign", "Relu": "relu",
    }.items()},
    **{op: partial(_composed, formula=partial(_variadic, function=function))
       for op, function in {"Sum": "add", "Mean": "add", "Min": "min", "Max": "max"}.items()},
    **{op: partial(_composed, formula=formula) for op, formula in {
        "Elu": _elu, "Celu": _celu, "Selu": _selu, "Gelu": _gelu,
        "Softsign": _softsign, "Softplus": _softplus, "Mish": _mish, "HardSwish": _hard_swish,
        "Reciprocal": _reciprocal, "Ceil": _ceil, "Xor": _xor, "IsNaN": _is_nan,
        "IsInf": _is_infinite,
    }.items()},
    "LeakyRelu": _leaky_relu, "HardSigmoid": _hard_sigmoid, "Clip": _clip, "PRelu": _prelu,
    "Mod": _mod, "Pow": _pow, "Cast": _cast, "CastLike": _cast_like,
}
