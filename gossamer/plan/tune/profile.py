"""Where the time of planning goes."""

from __future__ import annotations

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
        start = time.perf_counter()
        try:
            with self.stage(OTHER):
                yield
        finally:
            self.elapsed += time.perf_counter() - start

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
