"""Functions that add nodes for computing quantised values in float32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gossamer.expression import Composer, Value
from gossamer.model.readers.onnx.node import RANGES, Centred, OnnxNode, Scaled


def quantisation(node: OnnxNode, indices: tuple[int, int], value: str,
                 axis: int | None = None) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the scale, the zero point and the zero point's dtype of a quantised value.

    Scale and zero point are float32 arrays that broadcast to the value. The dtype is "" if there is
    no zero point.

    indices: indices of the inputs that hold scale and zero point.
    value: the name of the quantised value, or of another value of its shape.
    axis: the axis along which scales and zero points may vary; None if each must be one number.
    Raises ModelError if scale or zero point is malformed, and UnsupportedError if one of them
    depends on the data.
    """
    scale = node.constant(indices[0], "the scale")
    if scale.dtype.kind != "f" or not (np.isfinite(scale).all() and (scale > 0).all()):
        raise node.error(f"its scale is {scale.reshape(-1)[:4].tolist()}, expected finite numbers "
                         "above 0; quantise the model again")
    zero, dtype = np.zeros((), np.int8), ""
    if node.input(indices[1]):
        zero = node.constant(indices[1], "the zero point")
        dtype = str(zero.dtype)
        if dtype not in RANGES and (dtype != "int32" or zero.any()):
            raise node.unsupported(f"its zero point is {dtype}; gossamer computes "
                                   f"{', '.join(RANGES)}")
        if zero.size != scale.size and zero.size != 1:
            raise node.error(f"its zero point has shape {list(zero.shape)}, expected that of the "
                             f"scale, {list(scale.shape)}")
    shapes: list[tuple[int, ...]] = []
    for array in (scale, zero):
        if array.size == 1:
            shapes.append(())
            continue
        rank = node.integers.rank(value)
        if axis is None or array.ndim != 1 or rank is None:
            raise node.unsupported(f"has {array.size} scales or zero points for one value; "
                                   "expected one, or one for each index of a known axis")
        if not -rank <= axis < rank:
            raise node.error(f"has no axis {axis}: its input has {rank} dimensions")
        shapes.append((-1, *[1] * (rank - 1 - axis % rank)))
    return (scale.astype(np.float32).reshape(shapes[0]),
            zero.astype(np.float32).reshape(shapes[1]), dtype)


def constant(node: OnnxNode, array: np.ndarray, role: str) -> float | str:
    """Return the number of an array of one element, else the name of a new constant."""
    if array.size == 1:
        return float(array.reshape(-1)[0])
    return node.add_constant(array.astype(np.float32), role)


def centre(node: OnnxNode, index: int, zero_point: np.ndarray | str,
           role: str) -> Centred:
    """Return the integers of an input minus a zero point.

    Adds nodes that subtract the zero point, unless a known value already is this difference.

    zero_point: as for Centred.
    role: suffix of new names.
    """
    name = node.required(index)
    known = node.integers.centred.get(name)
    if known is not None and are_same(known.zero_point, zero_point):
        return known
    dtype = node.dtype(name) or ""
    if dtype and dtype not in (*RANGES, "int32"):
        raise node.unsupported(f"its input {index} is {dtype}; gossamer computes "
                               f"{', '.join(RANGES)}")
    dtype = dtype or "8 bits"
    if name in node.graph.constants and isinstance(zero_point, np.ndarray):
        array = node.graph.constants[name].astype(np.float32) - zero_point
        return Centred(node.add_constant(array, role), zero_point, dtype)
    c = Composer()
    if known is None:
        value = c.operand(node.emit("cast", [name], f"{role}.number", dtype="float32"))
    else:
        value = _shifted(node, c.operand(known.name), known.zero_point, role, "add")
    difference = _shifted(node, value, zero_point, role, "sub")
    if difference == c.operand(c.operands[0]):
        return Centred(c.operands[0], zero_point, dtype)
    return Centred(node.emit_expression(difference, role), zero_point, dtype)


def _shifted(node: OnnxNode, value: Value, zero_point: np.ndarray | str, role: str,
             function: str) -> Value:
    """Return a value plus or minus a zero point. function: "add" or "sub"."""
    if isinstance(zero_point, str):
        known = node.integers.centred.get(zero_point)
        return value.apply(function, known.name if known is not None else node.emit(
            "cast", [zero_point], f"{role}.zero", dtype="float32"))
    if not zero_point.any():
        return value
    return value.apply(function, constant(node, zero_point, f"{role}.zero"))


def give(node: OnnxNode, centred: Centred, output: str) -> None:
    """Add nodes that compute the integers of the file, and record their centred form."""
    value = Composer().operand(centred.name)
    number = _shifted(node, value, centred.zero_point, "given", "add")
    name = centred.name if number == value else node.emit_expression(number, "number")
    node.emit("cast", [name], [output], dtype=centred.dtype)
    node.integers.centred[output] = centred


def requantise(node: OnnxNode, value: Value, zero_point: np.ndarray,
               dtype: str, role: str = "centred", *, is_shifted: bool = False) -> Centred:
    """Add the node that rounds a value to integers of a dtype and subtracts their zero point.

    value: the value in units of the scale.
    is_shifted: whether the zero point, one number, has already been added to the value. If so, a
    tie rounds to the even integer of the file. Otherwise, a tie rounds to the integer whose
    difference from the zero point is even.
    """
    low, high = RANGES[dtype]
    if is_shifted:
        whole = value.apply("clip", constants=(low, high)).apply("round")
        value = whole - float(zero_point.reshape(-1)[0])
        return Centred(node.emit_expression(value, role), zero_point, dtype)
    if zero_point.size == 1:
        zero = float(zero_point.reshape(-1)[0])
        value = value.apply("clip", constants=(low - zero, high - zero))
    else:
        value = value.apply("max", constant(node, low - zero_point, "low"))
        value = value.apply("min", constant(node, high - zero_point, "high"))
    # The clip may precede the rounding, because the bounds are integers. The clip must precede the
    # rounding: value facts state that rounded values are integers only if the values are bounded.
    return Centred(node.emit_expression(value.apply("round"), role), zero_point, dtype)


def with_scale(node: OnnxNode, scaled: Scaled, output: str) -> None:
    """Add the node that multiplies integers by their scale, and record its output as scaled."""
    value = Composer().operand(scaled.integers.name)
    node.emit_expression(value * constant(node, scaled.scale, "scale"), [output])
    node.integers.scaled[output] = scaled


def renamed(scaled: Scaled, name: str) -> Scaled:
    """Return a copy of a scaled value with the run-time value `name` as its integers."""
    return Scaled(replace(scaled.integers, name=name), scaled.scale)


def are_same(one: np.ndarray | str, other: np.ndarray | str) -> bool:
    """Return whether two scales or zero points are the same for every element."""
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one == other
    return one.shape == other.shape and bool((one == other).all())

