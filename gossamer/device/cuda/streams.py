"""CUDA streams, side streams for parallel work, and timing event pairs."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

from gossamer.device.cuda.driver import DriverDevice, check, quietly

LEGACY_STREAM = 1
"""CUDA's handle of the legacy default stream; the handle 0 stands for the same stream."""

_MOST_MAIN_STREAMS = 32
"""Maximum number of main streams whose side streams are cached. A rule of thumb."""


class CudaStream:
    """A CUDA stream, created and destroyed with this object."""

    def __init__(self, device: DriverDevice) -> None:
        self.device = device
        with device.current():
            self.handle = int(check(
                driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))
        weakref.finalize(self, quietly, device, driver.cuStreamDestroy, self.handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class SideStreams:
    """The side streams of each main stream, for work in parallel with it.

    Side streams are kept for later launches, because creating a stream takes time.

    make: function that creates a stream.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._by_main_stream: OrderedDict[int, list[Any]] = OrderedDict()

    def side_streams_of(self, handle: int, count: int) -> list[Any]:
        """Return `count` side streams of the main stream with this handle."""
        with self._lock:
            streams = self._by_main_stream.setdefault(handle, [])
            self._by_main_stream.move_to_end(handle)
            while len(streams) < count:
                streams.append(self._make())
            while len(self._by_main_stream) > _MOST_MAIN_STREAMS:
                # safe: the driver completes a stream's pending work before it destroys the stream
                self._by_main_stream.popitem(last=False)
            return streams[:count]


class EventPair:
    """Two events, one before and one after timed work, destroyed with this object.

    The device's context must be current while the pair is created and used.
    """

    def __init__(self, device: DriverDevice) -> None:
        self._device = device
        self.events = [device.checked("timing", driver.cuEventCreate(
            driver.CUevent_flags.CU_EVENT_DEFAULT)) for _ in range(2)]
        for event in self.events:
            weakref.finalize(self, quietly, device, driver.cuEventDestroy, event)

    def elapsed_us(self) -> float:
        """Wait for the second event and return the microseconds between the two events."""
        self._device.checked("running kernels", driver.cuEventSynchronize(self.events[1]))
        milliseconds = self._device.checked("timing", driver.cuEventElapsedTime(*self.events))
        return float(milliseconds) * 1000
