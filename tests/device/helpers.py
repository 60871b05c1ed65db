"""What kernels do with the memory of a device, page-locked memory, arrays of another library, and a
lock that tells who holds it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device import base
from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource

SELF_CHECK = KernelSource.of(Path(base.__file__).with_name("self_check.cl"), "self_check")
"""A kernel that doubles each number and adds 1."""


def read(device: Device, buffer: Buffer, shape: Any, dtype: Any = np.float32,
         stream: Any = None) -> np.ndarray:
    """Returns a copy of the start of a buffer as an array."""
    result = np.empty(shape, dtype)
    device.read(buffer, result, stream)
    return result


def launched(device: Device, source: KernelSource, groups: Sequence[int], size: Sequence[int],
             *arguments: Any, shared_bytes: int = 0) -> list[np.ndarray]:
    """Launches a kernel with copies of arrays and with numbers, and returns what becomes of the
    arrays."""
    given = [device.upload(argument, "a test") if isinstance(argument, np.ndarray) else argument
             for argument in arguments]
    device.launch(device.compile(source), groups, size, given, shared_bytes=shared_bytes)
    return [read(device, buffer, array.shape, array.dtype)
            for buffer, array in zip(given, arguments, strict=True)
            if isinstance(array, np.ndarray)]


def self_check_of(device: Device, buffer: Buffer) -> Callable[[Any], None]:
    """Returns work on a stream: the kernel SELF_CHECK for the first 8 numbers of a buffer."""
    kernel = device.compile(SELF_CHECK)
    return lambda stream: device.launch(kernel, (1,), (8,), (buffer, 8), stream=stream)


class PageLocked(Device):
    """A device whose page-locked memory is ordinary memory, which `locked` lists."""

    locks_pages = True
    locked: list[np.ndarray]

    def page_locked(self, nbytes: int) -> np.ndarray:
        self.locked.append(np.full(nbytes, 255, np.uint8))
        return self.locked[-1]

    def is_page_locked(self, array: np.ndarray) -> bool:
        return any(np.shares_memory(array, memory) for memory in self.locked)


class ForeignArray:
    """An array in host memory of a library that supports DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class NotingLock:
    """A lock that tells whether the calling thread has it. released: whether it was held at each
    release of an object that notes it."""

    def __init__(self) -> None:
        self.released: list[bool] = []
        self._lock = threading.RLock()
        self._depth = threading.local()

    @property
    def is_held(self) -> bool:
        return getattr(self._depth, "count", 0) > 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth.count = getattr(self._depth, "count", 0) + 1

    def __exit__(self, *error: object) -> None:
        self._depth.count -= 1
        self._lock.release()
