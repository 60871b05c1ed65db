"""Measures the peak rates of a device: of multiply-adds in registers, and of copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gossamer.device.base import Device
from gossamer.device.limits import PeakRates
from gossamer.device.source import KernelSource, source_hash
from gossamer.errors import GossamerError
from gossamer.measure import Timing, Work, measure
from gossamer.plan.candidate import rounded
from gossamer.plan.store.tuning_cache import TuningCache

WORK_GROUP_SIZE = 256
CHAINS, STEPS, WIDE_CHAINS = 8, 16, 12
"""Numbers that rates.cl and rates_wide.cl define, too. In this order: the independent chains of
multiply-adds of a work-item in rates.cl, the unrolled steps in both files, and the chains of a
work-item in rates_wide.cl."""
SOURCE, WIDE_SOURCE = (KernelSource.of(Path(__file__).with_name(file), name) for file, name in (
    ("rates.cl", "multiply_add"), ("rates_wide.cl", "multiply_add_wide")))
"""Each kernel has a file of its own, so that a device compiles only the kernel that it uses."""
PURPOSE = "the measurement of the device's rates"
_REPEATS, _SAMPLE_US = 5, 1000.0
"""Number of samples, and microseconds of one sample."""
_CACHES, _LEAST_BYTES, _MOST_BYTES = 4, 2**25, 2**29
"""The copy reads _CACHES times the bytes of the cache, but at least _LEAST_BYTES and at most
_MOST_BYTES."""

_MULTIPLY_ADDS, _BYTES = 1e9, 1e9
"""The numbers of multiply-adds and of bytes whose times the tuning cache stores."""


def know_rates(device: Device, cache: TuningCache) -> None:
    """Set the rates of a device. The rates are read from the tuning cache, or else measured now,
    which takes a fraction of a second, and stored in the cache. Nothing is set for a device that
    compiles no kernels, for a simulator, and where measuring fails."""
    if not device.compiles or device.is_simulator:
        return
    keys = [f"rates {source_hash(__name__)} {work}" for work in ("multiply-adds", "copy")]
    stored = [cache.get_plan(key) for key in keys]
    computed, copied = stored
    if computed is None or copied is None:
        if device.rates is None:
            try:
                device.rates = _measured(device)
            except GossamerError:
                return
        times = (_MULTIPLY_ADDS / device.rates.multiply_adds, _BYTES / device.rates.nbytes)
        computed, copied = (rounded(Timing(time, time, time, _REPEATS)) for time in times)
        cache.put_plans({key: (text, timing) for key, text, timing in zip(
            keys, ("1e9 multiply-adds", "a copy that moves 1e9 bytes"), (computed, copied),
            strict=True)})
    device.rates = PeakRates(_MULTIPLY_ADDS / computed.median_us, _BYTES / copied.median_us)


def _measured(device: Device) -> PeakRates:
    """Measure the rates."""
    nbytes = min(max(_CACHES * device.limits.cache_bytes, _LEAST_BYTES), _MOST_BYTES,
                 device.limits.memory_bytes // 8) // 1024 * 1024
    source, target = (device.empty(nbytes, PURPOSE) for _ in range(2))
    flops, compute = multiply_adds(device)
    computed, copied = measure(
        device, [compute, lambda stream: device.copy(target, source, nbytes, stream)],
        repeats=_REPEATS, sample_us=_SAMPLE_US)
    return PeakRates(flops / 2 / max(computed.p25_us, 1e-3), 2 * nbytes / max(copied.p25_us, 1e-3))


def multiply_adds(device: Device) -> tuple[int, Work]:
    """Return the number of operations, and the work that does them in registers. Processors do
    them on vectors of 16 numbers."""
    source, items, lanes, chains, rounds = (
        (WIDE_SOURCE, 1, 16, WIDE_CHAINS, 1024) if device.on_processors
        else (SOURCE, WORK_GROUP_SIZE, 1, CHAINS, 64))
    groups, kernel = 32 * device.limits.compute_units, device.compile(source)
    result = device.empty(4 * groups * items * lanes, PURPOSE)

    def compute(stream: Any) -> None:
        device.launch(kernel, (groups,), (items,), (result, 0.5, 1.0, rounds), stream=stream)

    return 2 * groups * items * lanes * chains * STEPS * rounds, compute
