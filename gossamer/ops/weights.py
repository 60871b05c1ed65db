"""A layer's constants, what is known of them, and their packed forms on a device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.ops import lru_cache


@dataclass(frozen=True)
class WeightsInfo:
    """What an algorithm may know of the weights when it is chosen."""

    density: float = 1.0
    pattern: str = ""
    """Hash of which weights are nonzero; empty when none is zero."""


Pack = Callable[[Mapping[str, np.ndarray]], np.ndarray | Buffer]
"""A layer's constants in a form of their own: an array, or memory of the device."""


@dataclass(frozen=True)
class Packed:
    """A packed form of constants on the device, and the seconds that making it took."""

    buffer: Buffer
    seconds: float


def build_clock(device: Device) -> float:
    """Seconds by which building is timed: of this thread's own work where several build side by
    side and wait for one another, else as they pass."""
    return time.thread_time() if device.builds_side_by_side else time.perf_counter()


class Weights:
    """A layer's constants, and their packed forms on one device, made once and shared by every
    batch size."""

    def __init__(self, arrays: Mapping[str, np.ndarray], device: Device, layer: str = "") -> None:
        self.arrays = dict(arrays)
        self.layer = layer
        self._device = device
        self._packed: dict[str, Packed] = {}
        self._lock = threading.Lock()

    def packed(self, key: str, pack: Pack) -> Buffer:
        """The device memory of pack(arrays), made at the first call with this key."""
        return self.form(key, pack).buffer

    def form(self, key: str, pack: Pack) -> Packed:
        """As packed(), with what it took when it was made."""
        with self._lock:
            if key not in self._packed:
                start = build_clock(self._device)
                made = pack(self.arrays)
                buffer = made if isinstance(made, Buffer) else self._device.upload(
                    np.ascontiguousarray(made), f"weights of {self.layer}")
                self._packed[key] = Packed(buffer, build_clock(self._device) - start)
            return self._packed[key]

    @cached_property
    def digest(self) -> str:
        """Of the constants; see lru_cache.digest."""
        return lru_cache.digest(self.arrays)

    @property
    def nbytes(self) -> int:
        return sum(packed.buffer.nbytes for packed in self._packed.values())
