"""The time for which threads of this process wait for a processor that another thread has (Linux).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_THREADS = Path("/proc/self/task")


def without_waits(sample: Callable[[], float]) -> float:
    """Returns about the microseconds that a sample would take on processors that nobody else uses:
    the share of its time for which this process's threads that were ready to run had a processor.

    Returns the time as it is where the system does not tell how long threads wait.
    """
    waited, ran = _waited_s(), time.process_time()
    elapsed = sample()
    ran = time.process_time() - ran
    after = _waited_s()
    waits = sum(after[thread] - waited[thread] for thread in waited.keys() & after.keys())
    return elapsed * ran / (ran + waits) if waits else elapsed


def _waited_s() -> dict[str, float]:
    """Returns for each thread of this process, by its number, the seconds for which it was ready to
    run and had no processor."""
    waits = {}
    for thread in _THREADS.glob("*"):
        try:
            _, waited_ns, _ = (thread / "schedstat").read_text().split()
        except (OSError, ValueError):
            # the thread has ended, or the system counts no waits
            continue
        waits[thread.name] = int(waited_ns) / 1e9
    return waits
