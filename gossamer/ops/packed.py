"""Packed tensors: their words and values, and the base class of algorithms on packed words."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.expression import FUNCTIONS, Expression
from gossamer.facts import ValueFacts
from gossamer.ops.algorithm import Variant
from gossamer.ops.strided import KernelAlgorithm
from gossamer.tensor import PACKED_DTYPES, Format, TensorSpec, image_shape, pack

WORD_TYPES = {"uint32": "uint", "uint64": "ulong"}
"""The C type of a word in kernels, by the NumPy dtype of the stored words."""
_TRUTHS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal", "and", "or", "not"})
_MOST_VALUES = 16
"""Maximum number of combinations of possible arguments. If a step has more combinations, its
possible results are not enumerated."""


def can_hold(format_: Format, facts: ValueFacts) -> bool:
    """Return whether a format can represent all values that facts allow.

    Float formats always can, because they may round values.
    """
    if not format_.is_packed:
        return True
    if facts.count is None or not facts.few_values:
        return False
    return format_.holds(facts.low + facts.step * np.arange(facts.count))


def formats_for(facts: ValueFacts) -> list[Format]:
    """Return the packed formats that can represent all values that facts allow.

    The formats are those of bits if bits suffice, else those of trits. The list is empty if trits
    do not suffice either.
    """
    for dtype in ("bits", "trits"):
        formats = [Format(layout, dtype) for layout in ("packed32", "packed64")]
        if can_hold(formats[0], facts):
            return formats
    return []


def result_dtype(expression: Expression, output: int = 0) -> str | None:
    """Return the narrowest packed dtype that represents all possible values of an output.

    Returns None if no packed dtype does.

    output: index of the output among those of the expression.
    """
    return smallest_dtype(_possible_values(expression, output))


def smallest_dtype(values: set[float] | None) -> str | None:
    """Return the narrowest packed dtype that represents the values; None if there is none."""
    if values is None:
        return None
    return next((name for name in ("bits", "trits") if values <= set(PACKED_DTYPES[name].values)),
                None)


def _possible_values(expression: Expression, output: int) -> set[float] | None:
    """Return the possible values of an output; None if they are too many or unknown."""
    known: list[set[float] | None] = [None] * expression.inputs
    for step in expression.steps:
        arguments = [known[index] for index in step.arguments]
        if step.function == "sign":
            known.append({-1.0, 0.0, 1.0})
        elif step.function in _TRUTHS:
            known.append({0.0, 1.0})
        elif step.function == "where":
            _, one, other = arguments
            known.append(None if one is None or other is None else one | other)
        else:
            known.append(_results(step.function, step.constants, arguments))
    return known[expression.outputs[output]]


def _results(function: str, constants: tuple[float, ...],
             arguments: list[set[float] | None]) -> set[float] | None:
    """Return all possible results of a function.

    arguments: the possible values of each argument; None if they are too many or unknown.

    Returns None if an argument is None, or if there are too many combinations of arguments.
    """
    sets = [values for values in arguments if values is not None]
    if len(sets) < len(arguments) or np.prod([len(values) for values in sets]) > _MOST_VALUES:
        return None
    with np.errstate(all="ignore"):
        return {float(FUNCTIONS[function].numpy(*map(np.float64, values), *constants))
                for values in itertools.product(*sets)}


def as_images(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a matrix as images of one pixel, in the same memory.

    A spec of rank 4 is returned unchanged.
    """
    if len(spec.shape) == 4:
        return spec
    layout = spec.layout if spec.format.is_packed else "NCHW"
    return TensorSpec(image_shape(spec.shape), replace(spec.format, layout=layout))


def constant_words(value: float, spec: TensorSpec) -> np.ndarray:
    """Return the words of a pixel whose channels are all equal, as an array (words, planes).

    value: the value of all channels. Padding bits are 0.
    spec: spec of the packed tensor.
    """
    pixel = replace(spec, shape=(1, spec.shape[1], 1, 1))
    return pack(np.full(pixel.shape, value, np.float32), pixel).reshape(pixel.stored_shape[1], -1)


@dataclass(frozen=True)
class PackedParts:
    """The addressing of a packed tensor in kernels.

    Kernels address the tensor as unsigned 32-bit integers, called parts. A word consists of one or
    two parts.

    planes: number of bits per value.
    parts: number of parts per word; the first part holds the lower channels.
    count: number of parts per pixel and plane, including padding.
    strides: strides of images, words of channels, rows and columns, in parts.
    start: offset of channel 0 of the first pixel inside the border, in parts.
    """

    planes: int
    parts: int
    count: int
    strides: tuple[int, int, int, int]
    start: int

    @classmethod
    def of(cls, spec: TensorSpec) -> PackedParts:
        """Return the parts of a packed spec."""
        _, words, height, width, *_ = spec.stored_shape
        planes = PACKED_DTYPES[spec.dtype].planes
        parts = spec.stored_dtype.itemsize // 4
        column = planes * parts
        strides = (words * height * width * column, height * width * column, width * column, column)
        top, left = spec.format.border[:2]
        return cls(planes, parts, words * parts, strides, top * strides[2] + left * column)


class PackedAlgorithm(KernelAlgorithm):
    """An algorithm with the same packed format for inputs and output."""

    name = "packed"

    @abc.abstractmethod
    def formats(self, problem: Any) -> list[Format]:
        """Return the packed formats that the algorithm supports for a problem."""

    def variants(self, problem: Any, device: Device) -> Iterator[Variant]:
        for format_ in self.formats(problem):
            inputs, outputs = (tuple(TensorSpec(spec.shape, format_) for spec in specs)
                               for specs in (problem.inputs, problem.outputs))
            yield Variant((), inputs, outputs)
