"""Comparisons of a candidate's output with the reference, on the host or on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import EllipsisType

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource
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
_KERNELS = tuple(KernelSource.of(Path(__file__).with_name("output_errors.cl"), name)
                 for name in ("compare", "fill_with_guards"))
_ITEMS = 256
"""Work-items per work-group, as in output_errors.cl."""
_MOST_GROUPS = 1024
"""Maximum number of work-groups that fill memory or search it for guard bytes."""
_BLOCKS = 64
"""Minimum number of work-groups that compare a large image. If few images are compared, there are
more work-groups for each."""
_RANK = 4
"""Number of dimensions of a tensor in output_errors.cl."""
_LEAST_SQUARES = 1e-24
"""If an image's sum of squares is below this value, some of the squares may underflow in float32.
"""


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
    return largest_error(_squares_by_image(expected), _squares_by_image(errors), together)


def largest_error(expected: np.ndarray, differences: np.ndarray, together: int) -> float:
    """Return the largest normalised error of any group of images.

    A group is `together` consecutive images.

    expected, differences: each image's sum of squares of expected values and of differences.
    """
    # the remaining images join the last group
    starts = range(0, max(1, len(expected) // together * together), together)
    size, error = np.sqrt(np.add.reduceat(np.stack([expected, differences]), starts, axis=1))
    return float(np.where(size > 0, error / np.where(size > 0, size, 1), error).max())


def _squares_by_image(numbers: np.ndarray) -> np.ndarray:
    """Return the sum of squares of each image."""
    images = numbers.reshape(len(numbers), -1)
    return np.einsum("ij,ij->i", images, images)


class DeviceCheck:
    """The kernels that compare outputs of candidates on one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._compare, self._fill = map(device.compile, _KERNELS)

    def fill_with_guards(self, memory: Buffer) -> None:
        """Fill memory with the guard byte.

        The size of the memory is a multiple of four bytes.
        """
        words = memory.nbytes // 4
        groups = min(_MOST_GROUPS, -(-words // _ITEMS))
        self._device.launch(self._fill, (groups,), (_ITEMS,), (memory, np.int64(words)))

    def error_of(self, guarded: Buffer, spec: TensorSpec, expected: Buffer,
                 images: Sequence[int] | None) -> float | None:
        """Compute the module's error_of() on the device.

        handles() must accept the spec. Returns None if squares overflow or underflow in float32, so
        that the host must compare the output.

        expected: expected values of the compared images, in row-major float32.
        """
        device = self._device
        count = spec.shape[0] if images is not None else 1
        compared = np.array((0,) if images is None else images, np.int32)
        image_size = spec.size // count
        blocks = max(min(_BLOCKS, -(-image_size // _ITEMS)),
                     min(_MOST_GROUPS, -(-spec.size // (4 * _ITEMS))) // len(compared))
        sums = np.empty((len(compared), blocks, 4), np.float32)
        answer = device.empty(sums.nbytes, "the check of candidates")
        indices = device.upload(compared, "which images are compared")
        sizes, strides = _four(spec)
        image_stride = strides[_RANK - len(spec.shape)] if images is not None else 0
        device.launch(self._compare, (blocks, len(compared)), (_ITEMS, 1), (
            guarded, int(spec.dtype == "float16"), np.int64(device.alignment),
            np.int64(spec.nbytes), expected, indices, answer,
            np.int64(image_size), np.int64(image_stride), *sizes[1:], *map(np.int64, strides)))
        device.read(answer, sums)
        found = int(np.bitwise_or.reduce(sums[..., 3].astype(np.int32), axis=None))
        # if all images are compared, an unwritten element is a NaN, which sums[..., 2] counts
        if found & 1 or (found & 2 and images is not None and len(images) < count):
            return math.inf
        if sums[..., 2].any():
            return math.inf
        squares = sums[..., :2].sum(axis=1, dtype=np.float64)
        if not squares[:, 1].min() > _LEAST_SQUARES or not np.isfinite(sums).all():
            return None
        together = -(-VALUES_OF_ERROR * count // max(1, spec.size))
        return largest_error(squares[:, 1], squares[:, 0], together)


def checks_in_memory(device: Device) -> bool:
    """Return whether candidates are checked on the device instead of on the host."""
    return device.compiles and not device.on_processors


def handles(spec: TensorSpec) -> bool:
    """Return whether the device can compare tensors of a spec.

    The tensors have to be floats without padding, of at most four dimensions.
    """
    return (spec.dtype in ("float32", "float16") and len(spec.shape) <= _RANK and spec.size > 0
            and spec.nbytes == spec.size * spec.stored_dtype.itemsize)


def _four(spec: TensorSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a tensor's sizes and strides, extended to four dimensions.

    Added dimensions, of size 1, come first.
    """
    added = _RANK - len(spec.shape)
    return (1,) * added + spec.shape, (0,) * added + (spec.strides if spec.shape else ())
