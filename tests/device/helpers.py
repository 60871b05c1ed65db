"""What the memory of a device holds, and a lock that tells who holds it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device


def read(device: Device, buffer: Buffer, shape: Any, dtype: Any = np.float32,
         stream: Any = None) -> np.ndarray:
    """Returns a copy of the start of a buffer as an array."""
    result = np.empty(shape, dtype)
    device.read(buffer, result, stream)
    return result


class NotingLock:
    """A lock that tells whether the calling thread has it."""

    def __init__(self) -> None:
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
