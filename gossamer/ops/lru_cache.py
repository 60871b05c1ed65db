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

    The least recently used results are dropped while the total size exceeds a limit. A single
    result that exceeds the limit is not stored.

    max_bytes: maximum total size of the results in bytes.
    size: function that returns the size of a result in bytes.
    """

    def __init__(self, max_bytes: int, size: Callable[[T], int]) -> None:
        self.max_bytes = max_bytes
        self._size = size
        self._results: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of a key.

        If the cache does not have the result, make() computes it. If several threads ask for the
        same missing key at the same time, each of them may call make().
        """
        with self._lock:
            result = self._results.get(key)
        if result is None:
            result = make()
        with self._lock:
            self._results[key] = result
            # a result that exceeds the limit goes to the front, so that it is dropped first
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

    The hash covers names, dtypes, shapes and values.
    """
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha.update(f"{name} {array.dtype} {array.shape}".encode())
        sha.update(array.data)
    return sha.hexdigest()
