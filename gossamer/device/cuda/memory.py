"""Buffers in the memory of CUDA devices, the owners of this memory, and page-locked host memory."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import numpy as np
from cuda.bindings import driver

from gossamer.device.base import Buffer
from gossamer.device.checks import check_view
from gossamer.device.cuda.driver import DriverDevice, check, quietly
from gossamer.device.cuda.streams import LEGACY_STREAM


class CudaBuffer(Buffer):
    """Device memory that keeps its owner alive.

    owner: the object with which the memory is freed: an Allocation, a StreamAllocation, the buffer
    that this one is a view of, or an object of another library.
    """

    device: DriverDevice
    # a plain attribute, since each launch reads it and a property would be slower
    address: int = 0

    def __init__(self, device: DriverDevice, address: int, nbytes: int, owner: object) -> None:
        self.device = device
        self.address = address
        self.nbytes = nbytes
        self.owner = owner

    def view(self, offset: int, nbytes: int) -> CudaBuffer:
        check_view(self, offset, nbytes)
        return CudaBuffer(self.device, self.address + offset, nbytes, self)

    def used_on(self, stream: Any) -> None:
        """Record that later work of a stream may use the memory.

        Memory of a StreamAllocation is freed after the work of all recorded streams. A stream that
        is given as an object is kept alive; one that is given by its handle must live as long as
        the memory.
        """
        owner = self.owner
        while isinstance(owner, CudaBuffer):
            owner = owner.owner
        if isinstance(owner, StreamAllocation):
            owner.used_on(stream)


class Allocation:
    """An owner of memory: the driver frees the memory when this object ceases to exist."""

    def __init__(self, device: DriverDevice, address: int) -> None:
        weakref.finalize(self, quietly, device, driver.cuMemFree, address)


class MemoryPool:
    """The pool of a device from which memory is allocated in the order of a stream's work. The
    pool is made when memory is first taken from it."""

    def __init__(self, device: DriverDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._handle: driver.CUmemoryPool | None = None

    @property
    def handle(self) -> driver.CUmemoryPool:
        """The driver's handle of the pool."""
        with self._lock:
            if self._handle is None:
                properties = driver.CUmemPoolProps()
                properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
                properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                properties.location.id = self._device.index
                checked = self._device.checked
                self._handle = checked("making a memory pool", driver.cuMemPoolCreate(properties))
                # freed memory stays in the pool, so that later allocations need no system call
                checked("making a memory pool", driver.cuMemPoolSetAttribute(
                    self._handle, driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                    driver.cuuint64_t(2**64 - 1)))
            return self._handle


def page_locked(device: DriverDevice, nbytes: int) -> np.ndarray:
    """Return page-locked host memory, which is freed with the last array over it. Raises
    DriverError where the driver cannot lock this much memory."""
    with device.current():
        address = int(check(driver.cuMemHostAlloc(
            max(nbytes, 1), driver.CU_MEMHOSTALLOC_PORTABLE)))
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(memory, quietly, device, driver.cuMemFreeHost, address)
    return np.frombuffer(memoryview(memory), np.uint8)


def is_page_locked(array: np.ndarray) -> bool:
    """Return whether an array lies in page-locked memory of which the driver knows."""
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    status, kind = driver.cuPointerGetAttribute(attribute, array.ctypes.data)
    return bool(status == driver.CUresult.CUDA_SUCCESS
                and kind == driver.CUmemorytype.CU_MEMORYTYPE_HOST)


class StreamAllocation:
    """Memory of the device's pool, which is freed after the work of all streams that used it."""

    def __init__(self, device: DriverDevice, address: int, stream: Any) -> None:
        self._device = device
        self._streams: dict[int, Any] = {}
        self.used_on(stream)
        weakref.finalize(self, quietly, device, _release, device, address, self._streams)

    def used_on(self, stream: Any) -> None:
        """Record that later work of a stream may use the memory; see `CudaBuffer.used_on`."""
        handle = self._device.stream_handle(stream) or LEGACY_STREAM
        # the object of a stream keeps the stream alive, and replaces a bare handle of it
        if handle not in self._streams or not isinstance(stream, int):
            self._streams[handle] = stream


def _release(device: DriverDevice, address: int, streams: dict[int, Any]) -> None:
    """Free memory of the pool after the present work of all streams that used it.

    A single stream frees the memory itself. Otherwise the device's default stream waits for all of
    them and frees it, as it does for a single stream that its owner has closed, whose handle is not
    valid any more. The waits begin here and not in `used_on`, since a library queues its work on an
    array after it has taken the array.
    """
    freeing, *others = streams
    if others or device.is_closed(streams[freeing]):
        freeing = device.stream_handle(None)
        for stream in streams.values():
            device.wait(None, stream)
    driver.cuMemFreeAsync(address, freeing)
