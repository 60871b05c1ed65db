"""Words of packed dtypes as algorithms address them, and the values that may be packed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from gossamer.expression import FUNCTIONS, Expression
from gossamer.facts import ValueFacts
from gossamer.tensor import PACKED_DTYPES, Format, TensorSpec, image_shape, pack

"""The words by which kernels write bits of values; the header precedes the kernel's own text."""
WORD_TYPES = {"uint32": "uint", "uint64": "ulong"}
"""Types of words in kernels, by the dtypes of words that are stored."""
_TRUTHS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal", "and", "or", "not"})
_MOST_VALUES = 16
"""Number of values that a step of an expression may have to be followed further."""


def can_hold(format_: Format, facts: ValueFacts) -> bool:
    """Returns whether a format can hold all values that the facts allow, other than by rounding
    floats."""
    if not format_.is_packed:
        return True
    if facts.count is None or not facts.few_values:
        return False
    return format_.holds(facts.low + facts.step * np.arange(facts.count))


def formats_for(facts: ValueFacts) -> list[Format]:
    """Returns the packed formats of the smallest of bits and trits that can hold all values that
    the facts allow; empty where neither can."""
    for dtype in ("bits", "trits"):
        formats = [Format(layout, dtype) for layout in ("packed32", "packed64")]
        if can_hold(formats[0], facts):
            return formats
    return []


def result_dtype(expression: Expression, output: int = 0) -> str | None:
    """Returns the packed dtype that holds an output of an expression, by the steps at its end; None
    where it may be other numbers."""
    return smallest_dtype(_possible_values(expression, output))


def smallest_dtype(values: set[float] | None) -> str | None:
    """Returns the packed dtype with the fewest bits that holds the values; None where none does."""
    if values is None:
        return None
    return next((name for name in ("bits", "trits") if values <= set(PACKED_DTYPES[name].values)),
                None)


def _possible_values(expression: Expression, output: int) -> set[float] | None:
    """Returns a set that holds every value of an output; None where they may be many."""
    known: list[set[float] | None] = [None] * expression.inputs
    for step in expression.steps:
        arguments = [known[index] for index in step.arguments]
        if step.function == "sign":
            known.append({-1.0, 0.0, 1.0})
        elif step.function in _TRUTHS:
            known.append({0.0, 1.0})
        elif step.function == "where":
            known.append(_union(arguments[1], arguments[2]))
        else:
            known.append(_results(step.function, step.constants, arguments))
    return known[expression.outputs[output]]


def _union(one: set[float] | None, other: set[float] | None) -> set[float] | None:
    return None if one is None or other is None else one | other


def _results(function: str, constants: tuple[float, ...],
             arguments: list[set[float] | None]) -> set[float] | None:
    """Returns the values of a function of few values; None where they may be many."""
    sets = [values for values in arguments if values is not None]
    if len(sets) < len(arguments) or np.prod([len(values) for values in sets]) > _MOST_VALUES:
        return None
    with np.errstate(all="ignore"):
        return {float(FUNCTIONS[function].numpy(*map(np.float64, values), *constants))
                for values in itertools.product(*sets)}


def as_images(spec: TensorSpec) -> TensorSpec:
    """Returns a matrix as images of one pixel, which lie in memory as it does."""
    if len(spec.shape) == 4:
        return spec
    layout = spec.layout if spec.format.is_packed else "NCHW"
    return TensorSpec(image_shape(spec.shape), replace(spec.format, layout=layout))


def constant_words(value: float, spec: TensorSpec) -> np.ndarray:
    """Returns the words (words, planes) of a pixel all of whose channels have one value, in the
    packed format of a spec; bits beyond its channels are 0."""
    pixel = replace(spec, shape=(1, spec.shape[1], 1, 1))
    return pack(np.full(pixel.shape, value, np.float32), pixel).reshape(pixel.stored_shape[1], -1)


@dataclass(frozen=True)
class PackedParts:
    """A packed tensor as kernels address it: as unsigned numbers of 32 bits, the parts of words.

    planes: bits of a value.
    parts: parts of a word; the first part has the lower channels.
    count: parts of a plane along the channels, paddings included.
    strides: distances in parts between neighbouring images, words of channels, rows and columns.
    start: parts that precede channel 0 of the first pixel: those of the border.
    """

    planes: int
    parts: int
    count: int
    strides: tuple[int, int, int, int]
    start: int

    @classmethod
    def of(cls, spec: TensorSpec) -> PackedParts:
        """Returns the parts of a packed spec."""
        _, words, height, width, *_ = spec.stored_shape
        planes = PACKED_DTYPES[spec.dtype].planes
        parts = spec.stored_dtype.itemsize // 4
        column = planes * parts
        strides = (words * height * width * column, height * width * column, width * column, column)
        top, left = spec.format.border[:2]
        return cls(planes, parts, words * parts, strides, top * strides[2] + left * column)
