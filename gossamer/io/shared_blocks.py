"""Allocates blocks of shared memory. Processes that this process has started write to the
blocks."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref

import numpy as np


class SharedBlocks:
    """Blocks of one size, which other processes write through a file descriptor.

    A block is used again when no array lies in it any more. The memory has no file name. The system
    frees the memory when no process has the descriptor or an array any more, even where processes
    are killed. On systems without such memory (memfd) blocks lie in memory of this process alone.

    descriptors: the file descriptor with which the processes are to be started; empty on systems
    without memfd.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._stride = -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._count = 0
        self._free: list[tuple[int, mmap.mmap]] = []
        self.descriptors: tuple[int, ...] = ()
        with contextlib.suppress(AttributeError, OSError):
            self.descriptors = (os.memfd_create("gossamer"),)

    def take(self) -> tuple[np.ndarray, int | None]:
        """Returns a block, and the byte at which it begins in the descriptor's file; None where the
        block lies in memory of this process alone."""
        try:
            offset, mapping = self._free.pop()
        except IndexError:
            offset = self._count * self._stride
            try:
                (descriptor,) = self.descriptors
                os.ftruncate(descriptor, offset + self._stride)
                mapping = mmap.mmap(descriptor, self._stride, offset=offset)
            except (ValueError, OSError):
                return np.empty(self._nbytes, np.uint8), None
            self._count += 1
        memory = (ctypes.c_uint8 * self._nbytes).from_buffer(mapping)
        weakref.finalize(memory, self._free.append, (offset, mapping))
        return np.frombuffer(memoryview(memory), np.uint8), offset

    def close(self) -> None:
        """Ends this process's use of the descriptor. A block that is in use stays until no array
        lies in it any more."""
        self._free.clear()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


def write(descriptor: int, offset: int, array: np.ndarray) -> bool:
    """Writes a contiguous array at an offset of the descriptor's file; any process that has the
    descriptor may call this function. Returns whether the system had room for the array."""
    try:
        return os.pwrite(descriptor, array.data, offset) == array.nbytes
    except OSError:
        return False
