"""Computes sums of products of integers exactly in float32, for convolutions and matrix products of
quantised values. Where one sum might be too large for float32, it is computed in slices of
channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gossamer.model.compose import Composer
from gossamer.model.readers.onnx.node import OnnxNode

_LARGEST = 2.0**24
"""The largest magnitude up to which float32 holds all integers exactly."""
_MULTIPLES = (64, 16, 8)
"""Kernels prefer a number of input channels that is a multiple of one of these numbers; the best
comes first."""
_UNIT = 2.0**12
"""The sums of more than two slices are added in two parts: their multiples of this unit, and their
remainders. The total of each part is exact in float32."""


def slices(node: OnnxNode, weight: np.ndarray, bounds: tuple[float, float]
           ) -> list[tuple[int, int]]:
    """Returns slices of the input channels, such that float32 holds the sum of each slice, and each
    partial sum in any order, for all inputs within bounds. There are as few slices as possible.
    Where possible, all slices but the last have the same number of channels, which is a multiple of
    a number that kernels prefer.

    weight: integers (rows, channels, ...), a row for each output channel.
    bounds: the least and the greatest input; zeros of a padding may occur as well.
    Raises UnsupportedError where the products of one channel have too large a sum.
    """
    low, high = min(bounds[0], 0.0), max(bounds[1], 0.0)
    rows, channels = weight.shape[:2]
    positive = np.maximum(weight, 0).reshape(rows, channels, -1).sum(axis=2, dtype=np.float64)
    negative = positive - weight.reshape(rows, channels, -1).sum(axis=2, dtype=np.float64)
    # the sum of all products that may be positive, and of all products that may be negative
    reached = np.stack([positive * high - negative * low, negative * high - positive * low])
    if not reached.size or reached.sum(axis=2).max() <= _LARGEST:
        return [(0, channels)]
    if reached.max() > _LARGEST:
        raise node.unsupported("adds products up to a sum that float32 does not hold, of one input "
                               "channel alone")
    found = _greedy(reached)
    for multiple in _MULTIPLES:
        size = -(-channels // (len(found) * multiple)) * multiple
        equal = [(begin, min(begin + size, channels)) for begin in range(0, channels, size)]
        if all(reached[:, :, begin:end].sum(axis=2).max() <= _LARGEST for begin, end in equal):
            return equal
    return found


def _greedy(reached: np.ndarray) -> list[tuple[int, int]]:
    """Returns the fewest slices, each as long as possible. reached: the largest positive and
    negative sums (2, rows, channels) of each input channel, none above _LARGEST."""
    found, begin = [], 0
    while begin < reached.shape[2]:
        most = np.cumsum(reached[:, :, begin:], axis=2).max(axis=(0, 1))
        end = begin + int((most <= _LARGEST).sum())
        found.append((begin, end))
        begin = end
    return found


def sliced_sums(node: OnnxNode, x: str, parts: Sequence[tuple[int, int]], axis: int,
                sums_of: Callable[[str, slice, str], str]) -> list[str]:
    """Adds nodes for the sums of each slice of channels, and returns the names of the sums.

    x: the value that is multiplied by the weights, with its channels along `axis`.
    sums_of: function that adds the nodes for the sums of one slice, and returns their name. Its
    arguments are the name of the slice of x, the slice, and the end of new names.
    """
    if len(parts) == 1:
        return [sums_of(x, slice(*parts[0]), "sums")]
    names = []
    for number, (begin, end) in enumerate(parts):
        piece = node.emit("slice", [x], f"slice{number}", starts=(begin,), ends=(end,),
                          axes=(axis,))
        names.append(sums_of(piece, slice(begin, end), f"sums{number}"))
    return names


def total(c: Composer, sums: Sequence[str]) -> int:
    """Adds the sum of the values `sums` to the expression `c`, and returns the number of this sum
    in `c`. Where the sum of integers is larger than float32 holds exactly, it is rounded only
    once."""
    values = [c.operand(name) for name in sums]
    if len(values) <= 2:
        return values[0] if len(values) == 1 else c.apply("add", *values)
    unit, share = c.constant(_UNIT), c.constant(1 / _UNIT)
    multiples = [c.apply("round", c.apply("mul", value, share)) for value in values]
    rests = [c.apply("sub", value, c.apply("mul", multiple, unit))
             for value, multiple in zip(values, multiples, strict=True)]
    return c.apply("add", c.apply("mul", _added(c, multiples), unit), _added(c, rests))


def _added(c: Composer, values: Sequence[int]) -> int:
    result = values[0]
    for value in values[1:]:
        result = c.apply("add", result, value)
    return result


def give_int32(node: OnnxNode, sums: Sequence[str], output: str) -> str | None:
    """Adds the nodes that compute the sum over all slices as int32. Returns the name of the float32
    value that holds the same integers; None where there are several slices."""
    if len(sums) == 1:
        node.emit("cast", sums, [output], dtype="int32")
        return sums[0]
    c = Composer()
    parts = [c.operand(node.emit("cast", [name], f"{index}.int32", dtype="int32"))
             for index, name in enumerate(sums)]
    node.emit_expression(c, _added(c, parts), [output])
    return None


def check_depth(node: OnnxNode, depth: int | None, first: float, second: float) -> None:
    """Raises UnsupportedError where a sum of `depth` products of two run-time values may exceed the
    integers that float32 holds exactly. first, second: the largest magnitudes of the factors."""
    if depth is None or depth * first * second > _LARGEST:
        raise node.unsupported("adds products of two values that the data decide up to a sum that "
                               "float32 does not hold")
