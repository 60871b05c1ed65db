"""The memory that one execution of a program reads and writes.

Values that are never alive together share memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.plan.program import Program


@dataclass(frozen=True)
class Lifetime:
    """The size of a value in bytes, and the first and the last step at which it is alive."""

    nbytes: int
    first: int
    last: int


def place(values: Mapping[str, Lifetime], alignment: int) -> tuple[dict[str, int], int]:
    """Return the byte offset of every value in one arena, and the arena's size in bytes.

    Values are placed one by one, the largest first; of values of the same size, the value whose
    life begins first comes first. Each value is placed in the lowest gap that is large enough. Gaps
    are left by the values that are already placed and are alive at the same time as this value.
    """
    order = sorted(values, key=lambda name: (-values[name].nbytes, values[name].first, name))
    # first step, last step, start and end of each placed value, in the order of the starts; float64
    # is exact up to 2**53 bytes, which no device has
    placed = np.zeros((4, 0))
    offsets: dict[str, int] = {}
    total = 0
    for name in order:
        value = values[name]
        firsts, lasts, starts, ends = placed
        alive = (firsts <= value.last) & (lasts >= value.first)
        gaps = np.append(0, np.maximum.accumulate(ends[alive]))
        fits = gaps[:-1] + value.nbytes <= starts[alive]
        offset = offsets[name] = int(gaps[np.argmax(fits) if fits.any() else -1])
        end = offset + value.nbytes
        total = max(total, end)
        placed = np.insert(placed, np.searchsorted(starts, offset), (
            value.first, value.last, offset, -(-end // alignment) * alignment), axis=1)
    return offsets, total


class ProgramBuffers:
    """The buffers of a program's values, its uploaded constants and its workspace.

    name: the network's name, for the message of a device with too little memory.
    """

    def __init__(self, name: str, program: Program, device: Device) -> None:
        self._program = program
        lifetimes = _lifetimes(program)
        offsets, total = place(lifetimes, device.alignment)
        arena = device.empty(max(total, device.alignment),
                             f"activations of {name} at batch {program.batch}")
        self.activation_bytes = total
        self.workspace_bytes = max((step.variant.workspace for step in program.steps
                                    if step.device is device), default=0)
        self.workspace: Buffer | None = None
        if self.workspace_bytes:
            self.workspace = device.empty(self.workspace_bytes,
                                          f"workspace of {name} at batch {program.batch}")
        self._activations = {value: arena.view(offset, lifetimes[value].nbytes)
                             for value, offset in offsets.items()}
        for value in program.places:
            where = program.place(value)
            self._activations[value] = self._activations[where.whole].view(
                where.offset, program.specs[value].nbytes)
        self._constants = {value: device.upload(array, f"constant {value!r}")
                           for value, array in program.constants.items()}

    @property
    def constant_bytes(self) -> int:
        """Bytes of the uploaded constants."""
        return sum(buffer.nbytes for buffer in self._constants.values())

    def of(self, value: str) -> Buffer:
        """Return the memory of a value."""
        root = self._program.root(value)
        return self._constants[root] if root in self._constants else self._activations[root]

    @contextmanager
    def replaced(self, buffers: Mapping[str, Buffer]) -> Iterator[None]:
        """Within a `with` block, gives some values other buffers. buffers: the other buffers, by
        the names of the values."""
        own = self._activations
        self._activations = {**own, **{self._program.root(value): buffer
                                       for value, buffer in buffers.items()}}
        try:
            yield
        finally:
            self._activations = own


def _lifetimes(program: Program) -> dict[str, Lifetime]:
    """Return the lifetime of every value that has memory of its own among the activations. Where a
    value A owns the memory in which a value B lies, a use of B counts as a use of A. Inputs and
    outputs are alive until after the last step, so that an execution can be repeated."""
    owners = {value: program.place(value).whole for value in (
        *program.inputs.values(), *program.outputs.values(),
        *(value for step in program.steps for value in (*step.inputs, *step.outputs)))}
    first: dict[str, int] = {owners[value]: -1 for value in program.inputs.values()}
    last = dict(first)
    for index, step in enumerate(program.steps):
        for value in step.outputs:
            first.setdefault(owners[value], index)
        for value in (*step.inputs, *step.outputs):
            last[owners[value]] = index
    for value in (*program.inputs.values(), *program.outputs.values()):
        last[owners[value]] = len(program.steps)
    return {value: Lifetime(max(program.specs[value].nbytes, 1), start, last[value])
            for value, start in first.items()}
