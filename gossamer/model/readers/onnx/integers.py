"""Integers: records the quantised values of an ONNX file while the file is read. Functions add the
nodes that compute quantised values in float32.

A quantised value holds integers q of few bits that stand for the numbers (q - zero point) * scale.
In gossamer's graph the value is q - zero point in float32. Floats hold these integers exactly,
images are padded with zeros, since 0 stands for the zero point, and integers are rounded by
element-wise arithmetic in the epilogue of the layer before. Where a node reads the integers q of
the file, they are computed from the float32 value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx

from gossamer.model.compose import Composer
from gossamer.model.readers.onnx.node import OnnxNode
from gossamer.model.readers.onnx.value_types import Probe

RANGES = {kind: (float(np.iinfo(kind).min), float(np.iinfo(kind).max))
          for kind in ("int8", "uint8", "int16", "uint16")}
"""The least and the greatest value of the dtypes that files are quantised to."""
_ANY = (-128.0, 255.0)
"""Bounds of 8-bit values that may be signed or unsigned."""
_MOST_INT32 = 2.0**31
"""Bound of the magnitudes of int32 values."""


@dataclass(frozen=True)
class Centred:
    """The integers of a quantised value less its zero point.

    name: the float32 value or constant in gossamer's graph.
    zero_point: the subtracted zero point, as an array that broadcasts to the value, or the name of
    a scalar that the data decide.
    dtype: the dtype of the integers in the file.
    """

    name: str
    zero_point: np.ndarray | str
    dtype: str

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest possible value."""
        low, high = RANGES.get(self.dtype, _ANY if "8" in self.dtype else (
            -_MOST_INT32, _MOST_INT32))
        if isinstance(self.zero_point, str):
            return low - high, high - low
        return low - float(self.zero_point.max()), high - float(self.zero_point.min())


@dataclass(frozen=True)
class Scaled:
    """A float value that is integers times a scale.

    integers: the integers before scaling, less their zero point.
    scale: float32, an array that broadcasts to the value.
    array: the integers where they are constant, else None.
    """

    integers: Centred
    scale: np.ndarray
    array: np.ndarray | None = None


Requantise = Callable[[OnnxNode, np.ndarray, np.ndarray, str], Centred]
"""A function that is called for a QuantizeLinear of a float value. The function adds the node that
rounds the value to integers, and returns the integers. Its arguments are the QuantizeLinear, the
scale and the zero point (one number each), and the dtype of the integers. ONNX Runtime fuses a
layer, the nodes that dequantise its inputs and the node that quantises its result into one operator
on integers; the function rounds as this operator does."""


class Integers:
    """The quantised values of a file while it is read.

    centred: for each value of integers in the file, by name, the float32 value that stands for it.
    scaled: for each float value that is integers times a scale, by name, the integers and the
    scale.
    layers: for each float value that a layer computes from integers, by name, the function that
    rounds it to integers.
    probe: the shapes and dtypes of values.
    """

    def __init__(self, probe: Probe) -> None:
        self.centred: dict[str, Centred] = {}
        self.scaled: dict[str, Scaled] = {}
        self.layers: dict[str, Requantise] = {}
        self.probe = probe

    def forget(self, names: Iterable[str]) -> None:
        """Drops all that was noted about some values. The reader calls this method when it finds
        that gossamer does not compute the node that makes these values."""
        for name in names:
            self.centred.pop(name, None)
            self.scaled.pop(name, None)
            self.layers.pop(name, None)

    def rank(self, name: str) -> int | None:
        """Returns the number of dimensions of a value; None where the number is not known."""
        shape = self.probe.shape(name)
        return None if shape is None else len(shape)

    def dtype(self, node: OnnxNode, name: str) -> str | None:
        """Returns the dtype of a value in the file; None where the dtype is not known."""
        if name in self.centred:
            return self.centred[name].dtype
        if name in node.graph.constants:
            return str(node.graph.constants[name].dtype)
        return self.probe.dtype(name)

    def learn_constant(self, entry: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> None:
        """Notes the integers and the scale of a constant that a DequantizeLinear makes.

        entry: the DequantizeLinear.
        values: the inputs of the node by name, all constants.
        """
        inputs = [*entry.input, ""]
        q, scale = values[inputs[0]], values[inputs[1]]
        attributes = {attribute.name: attribute.i for attribute in entry.attribute}
        if q.dtype.kind not in "iu" or attributes.get("block_size") or scale.ndim > 1:
            return
        zero = values[inputs[2]] if inputs[2] else np.zeros((), q.dtype)
        if zero.size > 1 and zero.shape != scale.shape:
            return
        axis = attributes.get("axis", 1) % max(q.ndim, 1)
        if scale.size != 1 and (q.ndim == 0 or scale.shape != (q.shape[axis],)):
            return
        shape = [-1 if index == axis else 1 for index in range(q.ndim)] if scale.size > 1 else ()
        centred = q.astype(np.float32) - zero.astype(np.float32).reshape(
            shape if zero.size > 1 else ())
        self.scaled[entry.output[0]] = Scaled(
            Centred("", np.zeros(()), str(q.dtype)), scale.astype(np.float32).reshape(shape),
            centred)


def quantisation(node: OnnxNode, integers: Integers, indices: tuple[int, int], value: str,
                 axis: int | None = None) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns three things: the scale and the zero point of a quantised value, as float32 arrays
    that broadcast to the value, and the dtype of the zero point. The dtype is "" where there is no
    zero point.

    indices: indices of the inputs that hold scale and zero point.
    value: the name of a value of the same shape.
    axis: the axis along which scales and zero points may lie; None where each must be one number.
    Raises ModelError where scale or zero point is malformed, and UnsupportedError where the data
    decide the scale or the zero point.
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
        rank = integers.rank(value)
        if axis is None or array.ndim != 1 or rank is None:
            raise node.unsupported(f"has {array.size} scales or zero points of one value; gossamer "
                                   "computes one for all of it, or of an axis of known place")
        if not -rank <= axis < rank:
            raise node.error(f"has no axis {axis}: its input has {rank} dimensions")
        shapes.append((-1, *[1] * (rank - 1 - axis % rank)))
    return (scale.astype(np.float32).reshape(shapes[0]),
            zero.astype(np.float32).reshape(shapes[1]), dtype)


def constant(node: OnnxNode, c: Composer, array: np.ndarray, role: str) -> int:
    """Adds a constant to the expression `c`: into its text where the constant has one element, else
    as an operand. Returns the number by which further steps of the expression name the constant, as
    Composer gives numbers to its values."""
    if array.size == 1:
        return c.constant(float(array.reshape(-1)[0]))
    return c.operand(node.add_constant(array.astype(np.float32), role))


def centre(node: OnnxNode, integers: Integers, index: int, zero_point: np.ndarray | str,
           role: str) -> Centred:
    """Returns the integers of an input after subtraction of a zero point. Adds nodes that subtract
    the zero point where no known value is the difference.

    zero_point: as for Centred.
    role: the end of new names.
    """
    name = node.required(index)
    known = integers.centred.get(name)
    if known is not None and are_same(known.zero_point, zero_point):
        return known
    dtype = integers.dtype(node, name) or ""
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
        value = _plus(node, integers, c, c.operand(known.name), known.zero_point, role, "add")
    value = _plus(node, integers, c, value, zero_point, role, "sub")
    if value < 0:
        return Centred(c.operands[-1 - value], zero_point, dtype)
    return Centred(node.emit_expression(c, value, role), zero_point, dtype)


def _plus(node: OnnxNode, integers: Integers, c: Composer, value: int,
          zero_point: np.ndarray | str, role: str, function: str) -> int:
    """Adds a value plus or minus a zero point to the expression `c`, and returns the result's
    number in `c`. function: "add" or "sub"."""
    if isinstance(zero_point, str):
        known = integers.centred.get(zero_point)
        name = known.name if known is not None else node.emit(
            "cast", [zero_point], f"{role}.zero", dtype="float32")
        return c.apply(function, value, c.operand(name))
    return c.apply(function, value, constant(node, c, zero_point, f"{role}.zero")) if (
        zero_point.any()) else value


def give(node: OnnxNode, integers: Integers, centred: Centred, output: str) -> None:
    """Adds nodes that make the integers of the file, and notes that `centred` stands for them."""
    c = Composer()
    value = c.operand(centred.name)
    number = _plus(node, integers, c, value, centred.zero_point, "given", "add")
    name = centred.name if number == value else node.emit_expression(c, number, "number")
    node.emit("cast", [name], [output], dtype=centred.dtype)
    integers.centred[output] = centred


def requantise(node: OnnxNode, c: Composer, value: int, zero_point: np.ndarray,
               dtype: str, role: str = "centred", *, is_shifted: bool = False) -> Centred:
    """Adds the node that rounds a value to integers of a dtype and subtracts their zero point.

    value: number of the value in `c`, in units of the scale.
    is_shifted: whether the zero point, one number, has been added to the value already. A value
    half-way between two of the file's integers is then rounded to the even one; otherwise it is
    rounded to an integer that is even after the subtraction.
    """
    low, high = RANGES[dtype]
    if is_shifted:
        whole = c.apply("round", c.apply("clip", value, constants=(low, high)))
        value = c.apply("sub", whole, c.constant(float(zero_point.reshape(-1)[0])))
        return Centred(node.emit_expression(c, value, role), zero_point, dtype)
    if zero_point.size == 1:
        zero = float(zero_point.reshape(-1)[0])
        value = c.apply("clip", value, constants=(low - zero, high - zero))
    else:
        value = c.apply("max", value, constant(node, c, low - zero_point, "low"))
        value = c.apply("min", value, constant(node, c, high - zero_point, "high"))
    # the bounds are integers, so that the clip may come before the rounding; the value facts of the
    # result are known only where the rounding is the last step
    return Centred(node.emit_expression(c, c.apply("round", value), role), zero_point, dtype)


def with_scale(node: OnnxNode, integers: Integers, scaled: Scaled, output: str) -> None:
    """Adds the node that multiplies integers by their scale, and notes that its output is these
    integers with this scale."""
    c = Composer()
    value = c.operand(scaled.integers.name)
    node.emit_expression(c, c.apply("mul", value, constant(node, c, scaled.scale, "scale")),
                         [output])
    integers.scaled[output] = scaled


def renamed(scaled: Scaled, name: str) -> Scaled:
    """Returns a copy of a scaled value that names its integers `name`, and has no array."""
    return Scaled(replace(scaled.integers, name=name), scaled.scale)


def are_same(one: np.ndarray | str, other: np.ndarray | str) -> bool:
    """Returns whether two scales or zero points are the same for every element."""
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one == other
    return one.shape == other.shape and bool((one == other).all())

