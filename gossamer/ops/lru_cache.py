"""A cache with a limit in bytes, and a hash of named arrays."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


class LruCache(Generic[T]):
    """A cache of results by key.

    It drops the least recently used results when all results together are larger than its limit. A
    result that is larger than the limit alone is not stored.

    max_bytes: bytes that all results together may take.
    size: function that returns the bytes of a result.
    """

    def __init__(self, max_bytes: int, size: Callable[[T], int]) -> None:
        self.max_bytes = max_bytes
        self._size = size
        self._results: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the cached result of a key.

        Where the cache has no result for the key, calls make() and adds its result. Threads that
        ask for a key at the same time may each call make().
        """
        with self._lock:
            result = self._results.get(key)
        if result is None:
            result = make()
        with self._lock:
            self._results[key] = result
            # what comes first is dropped first
            self._results.move_to_end(key, last=self._size(result) <= self.max_bytes)
            while sum(map(self._size, self._results.values())) > self.max_bytes:
                self._results.popitem(last=False)
        return result

    def clear(self) -> None:
        """Drop all results."""
        with self._lock:
            self._results.clear()


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 hash of named arrays, in hexadecimal.

    It covers dtypes and shapes.
    """
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha.update(f"{name} {array.dtype} {array.shape}".encode())
        sha.update(array.data)
    return sha.hexdigest()
