"""What was made of a layer's constants, kept for whoever builds the layer again: its candidate,
the plans that are compared as a whole, and each context."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


class LruCache(Generic[T]):
    """Results by key, at most `most` bytes of them; those used least lately go. size: bytes of
    one."""

    def __init__(self, most: int, size: Callable[[T], int]) -> None:
        self.most = most
        self._size = size
        self._results: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """What make() returned when it was called with this key. Threads that ask for the same at
        once may each make it."""
        with self._lock:
            found = self._results.get(key)
        if found is None:
            found = make()
        with self._lock:
            self._results[key] = found
            self._results.move_to_end(key)
            while sum(map(self._size, self._results.values())) > self.most:
                self._results.popitem(last=False)
        return found


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """64 hexadecimal digits, others for every other content."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.data)
    return found.hexdigest()
