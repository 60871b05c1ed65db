"""The device memory that all candidates on a device share while they are checked and timed."""

from __future__ import annotations

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.ops.algorithm import Variant
from gossamer.plan.tune.check import GUARD
from gossamer.plan.tune.device_check import DeviceCheck, checks_in_memory
from gossamer.plan.tune.examples import Examples
from gossamer.tensor import TensorSpec

_FILLED_AT_ONCE = 2**24
"""Bytes of an output that are filled with the guard byte at once."""


class CandidateMemory:
    """Inputs, outputs and the workspace of candidates on one device.

    Candidates run one after another, so all candidates write to the same memory. This memory is
    replaced where a candidate needs more; candidates that were prepared before keep the old memory.

    examples: the inputs.
    on_device: the kernels that check candidates in the device's memory; None where the device
    shares its memory with the host, which then checks the candidates.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.on_device = DeviceCheck(device) if checks_in_memory(device) else None
        self.examples = Examples(device)
        self._buffers: dict[tuple[str, int], Buffer] = {}

    def _buffer(self, purpose: str, nbytes: int, index: int = 0) -> Buffer:
        """Returns memory of at least `nbytes` bytes that all candidates share. Smaller memory is
        freed first, unless a candidate that was prepared before still needs it."""
        key = purpose, index
        if key not in self._buffers or self._buffers[key].nbytes < nbytes:
            self._buffers.pop(key, None)
            self._buffers[key] = self.examples.with_room(
                lambda: self.device.empty(nbytes, purpose))
        return self._buffers[key]

    def guarded(self, index: int, spec: TensorSpec) -> Buffer:
        """Returns memory for output `index` between two guards, each at least as long as the
        device's alignment. All bytes have the value of the guard byte."""
        device = self.device
        nbytes = (-(-spec.nbytes // device.alignment) + 2) * device.alignment
        memory = self._buffer("a candidate's output", nbytes, index).view(0, nbytes)
        if self.on_device is not None:
            self.on_device.fill_with_guards(memory)
            return memory
        guards = np.full(min(nbytes, _FILLED_AT_ONCE), GUARD, np.uint8)
        for first in range(0, nbytes, _FILLED_AT_ONCE):
            part = min(_FILLED_AT_ONCE, nbytes - first)
            device.write(memory.view(first, part), guards[:part])
        return memory

    def workspace_of(self, variant: Variant) -> Buffer | None:
        """Returns the workspace of a variant; None where the variant needs no workspace."""
        return (self._buffer("a candidate's workspace", variant.workspace) if variant.workspace
                else None)

    def fill_cache(self) -> None:
        """Fills the device's cache with other data than a candidate's."""
        nbytes = 2 * self.device.limits.cache_bytes
        source, target = (self._buffer("what fills the cache", nbytes, index) for index in (0, 1))
        self.device.copy(target, source, nbytes)

    def release(self) -> None:
        """Frees the memory, so that whole programs can use all memory of the device."""
        self.examples.forget()
        self._buffers.clear()
