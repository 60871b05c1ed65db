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

_SOURCE = Path(__file__).with_name("check.cl")
_ITEMS = 256
_MOST_GROUPS = 1024
_BLOCKS = 64
"""Work-groups that compare one image."""
_FEW_COPIES = 4
"""Images up to which each is copied by itself instead of all images of an output."""
_RANK = 4
_LEAST_SQUARES = 1e-24
"""Sum of squares of an image below which they may be too small for float32."""


class DeviceCheck:
    """The kernels that bring inputs into the format of a candidate and compare its output, on one
    device. The memory for results is allocated once and grows."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._rearrange, self._compare, self._guards, self._fill = (
            device.compile(KernelSource.of(_SOURCE, name))
            for name in ("rearrange", "compare", "look_for_guards", "fill_with_guards"))
        self._zero = device.upload(np.zeros(64, np.int32), "the flags of a check")
        self._memory: dict[str, Buffer] = {}

    def fill_with_guards(self, memory: Buffer) -> None:
        """Fills memory, a multiple of four bytes, with the guard byte."""
        words = memory.nbytes // 4
        groups = min(_MOST_GROUPS, -(-words // _ITEMS))
        self._device.launch(self._fill, (groups,), (_ITEMS,), (memory, np.int64(words)))

    def arrange(self, source: Buffer, first: int, target: Buffer, spec: TensorSpec) -> None:
        """Copies a row-major array of float32, which begins at element `first` of its memory, into
        memory of a spec that handles() allows."""
        self._copied(source, TensorSpec(spec.shape), target, spec, spec.shape, first, 0)

    def error_of(self, guarded: Buffer, spec: TensorSpec, expected: Buffer,
                 images: Sequence[int] | None) -> float | None:
        """Returns what check.error_of returns for an output that handles() allows; None where
        squares are too large or too small for float32, so that the host has to compare.

        expected: the images that are compared as row-major float32.
        """
        device, margin = self._device, self._device.alignment
        count = spec.shape[0] if images is not None else 1
        compared = list(range(count)) if images is None else list(images)
        image_size = spec.size // count
        result = self._output_of(guarded.view(margin, spec.nbytes), spec, images, compared)
        blocks = min(_BLOCKS, -(-image_size // _ITEMS))
        sums = np.empty((len(compared), blocks, 3), np.float32)
        answer = self._room("answer", device.alignment + sums.nbytes)
        device.copy(answer, self._zero, 4)
        groups = min(_MOST_GROUPS, -(-spec.size // _ITEMS))
        device.launch(self._guards, (groups,), (_ITEMS,), (
            guarded, answer, np.int64(margin), np.int64(spec.nbytes),
            int(spec.dtype == "float16")))
        device.launch(self._compare, (blocks, len(compared)), (_ITEMS, 1), (
            result, expected, answer.view(device.alignment, sums.nbytes), np.int64(image_size)))
        memory = np.empty(device.alignment + sums.nbytes, np.uint8)
        device.read(answer, memory)
        flags = int(memory[:4].view(np.uint32)[0])
        sums = memory[device.alignment:].view(np.float32).reshape(sums.shape)
        # where all images are compared, an element that was not written is a NaN among numbers
        if flags & 1 or (flags & 2 and images is not None and len(images) < count):
            return math.inf
        if sums[..., 2].any():
            return math.inf
        squares = sums.sum(axis=1, dtype=np.float64)
        if not squares[:, 1].min() > _LEAST_SQUARES or not np.isfinite(sums).all():
            return None
        together = -(-VALUES_OF_ERROR * count // max(1, spec.size))
        return largest_error(squares[:, 1], squares[:, 0], together)

    def _output_of(self, output: Buffer, spec: TensorSpec, images: Sequence[int] | None,
                   compared: Sequence[int]) -> Buffer:
        """Returns the images that are compared as row-major float32."""
        if spec.is_default and spec.dtype == "float32" and (
                images is None or len(images) == spec.shape[0]):
            return output
        shape = spec.shape if images is None else (len(compared), *spec.shape[1:])
        default = TensorSpec(shape)
        result = self._room("result", default.nbytes)
        if images is None or len(images) == spec.shape[0]:
            self._copied(output, spec, result, default, shape, 0, 0)
            return result
        one = (1, *spec.shape[1:])
        strides, image_size = _strides(spec), default.size // len(compared)
        for place, image in enumerate(compared):
            self._copied(output, spec, result, default, one, image * strides[0],
                         place * image_size)
        return result

    def _copied(self, source: Buffer, source_spec: TensorSpec, target: Buffer,
                target_spec: TensorSpec, shape: tuple[int, ...], source_offset: int,
                target_offset: int) -> None:
        count = math.prod(shape)
        if not count:
            return
        sizes = (1,) * (_RANK - len(shape)) + shape
        strides = [np.int64(stride) for spec in (source_spec, target_spec)
                   for stride in (0,) * (_RANK - len(shape)) + _strides(spec)]
        groups = min(_MOST_GROUPS * 16, -(-count // _ITEMS))
        self._device.launch(self._rearrange, (groups,), (_ITEMS,), (
            source, target, int(source_spec.dtype == "float16"),
            int(target_spec.dtype == "float16"), np.int64(count), *sizes[1:],
            np.int64(source_offset), np.int64(target_offset), *strides))

    def _room(self, purpose: str, nbytes: int) -> Buffer:
        """Returns memory of at least so many bytes, which later checks use again."""
        memory = self._memory.get(purpose)
        if memory is None or memory.nbytes < nbytes:
            self._memory.pop(purpose, None)
            memory = self._memory[purpose] = self._device.empty(nbytes, "the check of candidates")
        return memory

    def release(self) -> None:
        """Frees the memory for results."""
        self._memory.clear()


def handles(spec: TensorSpec) -> bool:
    """Returns whether tensors of a spec can be brought into their format, and compared, on the
    device: floats without paddings, of at most four dimensions."""
    return (spec.dtype in ("float32", "float16") and len(spec.shape) <= _RANK and spec.size > 0
            and spec.nbytes == spec.size * spec.stored_dtype.itemsize)


def _strides(spec: TensorSpec) -> tuple[int, ...]:
    return spec.strides if spec.shape else ()
