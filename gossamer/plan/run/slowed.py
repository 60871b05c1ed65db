"""Tells the user once where the executions of a plan are slowed, as other programs have the
processors on which it runs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gossamer.device.base import Device
from gossamer.errors import GossamerWarning
from gossamer.measure import JUDGED_S, Waits, lack_of_processors, waits

_LEAST_SHARE, _LEAST_S = 0.1, 0.05
"""Waiting time, as a share of the time of executions and in seconds, from which on it is told."""
_SLOWED = 1.5
"""Time of an execution, as a multiple of the time that was measured for it, from which on it is
told where other programs leave it too few processors."""
_WINDOW_S = 1.0
"""Seconds of executions that are judged together, so that contention is seen after hours of quiet
as well."""
_OVERHEAD = 100
"""Least time of executions for one watched, as a multiple of what watching costs."""


class SlowedRuns:
    """Watches the executions of one plan on processors; of short ones only some, so that watching
    costs no more than a hundredth of their time."""

    def __init__(self, name: str, device: Device) -> None:
        self._name = name
        self._device = device
        self._told = not device.on_processors
        self._unwatched_s = 0.0
        self._forget()

    def _forget(self) -> None:
        self._seconds, self._waits = 0.0, Waits(0.0, 0.0)

    @contextmanager
    def watched(self, measured_us: Callable[[], float | None]) -> Iterator[None]:
        """Watches one execution, the body of the context. `measured_us` returns the microseconds
        that were measured for it when the processors were quiet, or None where they are unknown;
        it is called only where other programs leave too few processors."""
        if self._told or self._unwatched_s > 0:
            start = time.perf_counter()
            yield
            self._unwatched_s -= time.perf_counter() - start
            return
        before, start = waits(), time.perf_counter()
        yield
        end, after = time.perf_counter(), waits()
        if before is None or after is None:
            self._told = True  # the system does not say how long threads waited
            return
        self._unwatched_s = _OVERHEAD * (time.perf_counter() - end)
        self._seconds += end - start
        self._waits += after - before
        self._tell(end - start, measured_us)

    def _tell(self, last_s: float, measured_us: Callable[[], float | None]) -> None:
        if cause := self._cause(last_s, measured_us):
            self._told = True
            # the caller of the plan, behind this method, `watched`, its exit and Plan.__call__
            warnings.warn(
                f"{self._name} on {self._device.name} is slowed: in {self._seconds:.2f} s of "
                f"executions {cause}; compiled with an effort meanwhile, it takes as many threads "
                "as suit that", GossamerWarning, stacklevel=5)
        elif self._seconds > _WINDOW_S:
            self._forget()

    def _cause(self, last_s: float, measured_us: Callable[[], float | None]) -> str:
        """Returns what slowed the executions of this window, or an empty text."""
        waited_s, others_s = self._waits.caused_by_others, self._waits.others_s
        if waited_s > max(_LEAST_SHARE * self._seconds, _LEAST_S):
            return (f"its threads waited {waited_s:.2f} s for a processor, which other programs or "
                    "threads have")
        if self._seconds < JUDGED_S or not lack_of_processors(others_s / self._seconds):
            return ""
        measured = measured_us()
        if measured is None or last_s <= _SLOWED * measured * 1e-6:
            return ""
        return (f"other programs had processors for {others_s:.2f} s, and the last execution took "
                f"{last_s * 1e6:.0f} us where {measured:.0f} were measured")
