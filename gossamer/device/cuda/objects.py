"""What a CUDA device makes beside kernels: streams, memory, graphs."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from gossamer.device.base import Buffer, check_view
from gossamer.device.cuda.driver import check, quietly

if TYPE_CHECKING:
    from gossamer.device.cuda.device import CudaDevice

LEGACY_STREAM = 1
"""The handle of the legacy default stream, for which 0 stands too."""

_MOST_BESIDE = 32
"""Streams that keep others beside them."""


class CudaStream:
    """A CUDA stream of our own, destroyed with this object."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        with device.current():
            self.handle = int(check(
                driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))
        weakref.finalize(self, quietly, device, driver.cuStreamDestroy, self.handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class SideStreams:
    """Streams for work beside that of another stream, which forks to them and joins them again by
    events: the same ones each time for the same stream, so that a launch makes none."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._beside: OrderedDict[int, list[Any]] = OrderedDict()

    def beside(self, handle: int, count: int) -> list[Any]:
        """So many streams for the stream of that handle."""
        with self._lock:
            streams = self._beside.setdefault(handle, [])
            self._beside.move_to_end(handle)
            while len(streams) < count:
                streams.append(self._make())
            while len(self._beside) > _MOST_BESIDE:
                # the driver destroys a stream behind the work that it still has
                self._beside.popitem(last=False)
            return streams[:count]


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


class CudaGraph:
    """Recorded work. Calling it, or launch(stream), replays the work in the stream's order."""

    def __init__(self, device: CudaDevice, graph: driver.CUgraph, kept: list[Any],
                 stream: Any) -> None:
        self._device = device
        self._stream = stream
        # the graph holds bare addresses: buffers and kernels must outlive it
        self._kept = kept
        self._executable = check(driver.cuGraphInstantiate(graph, 0))
        weakref.finalize(self, quietly, device, driver.cuGraphExecDestroy, self._executable)

    def launch(self, stream: Any = None) -> None:
        """Replays on a stream; None: the one it was captured for."""
        stream = self._stream if stream is None else stream
        with self._device.current():
            self._device.checked("replaying a graph", driver.cuGraphLaunch(
                self._executable, self._device.stream_handle(stream)))

    def __call__(self, stream: Any = None) -> None:
        self.launch(stream)
