"""Tells the user once where the executions of a plan are slowed, as other programs have the
processors on which it runs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from gossamer.device.base import Device
from gossamer.errors import GossamerWarning
from gossamer.measure import Waits, waits

_LEAST_SHARE, _LEAST_S = 0.1, 0.05
"""Waiting time, as a share of the time of executions and in seconds, from which on it is told."""
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
        self._seconds, self._waits = 0.0, Waits(0.0, 0.0)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watches one execution, the body of the context."""
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
        self._add(end - start, after - before)

    def _add(self, seconds: float, waits: Waits) -> None:
        self._seconds += seconds
        self._waits += waits
        waited_s = self._waits.caused_by_others
        if waited_s > max(_LEAST_SHARE * self._seconds, _LEAST_S):
            self._told = True
            # the caller of the plan, behind this method, `watched`, its exit and Plan.__call__
            warnings.warn(
                f"{self._name} on {self._device.name} is slowed: in {self._seconds:.2f} s of "
                f"executions its threads waited {waited_s:.2f} s for a processor, which "
                "other programs or threads have; compiled with an effort meanwhile, it takes as "
                "many threads as suit that", GossamerWarning, stacklevel=5)
        elif self._seconds > _WINDOW_S:
            self._seconds, self._waits = 0.0, Waits(0.0, 0.0)
