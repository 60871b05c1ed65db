"""Converters of QONNX's ops, which Brevitas and other tools use to write quantised networks.

See A. Pappalardo et al., "QONNX: representing arbitrary-precision quantized neural networks", arXiv
2206.07527, 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gossamer.expression import Composer, Value
from gossamer.model.readers.onnx.node import Converter, OnnxNode

DOMAINS = ("qonnx.custom_op.general", "finn.custom_op.general", "onnx.brevitas")
"""The domains of QONNX's ops."""


def _bipolar(node: OnnxNode) -> None:
    """Convert BipolarQuant (x, scale).

    The result is `scale` where x is 0 or more, and `-scale` elsewhere.
    """
    if len(node.inputs) != 2:
        raise node.error(f"has {len(node.inputs)} inputs, expected 2: x and its scale")
    c = Composer()
    x, scale = (c.operand(node.required(index)) for index in range(2))
    sign = x.apply("greater_equal", 0).apply("where", 1, -1)
    node.emit_expression(sign * scale)


def _quant(node: OnnxNode) -> None:
    """Convert Quant (x, scale, zero point, number of bits).

    The result is (round(clip(x / scale + zero point)) - zero point) * scale.
    """
    if len(node.inputs) != 4:
        raise node.error(f"has {len(node.inputs)} inputs, expected 4: x, its scale, its zero point "
                         "and its number of bits")
    low, high = _bounds(node)
    c = Composer()
    x, scale, zero_point = (c.operand(node.required(index)) for index in range(3))
    known = node.optional_constant(2)
    shifted = known is None or bool(known.any())
    value = x / scale
    if shifted:
        value = value + zero_point
    value = _ROUNDING[_rounding(node)](value.apply("clip", constants=(low, high)))
    if shifted:
        value = value - zero_point
    node.emit_expression(value * scale)


def _bounds(node: OnnxNode) -> tuple[float, float]:
    """Return the lowest and the highest integer of Quant's number of bits."""
    bits = node.constant(3, "the number of bits")
    if bits.size != 1 or not 1 <= (count := float(bits.reshape(-1)[0])) <= 32:
        raise node.unsupported(f"quantises to {bits.reshape(-1)[:4].tolist()} bits, expected one "
                               "number from 1 to 32")
    signed, narrow = (bool(node.attribute(name, default))
                      for name, default in (("signed", 1), ("narrow", 0)))
    if signed:
        return -(2.0 ** (count - 1)) + narrow, 2.0 ** (count - 1) - 1
    return 0.0, 2.0**count - 1 - narrow


def _rounding(node: OnnxNode) -> str:
    mode = str(node.attribute("rounding_mode", "ROUND"))
    if mode.upper() not in _ROUNDING:
        raise node.unsupported(f"attribute rounding_mode is {mode!r}, gossamer computes "
                               f"{' or '.join(map(repr, _ROUNDING))}")
    return mode.upper()


def _magnitudes(x: Value, rounding: str) -> Value:
    """Return x with its magnitude rounded by a function, and its sign kept."""
    return x.apply("sign") * _ROUNDING[rounding](x.apply("abs"))


_ROUNDING: dict[str, Callable[[Value], Value]] = {
    **dict.fromkeys(("ROUND", "HALF_EVEN"), lambda x: x.apply("round")),
    "FLOOR": lambda x: x.apply("floor"), "CEIL": lambda x: -(-x).apply("floor"),
    **dict.fromkeys(("DOWN", "ROUND_TO_ZERO"), partial(_magnitudes, rounding="FLOOR")),
    "UP": partial(_magnitudes, rounding="CEIL")}
"""The rounding functions of Quant by the value of its attribute rounding_mode."""

QONNX: dict[tuple[str, str], Converter] = {
    (domain, op): converter for domain in DOMAINS
    for op, converter in (("BipolarQuant", _bipolar), ("Quant", _quant))}
"""The converters by domain and name of the op."""
