"""The memory that one execution of a program reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gossamer.device.base import Buffer, Device
from gossamer.plan.program import Program
from gossamer.plan.run.memory import Lifetime, place


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
        """Returns the memory of a value."""
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
    """Returns the lifetime of every value that has memory of its own among the activations. Where a
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
