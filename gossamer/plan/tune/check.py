"""Compares the output that a candidate wrote with the output of the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType

import numpy as np

from gossamer.device.base import Buffer
from gossamer.plan.tune.bounds import Bounds
from gossamer.tensor import TensorSpec, pack, unpack

GUARD = 0xFF
"""Value of each byte around an output, and of the output's own bytes before a candidate runs."""

VALUES_OF_ERROR = 64
"""The least number of values over which one error is computed: a single value may be nearly zero,
and its relative error large."""
_SMALL = 2**14
"""Number of values of an image below which the images that are not compared are unpacked, too, so
that their paddings are checked. Unpacking all images of a large batch takes most of a second."""


def error_of(buffer: Buffer, spec: TensorSpec, expected: np.ndarray,
             images: Sequence[int] | None, limits: Bounds | None = None) -> float:
    """Returns the error of an output that lies between two guards, each at least as long as the
    device's alignment: infinite where a guard was written over, a part of the output was not
    written, or a padding is not zero.

    images: indices of the images that `expected` holds, which are compared; the other images are
    only searched for values that were not written. None: `expected` is the whole output, which does
    not consist of images.
    limits: for results that jump, the places where right results may differ from `expected`; None
    for other results.
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
        # as a float the guard is a NaN, which marks unwritten values; integers may equal the guard
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
    """Returns the logical array of an output; None where its paddings are not zero."""
    result = unpack(memory.view(spec.stored_dtype), spec)
    is_padded = spec.format.is_packed or (
        memory.nbytes != spec.size * spec.stored_dtype.itemsize)
    # kernels that read the output rely on zeros in its paddings
    if is_padded and not np.array_equal(pack(result, spec).reshape(-1).view(np.uint8), memory):
        return None
    return result


def _outside(result: np.ndarray, expected: np.ndarray, limits: Bounds | None,
             together: int) -> float:
    """Returns the error of the values that are not near a jump; infinite where a value that must be
    exact differs."""
    if limits is None:
        return difference(result, expected, together)
    right = expected.astype(result.dtype)
    same = (result == right) | ((result != result) & (right != right))  # both are NaN
    if (~same & limits.exact & ~limits.doubtful).any():
        return math.inf
    return difference(np.where(limits.doubtful, right, result), expected, together)


def difference(result: np.ndarray, expected: np.ndarray, together: int) -> float:
    """Returns the largest normalised error, |result - expected| / |expected|, of any group of
    `together` consecutive images; infinite where integers differ, or where a value is finite in
    one array only."""
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
    return largest_error(_squares_by_image(expected), _squares_by_image(errors), together)


def largest_error(expected: np.ndarray, differences: np.ndarray, together: int) -> float:
    """Returns the largest normalised error of any group of `together` consecutive images, from each
    image's sum of squares of expected values and sum of squares of differences."""
    # images that are left over join the last group
    starts = range(0, max(1, len(expected) // together * together), together)
    size, error = np.sqrt(np.add.reduceat(np.stack([expected, differences]), starts, axis=1))
    return float(np.where(size > 0, error / np.where(size > 0, size, 1), error).max())


def _squares_by_image(numbers: np.ndarray) -> np.ndarray:
    """Returns the sum of squares of each image."""
    images = numbers.reshape(len(numbers), -1)
    return np.einsum("ij,ij->i", images, images)
