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
        self._outputs: dict[int, Buffer] = {}
        self._workspace: Buffer | None = None
        self._cache_filler: tuple[Buffer, Buffer] | None = None

    def empty(self, nbytes: int, purpose: str) -> Buffer:
        """Returns new memory. Where too little memory is free, the inputs of layers are freed
        first."""
        return self.examples.with_room(lambda: self.device.empty(nbytes, purpose))

    def guarded(self, index: int, spec: TensorSpec) -> Buffer:
        """Returns memory for output `index` between two guards, each as long as the device's
        alignment. All bytes have the value of the guard byte."""
        device = self.device
        nbytes = spec.nbytes + 2 * device.alignment
        rounded = -(-nbytes // device.alignment) * device.alignment
        if index not in self._outputs or self._outputs[index].nbytes < rounded:
            self._outputs.pop(index, None)
            self._outputs[index] = self.empty(rounded, "a candidate's output")
        target = self._outputs[index].view(0, nbytes)
        if self.on_device is not None:
            self.on_device.fill_with_guards(self._outputs[index].view(0, rounded))
            return target
        guards = np.full(min(nbytes, _FILLED_AT_ONCE), GUARD, np.uint8)
        for first in range(0, nbytes, _FILLED_AT_ONCE):
            part = min(_FILLED_AT_ONCE, nbytes - first)
            device.write(target.view(first, part), guards[:part])
        return target

    def workspace_of(self, variant: Variant) -> Buffer | None:
        """Returns the workspace of a variant; None where the variant needs no workspace."""
        if variant.workspace and (self._workspace is None
                                  or self._workspace.nbytes < variant.workspace):
            # unless a candidate still needs it, the smaller workspace is freed first
            self._workspace = None
            self._workspace = self.empty(variant.workspace, "a candidate's workspace")
        return self._workspace if variant.workspace else None

    def fill_cache(self) -> None:
        """Fills the device's cache with other data than a candidate's."""
        nbytes = 2 * self.device.limits.cache_bytes
        if self._cache_filler is None:
            self._cache_filler = (self.empty(nbytes, "what fills the cache"),
                                  self.empty(nbytes, "what fills the cache"))
        self.device.copy(*self._cache_filler, nbytes)

    def release(self) -> None:
        """Frees the memory, so that whole programs can use all memory of the device."""
        self.examples.forget()
        self._outputs.clear()
        self._workspace = self._cache_filler = None
