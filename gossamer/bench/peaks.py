"""A device's peak rates, measured: what the speed of light is reckoned from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device, KernelSource
from gossamer.measure import measure

GROUP_SIZE = 256
CHAINS, STEPS = 8, 16
_SOURCE = KernelSource.of(Path(__file__).with_suffix(".cl"), "multiply_add")
_MATRIX = 1536


@dataclass(frozen=True)
class Peaks:
    """float32 operations a second (a multiply-add counts as two), and bytes a second of a copy,
    read plus written."""

    flops: float
    bandwidth: float

    def speed_of_light_us(self, flops: int, nbytes: int) -> float:
        """The microseconds below which no algorithm can compute and move so much here."""
        return max(flops / self.flops, nbytes / self.bandwidth) * 1e6


def measure_peaks(device: Device) -> Peaks:
    """By a copy far larger than the caches, and by multiply-adds in registers (on the host by
    NumPy's matrix product)."""
    nbytes = max(64 << 20, 16 * device.limits.cache_bytes)
    nbytes = min(nbytes, 1 << 30, device.limits.memory_bytes // 8) // 1024 * 1024
    source = device.upload(np.ones(nbytes, np.uint8), "the measurement of the copy rate")
    target = device.empty(nbytes, "the measurement of the copy rate")

    def copy(stream: Any) -> None:
        device.copy(target, source, nbytes, stream)

    flops, compute = _host_product() if not device.compiles else _multiply_adds(device)
    copied, computed = measure(device, [copy, compute], repeats=10, sample_us=2000.0)
    return Peaks(flops / (computed.p25_us * 1e-6), 2 * nbytes / (copied.p25_us * 1e-6))


def multiply_add(device: Device, result: Buffer, groups: int, rounds: int, stream: Any = None, *,
                 factor: float = 0.5, term: float = 1.0) -> int:
    """Fills `result`, one float32 a work-item; the operations that took."""
    device.launch(device.compile(_SOURCE), (groups,), (GROUP_SIZE,),
                  (result, factor, term, rounds), stream=stream)
    return 2 * groups * GROUP_SIZE * CHAINS * STEPS * rounds


def _multiply_adds(device: Device) -> tuple[int, Any]:
    groups, rounds = 32 * device.limits.units, 64
    result = device.empty(4 * groups * GROUP_SIZE, "the measurement of the arithmetic rate")

    def compute(stream: Any) -> None:
        multiply_add(device, result, groups, rounds, stream)

    return multiply_add(device, result, groups, rounds), compute


def _host_product() -> tuple[int, Any]:
    a = np.ones((_MATRIX, _MATRIX), np.float32)
    result = np.empty_like(a)

    def compute(stream: Any) -> None:
        np.matmul(a, a, out=result)

    return 2 * _MATRIX**3, compute
