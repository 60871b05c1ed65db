"""The memory of OpenCL devices: allocations, and the sub-buffers that stand for parts of them.

Some drivers may be called by one thread at a time only. `Owner` releases objects of these drivers.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

import pyopencl as cl

from gossamer.device.base import Buffer, Device
from gossamer.device.checks import check_view


class Owner:
    """Holds the only references to some objects of a driver. Dropping the references releases the
    objects. The thread that drops them holds the lock round the driver's calls while it does so."""

    def __init__(self, objects: list[Any], calls: AbstractContextManager[Any]) -> None:
        self.objects = objects
        self._calls = calls

    def __del__(self) -> None:
        with self._calls:
            self.objects.clear()


class OpenCLMemory:
    """An allocation and its sub-buffers, which are kept as long as the allocation.

    NVIDIA's driver has a fault. Where two sub-buffers share bytes and the older one is released
    first, the driver reads memory that it has freed, and in the long run the process crashes. So
    sub-buffers are released only with the allocation, the latest first.

    calls: the lock round the driver's calls.
    """

    def __init__(self, whole: cl.Buffer, calls: AbstractContextManager[Any]) -> None:
        self._whole = whole
        self._calls = calls
        self._parts: dict[int, cl.Buffer] = {}
        self._lock = threading.Lock()

    def starting_at(self, offset: int) -> cl.Buffer:
        """Returns the memory from a byte on: a sub-buffer up to the end of the allocation. All
        buffers that begin at this byte share the sub-buffer."""
        if offset == 0:
            return self._whole
        with self._calls, self._lock:
            if offset not in self._parts:
                self._parts[offset] = self._whole.get_sub_region(offset, self._whole.size - offset)
            return self._parts[offset]

    def __del__(self) -> None:
        # released explicitly, since other references to PyOpenCL's objects may still exist
        with self._calls:
            while self._parts:
                self._parts.popitem()[1].release()
            self._whole.release()


class OpenCLBuffer(Buffer):
    """An OpenCL memory object, or a region of one."""

    def __init__(self, device: Device, memory: OpenCLMemory, offset: int, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.offset = offset
        self._memory = memory

    @property
    def handle(self) -> cl.Buffer:
        """The OpenCL memory object that begins at this buffer's first byte; it may be longer than
        the buffer."""
        # OpenCL allows no sub-buffer that begins at the end of the allocation
        return self._memory.starting_at(self.offset if self.nbytes else 0)

    def view(self, offset: int, nbytes: int) -> OpenCLBuffer:
        check_view(self, offset, nbytes)
        return OpenCLBuffer(self.device, self._memory, self.offset + offset, nbytes)
