"""Where the time of planning goes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

LISTING = "listing configs"
REFERENCE = "inputs and reference"
WAITING = "waiting for builds"
BUILDING = "building"
WORKING = "building in other processes"
BUILDING_CHECKS = "building checks"
CHECKING = "checking"
TIMING = "timing"
CHOOSING = "choosing"
COMPARING = "timing whole plans"
STORING = "storing measurements"
OTHER = "everything else"


@dataclass
class _Stage:
    seconds: float = 0.0
    count: int = 0


class TuningProfile:
    """Seconds of planning by stage.

    The stages of the thread that made the profile exclude one another and add up to the elapsed
    time. Those of other threads, which build candidates meanwhile, are counted apart.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._stages: dict[tuple[str, bool], _Stage] = {}
        self._inner: list[float] = []
        self._lock = threading.Lock()
        self.elapsed = 0.0
        self.processor_seconds = 0.0
        """Seconds of all processors, those of other processes that built candidates included."""
        self.device_us = 0.0
        """Microseconds that the device spent on what was timed, by its own clock."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time of the body, without that of stages within it, to a stage."""
        in_background = threading.get_ident() != self._thread
        start = time.perf_counter()
        if not in_background:
            self._inner.append(0.0)
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            if not in_background:
                inner = self._inner.pop()
                if self._inner:
                    self._inner[-1] += seconds
                seconds -= inner
            with self._lock:
                stage = self._stages.setdefault((name, in_background), _Stage())
                stage.seconds += seconds
                stage.count += 1

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Counts the time of the body as elapsed; what is in no stage is `OTHER`."""
        self._thread = threading.get_ident()
        start, processor_start = time.perf_counter(), _processor_seconds()
        try:
            with self.stage(OTHER):
                yield
        finally:
            self.elapsed += time.perf_counter() - start
            self.processor_seconds += _processor_seconds() - processor_start

    def summary(self) -> dict[str, Any]:
        """Returns elapsed_s; device_share, the share of that in which the device checked or timed
        candidates or whole plans; timed_s, the seconds by the device's own clock that timing took
        of it; processors, the number that were busy on average; and the rows as stages. Empty where
        nothing was measured."""
        rows = self.rows()
        on_device = sum(row["seconds"] for row in rows if not row["in_background"]
                        and row["stage"] in (CHECKING, TIMING, COMPARING))
        if not on_device or not self.elapsed:
            return {}
        return {"elapsed_s": self.elapsed, "device_share": on_device / self.elapsed,
                "timed_s": self.device_us / 1e6,
                "processors": self.processor_seconds / self.elapsed, "stages": rows}

    def rows(self) -> list[dict[str, Any]]:
        """Returns one dict for each stage with the keys stage, seconds, share (of the elapsed
        time), count and in_background, the longest first."""
        with self._lock:
            return sorted((
                {"stage": name, "seconds": stage.seconds,
                 "share": stage.seconds / self.elapsed if self.elapsed else 0.0,
                 "count": stage.count, "in_background": in_background}
                for (name, in_background), stage in self._stages.items()),
                key=lambda row: (row["in_background"], -row["seconds"]))


def _processor_seconds() -> float:
    """Returns the processor seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
