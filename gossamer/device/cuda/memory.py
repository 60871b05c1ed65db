"""CUDA device memory, its owners, and page-locked host memory."""

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

    owner: the object that owns the memory: an Allocation, a StreamAllocation, the buffer that
    this one is a view of, or an object of another library.
    """

    device: DriverDevice
    # a plain attribute, because every launch reads it and a property would be slower
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
        is passed as an object is kept alive. If only the handle is passed, the caller has to keep
        the stream alive as long as the memory.
        """
        owner = self.owner
        while isinstance(owner, CudaBuffer):
            owner = owner.owner
        if isinstance(owner, StreamAllocation):
            owner.used_on(stream)


class Allocation:
    """An owner of device memory; the memory is freed when this object is deleted."""

    def __init__(self, device: DriverDevice, address: int) -> None:
        weakref.finalize(self, quietly, device, driver.cuMemFree, address)


class MemoryPool:
    """A device's pool for stream-ordered allocation, created on first use."""

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
                # keep freed memory in the pool, so that later allocations need no system call
                checked("making a memory pool", driver.cuMemPoolSetAttribute(
                    self._handle, driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                    driver.cuuint64_t(2**64 - 1)))
            return self._handle


def page_locked(device: DriverDevice, nbytes: int) -> np.ndarray:
    """Return page-locked host memory.

    The memory is freed when the last array that uses it is deleted. Raises DriverError if the
    driver cannot lock this much memory.
    """
    with device.current():
        address = int(check(driver.cuMemHostAlloc(
            max(nbytes, 1), driver.CU_MEMHOSTALLOC_PORTABLE)))
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(memory, quietly, device, driver.cuMemFreeHost, address)
    return np.frombuffer(memoryview(memory), np.uint8)


def lock_pages(device: DriverDevice, array: np.ndarray) -> None:
    """Page-lock the memory of an array for all devices of this process.

    Raises DriverError if the driver cannot lock this memory.
    """
    with device.current():
        check(driver.cuMemHostRegister(array.ctypes.data, array.nbytes,
                                       driver.CU_MEMHOSTREGISTER_PORTABLE))


def is_page_locked(array: np.ndarray) -> bool:
    """Return whether an array is in page-locked memory known to the driver."""
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    status, kind = driver.cuPointerGetAttribute(attribute, array.ctypes.data)
    return bool(status == driver.CUresult.CUDA_SUCCESS
                and kind == driver.CUmemorytype.CU_MEMORYTYPE_HOST)


class StreamAllocation:
    """An owner of pool memory; the memory is freed after the work of all streams that use it."""

    def __init__(self, device: DriverDevice, address: int, stream: Any) -> None:
        self._device = device
        self._streams: dict[int, Any] = {}
        self.used_on(stream)
        weakref.finalize(self, quietly, device, _release, device, address, self._streams)

    def used_on(self, stream: Any) -> None:
        """Record that later work of a stream may use the memory; see `CudaBuffer.used_on`."""
        handle = self._device.stream_handle(stream) or LEGACY_STREAM
        # a stream object replaces a bare handle, because the object keeps the stream alive
        if handle not in self._streams or not isinstance(stream, int):
            self._streams[handle] = stream


def _release(device: DriverDevice, address: int, streams: dict[int, Any]) -> None:
    """Free pool memory after the queued work of all its streams.

    If there is only one stream and it is open, the memory is freed on this stream. If there are
    several streams, or the only stream is closed and its handle is invalid, the default stream
    waits for all of them and frees the memory. The waits are queued here instead of in `used_on`,
    because other libraries queue work on an array only after they have received it.
    """
    freeing, *others = streams
    if others or device.is_closed(streams[freeing]):
        freeing = device.stream_handle(None)
        for stream in streams.values():
            device.wait(None, stream)
    driver.cuMemFreeAsync(address, freeing)
