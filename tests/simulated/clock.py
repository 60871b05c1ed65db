"""A clock that shows the same time in every run, for plans whose budget or reports depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_MODULES = ("plan.tune.search", "plan.tune.tuner", "plan.tune.profile", "plan.prepare")
"""The modules whose clock is simulated, behind `gossamer.`."""


class Clock:
    """Takes the place of the module `time`: each reading is some seconds after the one before."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._now = seconds, 0.0

    def monotonic(self) -> float:
        """Returns the next time."""
        self._now += self._seconds
        return self._now

    perf_counter = process_time = thread_time = monotonic


@contextmanager
def ticking(seconds: float = 1 / 1024) -> Iterator[None]:
    """Has planning read such a clock in the body."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(seconds)
        for module in _MODULES:
            patch.setattr(f"gossamer.{module}.time", clock)
        yield
