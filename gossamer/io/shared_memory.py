"""SharedMemory: arrays that other processes of this machine read and write in place."""

from __future__ import annotations

import errno
import math
import mmap
import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_MOST_BYTES = 2**40
"""Size of the address range; only blocks take memory."""
_STEPS = 4
"""Number of sizes of blocks between two powers of two, so that a block can be used again for an
array of nearly the same size."""


class Place(NamedTuple):
    """The place of an array: the start and size of its block, and the array's start.

    Starts are offsets in the memory, and sizes are in bytes.
    """

    block: int
    nbytes: int
    start: int


class SharedMemory:
    """Memory that several processes map, with blocks for arrays.

    The memory is an unnamed file, which the system frees when the last process that maps it ends,
    in whatever way. All of the address range is mapped at once, and only blocks have pages. A block
    is used again when no array refers to it any more.

    descriptor: file descriptor of the memory that another process made; None to make it.
    Raises OSError if the system does not support it.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("gossamer")
            os.ftruncate(descriptor, _MOST_BYTES)
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._map = mmap.mmap(descriptor, 0)
        self._address = int(np.frombuffer(self._map, np.uint8, 1).ctypes.data)
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._sizes: list[int] = []
        self._end = 0
        self._free: dict[int, list[int]] = {}

    @staticmethod
    def is_supported() -> bool:
        """Return whether the system supports such memory."""
        return hasattr(os, "memfd_create") and hasattr(os, "eventfd")

    def empty(self, shape: Sequence[int],
              dtype: np.typing.DTypeLike) -> tuple[np.ndarray, Place]:
        """Return an uninitialised array in a block of its own, and its place.

        The block is free when the array and all views of it are deleted. Raises OSError if the
        system has no memory for another block.
        """
        size = _block_size(math.prod(shape) * np.dtype(dtype).itemsize)
        with self._lock:
            free = self._free.get(size)
            start = free.pop() if free else self._new_block(size)
        array = self.view(start, shape, dtype)
        weakref.finalize(array, self._give_back, start, size).atexit = False
        return array, Place(start, size, start)

    def view(self, start: int, shape: Sequence[int], dtype: np.typing.DTypeLike) -> np.ndarray:
        """Return the array that starts at an offset."""
        return np.ndarray(tuple(shape), dtype, self._map, start)

    def place(self, array: np.ndarray) -> Place | None:
        """Return where a contiguous array lies; None if it is not in this memory."""
        start = array.__array_interface__["data"][0] - self._address
        if not 0 <= start < self._end or not array.flags.c_contiguous:
            return None
        block = bisect_right(self._starts, start) - 1
        return Place(self._starts[block], self._sizes[block], start)

    def _new_block(self, size: int) -> int:
        if self._end + size > _MOST_BYTES:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        # pages that the system lacks are an error here, and no fatal signal when they are written
        os.posix_fallocate(self.descriptor, self._end, size)
        start = self._end
        self._sizes.append(size)
        self._starts.append(start)
        self._end += size
        return start

    def _give_back(self, start: int, size: int) -> None:
        # without the lock, because garbage may be collected while this thread holds it
        self._free.setdefault(size, []).append(start)


def _block_size(nbytes: int) -> int:
    """Return the size of the block for so many bytes, in whole pages."""
    step = max(mmap.ALLOCATIONGRANULARITY, 2**max(nbytes - 1, 1).bit_length() // (2 * _STEPS))
    return max(1, -(-nbytes // step)) * step

