"""Copies of a call's NumPy arrays to a device and back, by way of page-locked memory.

A device copies page-locked memory at the rate of the bus and beside the host's own work; from
other memory it copies only while the host waits. Arrays that are page-locked already are copied as
they are. Others go through page-locked memory that is kept from call to call: large ones in pieces,
which several threads copy there while the device takes the pieces before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import processors

_PIECE_BYTES = 2**20
"""Bytes that one thread copies at a time."""
_MOST_THREADS = 8
"""Threads that copy."""
_MOST_STAGED_BYTES = 2**28
"""Largest array that gets page-locked memory, of which a machine has little; larger ones are copied
by the driver."""


class HostTransfers:
    """The page-locked memory of one context, through which arrays come and go."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._staging: dict[tuple[str, str], np.ndarray] = {}

    def send(self, name: str, array: np.ndarray, buffer: Buffer, stream: Any) -> None:
        """Queues a copy of a contiguous array to the device. An array in page-locked memory must
        stay as it is until the stream has made the copy."""
        if not self._is_staged(array):
            self._device.write(buffer, array, stream)
        elif self._device.is_page_locked(array):
            self._device.queue_write(buffer, array, stream)
        else:
            staging = self._of("input", name, array.nbytes)
            source = array.reshape(-1).view(np.uint8)
            for start, end in _copied(staging, source):
                self._device.queue_write(buffer.view(start, end - start), staging[start:end],
                                         stream)

    def receive(self, arrays: Mapping[str, np.ndarray], buffers: Sequence[Buffer],
                stream: Any) -> None:
        """Fills contiguous arrays, by the names of the values, from buffers of the device. They are
        complete on return."""
        staged: list[tuple[np.ndarray, np.ndarray]] = []
        for (name, array), buffer in zip(arrays.items(), buffers, strict=True):
            if not self._is_staged(array):
                self._device.read(buffer, array, stream)
            elif self._device.is_page_locked(array):
                self._device.queue_read(buffer, array, stream)
            else:
                staging = self._of("output", name, array.nbytes)
                self._device.queue_read(buffer, staging, stream)
                staged.append((array.reshape(-1).view(np.uint8), staging))
        self._device.synchronize(stream)
        for target, staging in staged:
            for _ in _copied(target, staging):
                pass

    def _is_staged(self, array: np.ndarray) -> bool:
        return self._device.locks_pages and 0 < array.nbytes <= _MOST_STAGED_BYTES

    def _of(self, kind: str, name: str, nbytes: int) -> np.ndarray:
        if (kind, name) not in self._staging:
            self._staging[kind, name] = self._device.page_locked(nbytes)
        return self._staging[kind, name]


def _copied(target: np.ndarray, source: np.ndarray) -> Iterator[tuple[int, int]]:
    """Copies bytes, and yields the first and the last of each piece that is complete, in order."""
    if source.nbytes < 2 * _PIECE_BYTES:
        target[...] = source
        yield 0, source.nbytes
        return

    def copy(start: int) -> tuple[int, int]:
        end = min(start + _PIECE_BYTES, source.nbytes)
        target[start:end] = source[start:end]
        return start, end

    yield from _threads().map(copy, range(0, source.nbytes, _PIECE_BYTES))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST_THREADS, processors()), "gossamer-copy")
