"""Captured graphs of all steps of a program for arrays in the memory of its device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from gossamer import debug
from gossamer.device.base import Buffer, CopyingGraph, Device
from gossamer.plan.program import Program
from gossamer.plan.run.buffers import ProgramBuffers

_MOST_FOREIGN = 8
"""Number of captured graphs that are stored for inputs in the memory of other libraries."""
_VECTOR_BYTES = 16
"""Alignment in bytes that kernels require of their inputs, because they load four floats at once.
Arrays of other libraries may have a smaller alignment."""
_MOST_COPIED_BYTES = 2**31 - 1
"""Bytes of the largest output that one copy within a graph can copy."""


class DeviceGraphs:
    """The graphs of one program, by the addresses of the inputs that they read.

    queue: queues all steps on a stream.
    """

    def __init__(self, program: Program, device: Device, buffers: ProgramBuffers,
                 queue: Callable[[Any], None]) -> None:
        self._program = program
        self._device = device
        self._buffers = buffers
        self._queue = queue
        self._known: OrderedDict[tuple[int, ...], CopyingGraph | None] = OrderedDict()

    @cached_property
    def are_possible(self) -> bool:
        """Whether the steps can be captured: the device has graphs, and no step runs on the
        host."""
        return self._device.limits.graph and not self._program.host_steps(self._device)

    def known(self, addresses: tuple[int, ...]) -> CopyingGraph | None:
        """Return the graph that reads inputs at these addresses; None where no such graph was
        captured yet."""
        return self._known.get(addresses)

    def of(self, inputs: Mapping[str, Buffer], *, is_loaded: bool) -> CopyingGraph | None:
        """Return a graph that reads these inputs in place and copies the outputs; None where no
        such graph is captured. The graph is captured when inputs at the same addresses come a
        second time.

        is_loaded: whether all kernels are loaded; no graph can be captured before they are.
        """
        if not self._copies_outputs or debug.level() >= 2:
            return None
        key = tuple(buffer.address for buffer in inputs.values())
        if any(address % _VECTOR_BYTES for address in key):
            return None
        if key in self._known:
            self._known.move_to_end(key)
            if self._known[key] is None and is_loaded:
                self._known[key] = self._copying(inputs)
        else:
            self._known[key] = None
            while len(self._known) > _MOST_FOREIGN:
                self._known.popitem(last=False)
        return self._known[key]

    def in_place(self, inputs: Mapping[str, Buffer],
                 outputs: Mapping[str, Buffer]) -> Callable[..., None]:
        """Return a graph of all steps. The graph reads inputs and writes outputs in place where
        their memory is aligned and, for an output, where no other value shares its memory. The
        graph copies all other inputs and outputs."""
        program, own = self._program, self._buffers
        callers: dict[str, Buffer] = {}
        read: list[tuple[Buffer, Buffer, int]] = []
        written: list[tuple[Buffer, Buffer, int]] = []
        for name, value in program.inputs.items():
            if inputs[name].address % _VECTOR_BYTES:
                read.append((own.of(value), inputs[name], program.specs[value].nbytes))
            else:
                callers[program.root(value)] = inputs[name]
        # Outputs in this set are copied. No step writes an output that is an input or a constant.
        # An output that is a part of a larger value, or that has parts, shares memory with other
        # values, so that the output cannot lie in the caller's array.
        shared = {program.root(value) for value in (
            *program.inputs.values(), *program.constants, *program.places,
            *(place.whole for place in program.places.values()))}
        for name in outputs:
            value = program.outputs[name]
            root = program.root(value)
            if root in shared or root in callers or outputs[name].address % _VECTOR_BYTES:
                written.append((outputs[name], callers.get(root) or own.of(value),
                                program.specs[value].nbytes))
            else:
                callers[root] = outputs[name]

        def work(stream: Any) -> None:
            for target, source, nbytes in read:
                self._device.copy(target, source, nbytes, stream)
            self._queue(stream)
            for target, source, nbytes in written:
                self._device.copy(target, source, nbytes, stream)

        with own.replaced(callers):
            return self._device.capture(work)

    def _copying(self, inputs: Mapping[str, Buffer]) -> CopyingGraph:
        """Return a graph of all steps that reads these inputs in place, and copies the outputs."""
        program = self._program
        # the caller owns the memory, and passes it again with every call
        callers = {program.root(value): self._device.wrap(inputs[name].address,
                                                         inputs[name].nbytes, None)
                   for name, value in program.inputs.items()}
        with self._buffers.replaced(callers):
            return self._device.capture_copying(self._queue, [
                (self._buffers.of(value), program.specs[value].nbytes)
                for value in program.outputs.values()])

    @cached_property
    def _copies_outputs(self) -> bool:
        """Whether graphs can be captured that read inputs in place and copy all outputs. An output
        that is an input would be copied from memory that the caller may have freed meanwhile."""
        program = self._program
        inputs = {program.root(value) for value in program.inputs.values()}
        return self.are_possible and all(
            0 < program.specs[value].nbytes <= _MOST_COPIED_BYTES
            and program.place(value).whole not in inputs
            for value in program.outputs.values())
