"""Comparisons of a candidate's output with the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType

import numpy as np

from gossamer.device.base import Buffer
from gossamer.plan.tune.discontinuity import Bounds
from gossamer.tensor import TensorSpec, pack, unpack

GUARD = 0xFF
"""Value of each byte around an output, and of the output's own bytes before a candidate runs."""
VALUES_OF_ERROR = 64
"""Minimum number of values over which one error is computed: if a single value is nearly zero, its
relative error may be large."""
_SMALL = 2**14
"""Number of values per image below which all images are unpacked to check their padding. Unpacking
all images of a large batch takes most of a second."""


def error_of(buffer: Buffer, spec: TensorSpec, expected: np.ndarray,
             images: Sequence[int] | None, limits: Bounds | None = None) -> float:
    """Return the error of an output between two guards.

    Each guard is at least as long as the device's alignment. The error is infinite if a guard was
    overwritten, part of the output was not written, or padding is not zero.

    images: indices of the compared images, whose values are in `expected`. The other images are
    only searched for values that were not written. None if the output does not consist of images;
    `expected` is then the whole output.
    limits: for discontinuous results, how far correct results may be from `expected`; None for
    other results.
    """
    margin = buffer.device.alignment
    memory = np.empty(buffer.nbytes, np.uint8)
    buffer.device.read(buffer, memory)
    before, output, after = np.split(memory, [margin, margin + spec.nbytes])
    if (before != GUARD).any() or (after != GUARD).any():
        return math.inf
    count = spec.shape[0] if images is not None else 1
    together = (-(-VALUES_OF_ERROR * count // max(1, spec.size)) if images is not None
                else max(spec.shape[:1], default=1))
    compared: EllipsisType | list[int] = ...
    if images is not None and len(images) < count:
        words = output.view(f"u{spec.stored_dtype.itemsize}")
        # in an output of floats, the guard is a NaN, which marks an unwritten value; in an output
        # of integers, the guard may be a valid value
        if spec.stored_dtype.kind == "f" and (words == np.iinfo(words.dtype).max).any():
            return math.inf
        compared = list(images)
        if spec.format.images_are_apart and spec.size >= _SMALL * count:
            output = output.reshape(count, -1)[compared].reshape(-1)
            spec, compared = spec.first(len(images)), ...
    result = _unpacked(output, spec)
    if result is None:
        return math.inf
    return _outside(result[compared], expected, limits, together)


def _unpacked(memory: np.ndarray, spec: TensorSpec) -> np.ndarray | None:
    """Return the logical array of an output; None if its padding is not zero."""
    result = unpack(memory.view(spec.stored_dtype), spec)
    is_padded = spec.format.is_packed or (
        memory.nbytes != spec.size * spec.stored_dtype.itemsize)
    # kernels that read the output rely on zeros in its padding
    if is_padded and not np.array_equal(pack(result, spec).reshape(-1).view(np.uint8), memory):
        return None
    return result


def _outside(result: np.ndarray, expected: np.ndarray, limits: Bounds | None,
             together: int) -> float:
    """Return the error of an output, without values near discontinuities.

    The error is infinite if a value differs by more than its limit.
    """
    if limits is None:
        return difference(result, expected, together)
    right = expected.astype(result.dtype)
    same = (result == right) | ((result != result) & (right != right))  # both are NaN
    with np.errstate(over="ignore", invalid="ignore"):
        differences = np.where(same, 0, np.abs(result.astype(np.float64) - expected))
    if not (differences <= limits.largest).all():
        return math.inf
    return difference(np.where(limits.uncertain, right, result), expected, together)


def difference(result: np.ndarray, expected: np.ndarray, together: int) -> float:
    """Return the largest normalised error, |result - expected| / |expected|.

    One error is computed for each group of `together` consecutive images. The result is infinite if
    integers differ, or if a value is finite in only one of the arrays.
    """
    if result.dtype.kind != "f":
        return 0.0 if np.array_equal(result, expected) else math.inf
    if not expected.size:
        return 0.0
    result, expected = np.atleast_1d(result, expected.astype(np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        single = expected.astype(np.float32)
        errors = result - expected
    odd = ~np.isfinite(single)
    if not np.array_equal(result[odd].astype(np.float32), single[odd], equal_nan=True):
        return math.inf
    expected[odd] = errors[odd] = 0
    if not np.isfinite(errors).all():
        return math.inf
    squares = np.stack([np.square(numbers.reshape(len(numbers), -1)).sum(axis=1)
                        for numbers in (expected, errors)])
    # the remaining images join the last group
    starts = range(0, max(1, len(expected) // together * together), together)
    size, error = np.sqrt(np.add.reduceat(squares, starts, axis=1))
    return float(np.where(size > 0, error / np.where(size > 0, size, 1), error).max())
