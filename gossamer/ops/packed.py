"""How algorithms address the words of packed tensors, and which values may be packed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from gossamer.expression import FUNCTIONS, Expression
from gossamer.facts import ValueFacts
from gossamer.tensor import PACKED_DTYPES, Format, TensorSpec, image_shape, pack

WORD_TYPES = {"uint32": "uint", "uint64": "ulong"}
"""The C type of a word in kernels, by the NumPy dtype of the stored words."""
_TRUTHS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal", "and", "or", "not"})
_MOST_VALUES = 16
"""The most combinations of a step's possible arguments for which the step's results are listed."""


def can_hold(format_: Format, facts: ValueFacts) -> bool:
    """Returns whether a format can hold all values that the facts allow. Formats of floats can hold
    any values, because they may round them."""
    if not format_.is_packed:
        return True
    if facts.count is None or not facts.few_values:
        return False
    return format_.holds(facts.low + facts.step * np.arange(facts.count))


def formats_for(facts: ValueFacts) -> list[Format]:
    """Returns the packed formats that can hold all values that the facts allow: the formats of bits
    where bits suffice, else the formats of trits; an empty list where trits do not suffice."""
    for dtype in ("bits", "trits"):
        formats = [Format(layout, dtype) for layout in ("packed32", "packed64")]
        if can_hold(formats[0], facts):
            return formats
    return []


def result_dtype(expression: Expression, output: int = 0) -> str | None:
    """Returns the packed dtype with the fewest bits that holds all values that an output of an
    expression may have; None where no packed dtype holds them."""
    return smallest_dtype(_possible_values(expression, output))


def smallest_dtype(values: set[float] | None) -> str | None:
    """Returns the packed dtype with the fewest bits that holds the values; None where no packed
    dtype holds them."""
    if values is None:
        return None
    return next((name for name in ("bits", "trits") if values <= set(PACKED_DTYPES[name].values)),
                None)


def _possible_values(expression: Expression, output: int) -> set[float] | None:
    """Returns a set of all values that an output may have; None where it may have many."""
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
    """Returns all results of a function. arguments: the possible values of each argument, or None.
    Returns None where an argument is None or there are too many combinations."""
    sets = [values for values in arguments if values is not None]
    if len(sets) < len(arguments) or np.prod([len(values) for values in sets]) > _MOST_VALUES:
        return None
    with np.errstate(all="ignore"):
        return {float(FUNCTIONS[function].numpy(*map(np.float64, values), *constants))
                for values in itertools.product(*sets)}


def as_images(spec: TensorSpec) -> TensorSpec:
    """Returns the spec of a matrix as images of one pixel in the same memory. Returns a spec of
    rank 4 unchanged."""
    if len(spec.shape) == 4:
        return spec
    layout = spec.layout if spec.format.is_packed else "NCHW"
    return TensorSpec(image_shape(spec.shape), replace(spec.format, layout=layout))


def constant_words(value: float, spec: TensorSpec) -> np.ndarray:
    """Returns the words of a pixel in the packed format of a spec, as an array (words, planes). All
    channels of the pixel have the same value; bits beyond its channels are 0."""
    pixel = replace(spec, shape=(1, spec.shape[1], 1, 1))
    return pack(np.full(pixel.shape, value, np.float32), pixel).reshape(pixel.stored_shape[1], -1)


@dataclass(frozen=True)
class PackedParts:
    """How kernels address a packed tensor: as unsigned numbers of 32 bits, called parts. A word has
    one or two parts.

    planes: number of bits of a value.
    parts: number of parts of a word; the first part has the lower channels.
    count: number of parts of one plane of a pixel, paddings included.
    strides: distances in parts between neighbouring images, words of channels, rows and columns.
    start: number of parts of the border that precede channel 0 of the first pixel.
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
