"""A cache of data derived from a layer's constants. The same layer is built several times: as a
candidate, in each plan that is compared, and in each context."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


class LruCache(Generic[T]):
    """A cache of results by key that drops the least recently used ones.

    most: bytes that all results together may take. size: returns the bytes of one result.
    """

    def __init__(self, most: int, size: Callable[[T], int]) -> None:
        self.most = most
        self._size = size
        self._results: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the result of a key, calling make() where it is not in the cache. Threads that
        ask for the same key at once may each call make()."""
        with self._lock:
            result = self._results.get(key)
        if result is None:
            result = make()
        with self._lock:
            self._results[key] = result
            self._results.move_to_end(key)
            while sum(map(self._size, self._results.values())) > self.most:
                self._results.popitem(last=False)
        return result


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 hash of named arrays with dtypes and shapes, in hexadecimal."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha.update(f"{name} {array.dtype} {array.shape}".encode())
        sha.update(array.data)
    return sha.hexdigest()
