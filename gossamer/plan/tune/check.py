"""What a candidate wrote against the reference's outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gossamer.device.base import Buffer
from gossamer.tensor import TensorSpec, from_memory

GUARD = 0xFF
"""Each byte round an output, and of the output before a candidate runs."""

_TOGETHER = 64
"""Numbers of which an error is told, at least: one alone may happen to be nearly zero."""
_APART = 2**16
"""Bytes of an image from which it pays not to read those between."""
_AT_ONCE = 2**17
"""Numbers that fit a processor's cache."""


def error_of(buffer: Buffer, spec: TensorSpec, expected: np.ndarray,
             images: Sequence[int] | None) -> float:
    """The error of an output that lies between guards of the device's alignment: infinite where
    one was written over, or a part of the output was not.

    images: those that `expected` has, which are compared; of the others it is seen whether they
    were written. None: it has all, and they are not apart.
    """
    margin = buffer.device.alignment
    end = margin + spec.nbytes
    if any((_bytes(buffer, *ends) != GUARD).any() for ends in ((0, margin), (end, buffer.nbytes))):
        return math.inf
    count = spec.shape[0] if images is not None else 1
    size, together = spec.nbytes // count, -(-_TOGETHER * count // max(1, spec.size))
    floats = spec.stored_dtype.kind == "f"
    if images is None or spec.layout == "CHWN" or size < _APART or len(images) == count:
        result = from_memory(_bytes(buffer, margin, end).view(spec.stored_dtype), spec)
        if images is None:
            return difference(result, expected, max(result.shape[:1], default=1))
        # the guard is a NaN; integers may well be what it is
        if floats and len(images) < count and _is_left(result):
            return math.inf
        return difference(result if len(images) == count else result[images], expected, together)
    # images lie one after another: only those that are compared are read back
    for image in range(count):
        start = margin + image * size
        if image not in images and floats and (
                _bytes(buffer, start, start + min(size, margin)) == GUARD).all():
            return math.inf
    one = replace(spec, shape=(1, *spec.shape[1:]))
    result = np.concatenate([
        from_memory(_bytes(buffer, start, start + size).view(spec.stored_dtype), one)
        for start in (margin + image * size for image in images)])
    return difference(result, expected, together)


def _bytes(buffer: Buffer, start: int, end: int) -> np.ndarray:
    """A part of the memory; views begin at multiples of the alignment."""
    first = start // buffer.device.alignment * buffer.device.alignment
    memory = np.empty(end - first, np.uint8)
    buffer.device.read(buffer.view(first, end - first), memory)
    return memory[start - first:] if start == first else memory[start - first:].copy()


def difference(result: np.ndarray, expected: np.ndarray, together: int) -> float:
    """The largest normalised error, |result - expected| / |expected|, of so many images, one
    behind another; infinite where integers differ, or one is not finite where the other is."""
    if result.dtype.kind != "f":
        return 0.0 if np.array_equal(result, expected) else math.inf
    if not expected.size:
        return 0.0
    result, expected = np.atleast_1d(result, expected)
    # the outermost in memory, so that a part lies together there
    axis = int(np.argmax([stride if size > 1 else -1 for size, stride
                          in zip(result.shape, result.strides, strict=True)]))
    step = max(1, _AT_ONCE * result.shape[axis] // result.size)
    squares = np.zeros((2, len(result)))
    for first in range(0, result.shape[axis], step):
        part = (slice(None),) * axis + (slice(first, first + step),)
        wanted, got = (each[part].astype(np.float64) for each in (expected, result))
        with np.errstate(over="ignore"):
            stated = wanted.astype(np.float32)
        finite = np.isfinite(stated)
        if not finite.all():
            if not np.array_equal(got[~finite].astype(np.float32), stated[~finite],
                                  equal_nan=True):
                return math.inf
            wanted[~finite] = got[~finite] = 0
        if not np.isfinite(got).all():
            return math.inf
        got -= wanted
        squares[:, part[0]] += [_of_images(wanted), _of_images(got)]
    size, off = np.sqrt(np.add.reduceat(squares, range(0, len(result), together), axis=1))
    return float(np.where(size > 0, off / np.where(size > 0, size, 1), off).max())


def _of_images(numbers: np.ndarray) -> np.ndarray:
    """The sum of squares of each image."""
    return np.square(numbers).sum(axis=tuple(range(1, numbers.ndim)))


def _is_left(result: np.ndarray) -> bool:
    """Whether there is a number that nothing was written to."""
    words = result.view(f"u{result.itemsize}")
    return bool((words == np.iinfo(words.dtype).max).any())
