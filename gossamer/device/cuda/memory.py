"""CUDA device memory: allocations, parts of buffers, memory of a pool or of other libraries."""

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
    """Device memory that keeps its owner alive. The owner is an allocation, a larger buffer that
    contains this memory, or an object of another library."""

    device: DriverDevice
    # each launch reads the address, and a plain attribute is read faster than a property
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

        Memory that was allocated in a stream's order is freed after the work of all recorded
        streams. A stream object is kept alive; a stream given by its bare handle must live as long
        as the memory.
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
    """The pool of a device from which memory is allocated in a stream's order. The pool is made
    when memory is first taken from it."""

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
                # freed memory stays in the pool, so that fresh outputs cost no system call
                checked("making a memory pool", driver.cuMemPoolSetAttribute(
                    self._handle, driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                    driver.cuuint64_t(2**64 - 1)))
            return self._handle


def page_locked(device: DriverDevice, nbytes: int) -> np.ndarray:
    """Return page-locked host memory, which is freed with the last array over it. Raises
    DriverError where the driver locks no more memory."""
    with device.current():
        address = int(check(driver.cuMemHostAlloc(
            max(nbytes, 1), driver.CU_MEMHOSTALLOC_PORTABLE)))
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(memory, quietly, device, driver.cuMemFreeHost, address)
    return np.frombuffer(memoryview(memory), np.uint8)


def is_page_locked(array: np.ndarray) -> bool:
    """Return whether the driver knows an array's memory as page-locked host memory."""
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
        handle = self._device.stream_handle(stream) or LEGACY_STREAM
        # a stream object keeps the stream from being destroyed, a bare handle does not
        if handle not in self._streams or not isinstance(stream, int):
            self._streams[handle] = stream


def _release(device: DriverDevice, address: int, streams: dict[int, Any]) -> None:
    """Free memory of the pool after the present work of the streams.

    The events are recorded here, when the memory is freed. Events from the time when a library took
    an array would be too early, since the library queues its work on the array afterwards. The
    driver does not get the handle of a stream that its owner has closed meanwhile.
    """
    handle, *further_handles = streams
    if further_handles or device.is_closed(streams[handle]):
        handle = device.stream_handle(None)
        for stream in streams.values():
            device.wait(None, stream)
    driver.cuMemFreeAsync(address, handle)
