"""CUDA streams, and those that work beside another stream."""

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
