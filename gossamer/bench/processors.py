"""Measurement of cache line transfers between the processors of contenders."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from gossamer.device.affinity import allowed, bound

FAR_NS = 80.0
"""Result of `transfer_ns` above which a notice says that transfers are slow.

Measured results were 20 ns between processors with a shared cache, and 120 ns between processors
with separate caches that a hypervisor reported as one shared cache.
"""
_SYSTEM = Path("/sys/devices/system/cpu")
_LINES = 256
"""Number of cache lines read per measurement."""
_LINE_BYTES = 128
"""Distance between the bytes that are read, so that each is in a separate cache line."""
_ORDER = random.Random(0).sample(range(0, _LINES * _LINE_BYTES, _LINE_BYTES), _LINES)
"""Offsets of the bytes to read, in random order to defeat hardware prefetchers."""
_REPEATS = 3
"""Number of measurements per pair of processors; the minimum counts."""


def sharing_cache(processor: int) -> set[int]:
    """Return the processors that share the last-level cache, including this one.

    The set is empty if the operating system does not report caches.
    """
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
    """Return the nanoseconds of a cache line transfer between processors.

    Let P be the first processor that this thread may use. P reads lines that another processor has
    written; the time to read lines that P itself has written is subtracted. The other processors
    are those that this thread may use and that share a cache with P. The result is the maximum over
    these processors, or 0 if there are none.
    """
    first, *others = allowed() or [0]
    others = sorted(sharing_cache(first).intersection(others))
    if not others:
        return 0.0
    own, *times = (min(_read_ns(writer, first) for _ in range(_REPEATS))
                   for writer in (first, *others))
    return max(0.0, max(times) - own)


def far_notice(transfers: Sequence[float]) -> str:
    """Return a notice if the median of transfers is slow, else "".

    transfers: the results of transfer_ns() for one case.
    """
    if not transfers or (median := statistics.median(transfers)) <= FAR_NS:
        return ""
    return (f"a cache line takes {median:.0f} ns between processors that share a cache, more than "
            f"{FAR_NS:.0f}: a hypervisor may temporarily run them on distant cores, which slows "
            "down contenders with several threads; measure again later")


def _read_ns(writer: int, reader: int) -> float:
    """Return the mean nanoseconds that `reader` needs to read a byte that `writer` wrote."""
    data = memoryview(bytearray(_LINES * _LINE_BYTES))
    with bound([writer]):
        for offset in _ORDER:
            data[offset] = 1
    with bound([reader]):
        started = time.perf_counter_ns()
        for offset in _ORDER:
            data[offset]
        return (time.perf_counter_ns() - started) / _LINES
