"""CUDA streams, and side streams for work that runs in parallel to another stream."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from gossamer.device.cuda.driver import check, quietly

if TYPE_CHECKING:
    from gossamer.device.cuda.device import CudaDevice

LEGACY_STREAM = 1
"""The handle of the legacy default stream, which the handle 0 also names."""

_MOST_BESIDE = 32
"""Largest number of main streams whose side streams are kept. A rule of thumb."""


class CudaStream:
    """A CUDA stream that is created and destroyed with this object."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        with device.current():
            self.handle = int(check(
                driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))
        weakref.finalize(self, quietly, device, driver.cuStreamDestroy, self.handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class SideStreams:
    """The side streams of main streams. A side stream waits for work of its main stream, and the
    main stream waits for work of the side stream, by events. The side streams of each main stream
    are kept, so that a launch creates none."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._beside: OrderedDict[int, list[Any]] = OrderedDict()

    def beside(self, handle: int, count: int) -> list[Any]:
        """Returns `count` side streams of the main stream with this handle."""
        with self._lock:
            streams = self._beside.setdefault(handle, [])
            self._beside.move_to_end(handle)
            while len(streams) < count:
                streams.append(self._make())
            while len(self._beside) > _MOST_BESIDE:
                # the driver destroys a stream only after its pending work
                self._beside.popitem(last=False)
            return streams[:count]
