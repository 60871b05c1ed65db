"""A stand-in for a GPU, where there is none."""

from __future__ import annotations

import threading
import time

from gossamer.device.host import HostDevice


class StandInDevice(HostDevice):
    """A device that computes nothing, one batch after another, and takes a time for each."""

    def __init__(self) -> None:
        super().__init__()
        self._free_at = 0.0
        self._lock = threading.Lock()

    @property
    def on_processors(self) -> bool:
        return False

    def queue(self, seconds: float) -> float:
        """Queues a batch that takes so many seconds, and returns the time at which it is done."""
        with self._lock:
            self._free_at = max(self._free_at, time.perf_counter()) + seconds
            return self._free_at


def wait_until(end: float) -> None:
    """Waits for a time of time.perf_counter(), without Python's lock."""
    time.sleep(max(0.0, end - time.perf_counter()))
