"""CUDA streams, and timing event pairs."""

from __future__ import annotations

import weakref

from cuda.bindings import driver

from gossamer.device.cuda.driver import DriverDevice, check, quietly

LEGACY_STREAM = 1
"""CUDA's handle of the legacy default stream; the handle 0 stands for the same stream."""


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
