"""Device memory of CUDA: owned, part of another buffer, of a pool, or of another library."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from gossamer.device.base import Buffer, check_view
from gossamer.device.cuda.driver import quietly
from gossamer.device.cuda.streams import LEGACY_STREAM

if TYPE_CHECKING:
    from gossamer.device.cuda.device import CudaDevice


class CudaBuffer(Buffer):
    """Device memory at `handle`: owned, part of another buffer, or foreign with an owner that
    is kept alive."""

    device: CudaDevice

    def __init__(self, device: CudaDevice, handle: int, nbytes: int, owner: object) -> None:
        self.device = device
        self.handle = handle
        self.nbytes = nbytes
        self.owner = owner

    def view(self, offset: int, nbytes: int) -> CudaBuffer:
        check_view(self, offset, nbytes)
        return CudaBuffer(self.device, self.handle + offset, nbytes, self)

    def used_on(self, stream: Any) -> None:
        """Tells that what comes next in this stream may use the memory, which if it was allocated
        in a stream's order is given back behind all such streams. A stream that is given by its
        bare handle must live as long as the memory; an object is kept alive."""
        owner = self.owner
        while isinstance(owner, CudaBuffer):
            owner = owner.owner
        if isinstance(owner, StreamAllocation):
            owner.used_on(stream)


class Allocation:
    """Memory that is given back to the driver with this object."""

    def __init__(self, device: CudaDevice, handle: int) -> None:
        weakref.finalize(self, quietly, device, driver.cuMemFree, handle)


class StreamAllocation:
    """Memory of the device's pool, given back behind the work of all streams that used it."""

    def __init__(self, device: CudaDevice, handle: int, stream: Any) -> None:
        self._device = device
        self._streams: dict[int, Any] = {}
        self.used_on(stream)
        weakref.finalize(self, quietly, device, _release, device, handle, self._streams)

    def used_on(self, stream: Any) -> None:
        handle = self._device.stream_handle(stream) or LEGACY_STREAM
        # the object keeps its stream from being destroyed, a bare handle does not
        if handle not in self._streams or not isinstance(stream, int):
            self._streams[handle] = stream


def _release(device: CudaDevice, handle: int, streams: dict[int, Any]) -> None:
    """Gives memory of the pool back behind what the streams hold by now. (An event recorded when
    a library takes an array would come too early: the work on it is queued after that.)"""
    last, *others = streams
    if others:
        last = device.stream_handle(None)
        for stream in streams:
            device.wait(last, stream)
    driver.cuMemFreeAsync(handle, last)
