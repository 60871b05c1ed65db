"""Measures the time that a cache line takes to move between the processors on which contenders
run."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from gossamer.device.affinity import allowed, bound

FAR_NS = 80.0
"""Nanoseconds of `transfer_ns` above which a notice says that transfers are slow. `transfer_ns` was
20 between processors that share a cache, and 120 between processors whose two caches a hypervisor
showed as one cache."""
_SYSTEM = Path("/sys/devices/system/cpu")
_LINES = 256
"""Number of cache lines that are read to measure one time."""
_LINE_BYTES = 128
"""Distance between the bytes that are read, so that each byte lies in a cache line of its own."""
_ORDER = random.Random(0).sample(range(0, _LINES * _LINE_BYTES, _LINE_BYTES), _LINES)
"""Offsets of the bytes that are read, in a random order, which no hardware prefetcher predicts."""
_REPEATS = 3
"""Number of measurements of each pair of processors; the shortest time counts."""


def sharing_cache(processor: int) -> set[int]:
    """Return the processors that share this processor's last-level cache, itself included, as the
    operating system reports them; an empty set where the system reports none."""
    lists = {int((cache / "level").read_text()): (cache / "shared_cpu_list").read_text()
             for cache in (_SYSTEM / f"cpu{processor}" / "cache").glob("index*")
             if (cache / "shared_cpu_list").exists()}
    if not lists:
        return set()
    shared: set[int] = set()
    for span in lists[max(lists)].strip().split(","):
        first, _, last = span.partition("-")
        shared.update(range(int(first), int(last or first) + 1))
    return shared


def transfer_ns() -> float:
    """Return the nanoseconds that a cache line takes to move from another processor to the first
    one of those that this thread may use. Of the processors that share a cache with the first one,
    the slowest counts; the result is 0 where there are none.

    The first processor reads lines that the other processor has written. The time for lines that
    the first processor has written itself is subtracted.
    """
    first, *others = allowed() or [0]
    others = sorted(sharing_cache(first).intersection(others))
    if not others:
        return 0.0
    own, *times = (min(_read_ns(writer, first) for _ in range(_REPEATS))
                   for writer in (first, *others))
    return max(0.0, max(times) - own)


def far_notice(transfers: Sequence[float]) -> str:
    """Return a notice where the median of transfers between processors is slow; else "".
    transfers: the results of transfer_ns() for one case."""
    if not transfers or (median := statistics.median(transfers)) <= FAR_NS:
        return ""
    return (f"a cache line takes {median:.0f} ns between processors that share a cache, more than "
            f"{FAR_NS:.0f}: a hypervisor may run them far apart for a while, so that contenders "
            "with several threads are slower than in another run; measure again later")


def _read_ns(writer: int, reader: int) -> float:
    """Return the nanoseconds in which one processor reads a byte that another has written."""
    data = memoryview(bytearray(_LINES * _LINE_BYTES))
    with bound([writer]):
        for offset in _ORDER:
            data[offset] = 1
    with bound([reader]):
        started = time.perf_counter_ns()
        for offset in _ORDER:
            data[offset]
        return (time.perf_counter_ns() - started) / _LINES
