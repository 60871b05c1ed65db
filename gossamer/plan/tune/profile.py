"""Measures how much of the time of planning each stage takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

LISTING = "listing configs"
WAITING = "waiting for builds"
CHECKING = "checking"
TIMING = "timing"
CHOOSING = "choosing"
COMPARING = "timing whole plans"
STORING = "storing measurements"
OTHER = "everything else"


class TuningProfile:
    """Seconds of the thread that plans, by stage. A stage within another stage interrupts the outer
    stage, so that all stages add up to the elapsed time."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._present, self._since = "", 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the `with` block to a stage."""
        before = self._present
        self._enter(name)
        try:
            yield
        finally:
            self._enter(before)

    def whole(self) -> AbstractContextManager[None]:
        """Measure the time of the `with` block; time that is in no other stage is added to
        `OTHER`."""
        return self.stage(OTHER)

    def _enter(self, stage: str) -> None:
        now = time.perf_counter()
        if self._present:
            before = self._seconds.get(self._present, 0.0)
            self._seconds[self._present] = before + now - self._since
        self._present, self._since = stage, now

    def summary(self) -> dict[str, Any]:
        """Return a dict with the keys elapsed_s, device_share and stages; an empty dict where
        nothing was measured. device_share is the share of the elapsed time in which the device
        checked or timed candidates or whole plans. stages is a list, the longest stage first, of
        dicts with the keys stage, seconds and share."""
        elapsed = sum(self._seconds.values())
        on_device = sum(self._seconds.get(name, 0.0) for name in (CHECKING, TIMING, COMPARING))
        if not on_device:
            return {}
        return {"elapsed_s": elapsed, "device_share": on_device / elapsed, "stages": [
            {"stage": name, "seconds": seconds, "share": seconds / elapsed}
            for name, seconds in sorted(self._seconds.items(), key=lambda row: -row[1])]}
