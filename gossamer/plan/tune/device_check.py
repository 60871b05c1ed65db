"""Checks of candidates in the device's own memory, so that no output travels to the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.plan.tune.check import VALUES_OF_ERROR, largest_error
from gossamer.tensor import TensorSpec

_KERNELS = tuple(KernelSource.of(Path(__file__).with_name("check.cl"), name)
                 for name in ("compare", "fill_with_guards"))
_ITEMS = 256
"""Work-items of a work-group, as in check.cl."""
_MOST_GROUPS = 1024
"""The most work-groups of a launch that fills memory or searches it for guard bytes."""
_BLOCKS = 64
"""Number of work-groups that compare a large image. Where few images are compared, more work-groups
compare each image."""
_RANK = 4
"""The number of dimensions of a tensor in check.cl."""
_LEAST_SQUARES = 1e-24
"""Sum of squares of an image below which single squares may be too small for float32."""


class DeviceCheck:
    """The kernels that compare the outputs of candidates, compiled for one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._compare, self._fill = map(device.compile, _KERNELS)

    def fill_with_guards(self, memory: Buffer) -> None:
        """Fills memory, a multiple of four bytes, with the guard byte."""
        words = memory.nbytes // 4
        groups = min(_MOST_GROUPS, -(-words // _ITEMS))
        self._device.launch(self._fill, (groups,), (_ITEMS,), (memory, np.int64(words)))

    def error_of(self, guarded: Buffer, spec: TensorSpec, expected: Buffer,
                 images: Sequence[int] | None) -> float | None:
        """Returns the error that check.error_of() returns, for an output whose spec handles()
        accepts. Returns None where squares are too large or too small for float32, so that the host
        has to compare.

        expected: the expected values of the compared images, in row-major float32.
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
        # where all images are compared, an unwritten element is a NaN, which sums[..., 2] counts
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
    """Returns whether candidates are checked in a device's own memory."""
    return device.compiles and not device.on_processors


def handles(spec: TensorSpec) -> bool:
    """Returns whether tensors of a spec can be compared on the device: floats without paddings, of
    at most four dimensions."""
    return (spec.dtype in ("float32", "float16") and len(spec.shape) <= _RANK and spec.size > 0
            and spec.nbytes == spec.size * spec.stored_dtype.itemsize)


def _four(spec: TensorSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the sizes and strides of a tensor as if it had four dimensions; added dimensions come
    first.
    """
    added = _RANK - len(spec.shape)
    return (1,) * added + spec.shape, (0,) * added + (spec.strides if spec.shape else ())
