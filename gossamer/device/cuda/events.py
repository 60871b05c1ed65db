"""Pairs of CUDA events, which measure the time between them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from cuda.bindings import driver

from gossamer.device.cuda.driver import quietly

if TYPE_CHECKING:
    from gossamer.device.cuda.device import CudaDevice


class EventPair:
    """Two events, which are destroyed with this object. The object is made and used while the
    device's context is current."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.events = [device.checked("timing", driver.cuEventCreate(
            driver.CUevent_flags.CU_EVENT_DEFAULT)) for _ in range(2)]
        for event in self.events:
            weakref.finalize(self, quietly, device, driver.cuEventDestroy, event)

    def elapsed_us(self) -> float:
        """Waits for the second event and returns the microseconds between the two events."""
        self._device.checked("running kernels", driver.cuEventSynchronize(self.events[1]))
        milliseconds = self._device.checked("timing", driver.cuEventElapsedTime(*self.events))
        return float(milliseconds) * 1000
