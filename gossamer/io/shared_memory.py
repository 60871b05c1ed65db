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

from gossamer.io.limits import available_memory

_MOST_BYTES = 2**40
"""Size of the address range in bytes. Only the part that blocks cover takes memory."""
_STEPS = 4
"""Number of block sizes from a power of two to the next.

With few sizes, a free block can be used again for an array of nearly the same size.
"""


class Place(NamedTuple):
    """The place of an array in a SharedMemory.

    block: offset of the array's block, in bytes.
    nbytes: size of the block, in bytes.
    start: offset of the array's first byte.
    """

    block: int
    nbytes: int
    start: int


class SharedMemory:
    """Memory that several processes map, with one block per array.

    The memory is an unnamed file. The system frees the file when the last process that maps it
    ends, even if the process is killed. The whole address range is mapped at once, but only blocks
    have pages. A block is used again when no array refers to it any more.

    descriptor: file descriptor of memory that another process created; None creates new memory.
    Raises OSError if the system does not support such memory.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("gossamer")
            os.ftruncate(descriptor, _MOST_BYTES)
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._map = mmap.mmap(descriptor, 0)
        # a core dump would allocate the whole address range
        self._map.madvise(mmap.MADV_DONTDUMP)
        self._address = int(np.frombuffer(self._map, np.uint8, 1).ctypes.data)
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._sizes: list[int] = []
        self._end = 0
        self._free: dict[int, list[int]] = {}
        self._is_released = False

    @staticmethod
    def is_supported() -> bool:
        """Return whether the system has memfd_create()."""
        return hasattr(os, "memfd_create")

    def empty(self, shape: Sequence[int], dtype: np.typing.DTypeLike) -> np.ndarray:
        """Return an uninitialised array in a block of its own.

        The block becomes free when the array and all views of the array are deleted. Raises OSError
        if the system has no memory for another block.
        """
        size = _block_size(math.prod(shape) * np.dtype(dtype).itemsize)
        with self._lock:
            free = self._free.get(size)
            start = free.pop() if free else self._new_block(size)
        array = self.view(start, shape, dtype)
        weakref.finalize(array, self._give_back, start, size).atexit = False
        return array

    def view(self, start: int, shape: Sequence[int], dtype: np.typing.DTypeLike) -> np.ndarray:
        """Return the array of this shape and dtype that starts at offset `start`, in bytes."""
        return np.ndarray(tuple(shape), dtype, self._map, start)

    def place(self, array: np.ndarray) -> Place | None:
        """Return the place of an array; None if it is not contiguous or not in this memory."""
        start = array.__array_interface__["data"][0] - self._address
        if not 0 <= start < self._end or not array.flags.c_contiguous:
            return None
        block = bisect_right(self._starts, start) - 1
        return Place(self._starts[block], self._sizes[block], start)

    def file_place(self, array: np.ndarray) -> tuple[str, int]:
        """Return the path of a file for other processes, and the offset of an array in it."""
        return (f"/proc/{os.getpid()}/fd/{self.descriptor}",
                array.__array_interface__["data"][0] - self._address)

    def release(self) -> None:
        """Return the memory of free blocks to the system, now and whenever a block becomes free."""
        self._is_released = True
        for size, starts in tuple(self._free.items()):
            for start in tuple(starts):
                self._map.madvise(mmap.MADV_REMOVE, start, size)

    def _new_block(self, size: int) -> int:
        # allocate the pages now: if this fails, it raises an error, whereas a later write to a
        # missing page would kill the process, as the system does if it allocates more than it has
        if self._end + size > _MOST_BYTES or size > (available_memory() or size):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        os.posix_fallocate(self.descriptor, self._end, size)
        start = self._end
        self._sizes.append(size)
        self._starts.append(start)
        self._end += size
        return start

    def _give_back(self, start: int, size: int) -> None:
        # do not take the lock: the garbage collector may call this function in a thread that
        # already holds the lock
        self._free.setdefault(size, []).append(start)
        if self._is_released:
            self._map.madvise(mmap.MADV_REMOVE, start, size)


def _block_size(nbytes: int) -> int:
    """Return the size of a block for an array of `nbytes` bytes: whole pages, at least one."""
    step = max(mmap.ALLOCATIONGRANULARITY, 2**max(nbytes - 1, 1).bit_length() // (2 * _STEPS))
    return max(1, -(-nbytes // step)) * step

