"""PoCL as a device with captured graphs, and as a device that works later than it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyopencl as cl

from gossamer.device.base import Argument, Buffer, Kernel
from gossamer.device.opencl import OpenCLBuffer, OpenCLDevice
from gossamer.device.opencl_driver import Command
from tests.device.helpers import PageLocked


class Addressed(Buffer):
    """A buffer that stands for memory of another library at an address."""

    address = 0

    def __init__(self, device: GraphDevice, address: int, array: np.ndarray) -> None:
        self.device = device
        self.address = address
        self.memory = device.upload(array, "a foreign array")
        self.nbytes = array.nbytes
        device.addresses[address] = self

    def view(self, offset: int, nbytes: int) -> Buffer:
        raise AssertionError("foreign memory is taken as a whole")


class GraphDevice(OpenCLDevice):
    """PoCL as a device that captures graphs, and counts captures, copies and waits."""

    def __init__(self, pocl: OpenCLDevice) -> None:
        super().__init__(pocl.handle, 0)
        # a processor's cache may be so large that filling it takes gigabytes
        self.limits = replace(self.limits, graph=True, cache_bytes=2**20)
        self.addresses: dict[int, Addressed] = {}
        self.captures = 0
        self.copies: list[int] = []
        self.waits: list[tuple[Any, Any]] = []
        self._tape: list[Callable[[Any], None]] | None = None

    @property
    def on_processors(self) -> bool:
        return False

    def launch(self, kernel: Kernel, groups: Sequence[int], work_group_size: Sequence[int],
               arguments: Sequence[Argument], *, shared_bytes: int = 0,
               stream: Any = None) -> None:
        cl_arguments = [_memory(a) if isinstance(a, Buffer) else a for a in arguments]

        def run(stream: Any) -> None:
            super(GraphDevice, self).launch(kernel, groups, work_group_size, cl_arguments,
                                            shared_bytes=shared_bytes, stream=_queue(stream))

        self._run(run, stream)

    def copy(self, target: Buffer, source: Buffer, nbytes: int, stream: Any = None) -> None:
        def run(stream: Any) -> None:
            self.copies.append(nbytes)
            super(GraphDevice, self).copy(_memory(target), _memory(source), nbytes)

        self._run(run, stream)

    def _run(self, work: Callable[[Any], None], stream: Any) -> None:
        if self._tape is None:
            work(stream)
        else:
            self._tape.append(work)

    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        self._outside_of_captures()
        super().write(_memory(buffer), array)

    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        self._outside_of_captures()
        super().read(_memory(buffer), array)

    def synchronize(self, stream: Any = None) -> None:
        self._outside_of_captures()
        super().synchronize(_queue(stream))

    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        self._outside_of_captures()
        return super().time(work)

    def wait(self, waiting: Any, awaited: Any) -> None:
        self.waits.append((waiting, awaited))

    def wrap(self, address: int, nbytes: int, owner: object) -> Buffer:
        return self.addresses[address]

    def capture(self, work: Callable[[Any], None], stream: Any = None,
                repeats: int = 1) -> Callable[..., None]:
        self._outside_of_captures()
        self.captures += 1
        self._tape = tape = []
        try:
            work("a stream that records")
        finally:
            self._tape = None

        def replay(stream: Any = None) -> None:
            self._outside_of_captures()
            for launch in tape * repeats:
                launch(stream)

        return replay

    def _outside_of_captures(self) -> None:
        assert self._tape is None, "not allowed while a graph is recorded"


def _queue(stream: Any) -> cl.CommandQueue | None:
    """Returns a stream of the device; None for one that only stands for a stream in a test."""
    return stream if isinstance(stream, cl.CommandQueue) else None


def _memory(buffer: Buffer) -> OpenCLBuffer:
    memory = buffer.memory if isinstance(buffer, Addressed) else buffer
    assert isinstance(memory, OpenCLBuffer)
    return memory


class LaterDevice(PageLocked, OpenCLDevice):
    """PoCL with page-locked memory. What is written later is copied when the stream next has other
    work or is waited for, and what is read later when it is waited for."""

    def __init__(self, pocl: OpenCLDevice) -> None:
        super().__init__(pocl.handle, 0)
        self.locked = []
        self._pending: dict[int, list[Callable[[], None]]] = {}

    @property
    def on_processors(self) -> bool:
        return False

    def queue_write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        assert self.is_page_locked(array), "the driver would wait for a copy of other memory"
        self._later(stream, lambda: OpenCLDevice.write(self, buffer, array, stream))

    def queue_read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        assert self.is_page_locked(array), "the driver would wait for a copy of other memory"
        self._later(stream, lambda: OpenCLDevice.read(self, buffer, array, stream))

    def capture(self, work: Callable[[Any], None], stream: Any = None,
                repeats: int = 1) -> Callable[..., None]:
        """Returns the work itself, as OpenCL records no copies of the host's memory."""
        return lambda stream=None: work(stream)

    def replay(self, commands: Sequence[tuple[str, Command]], stream: Any) -> None:
        self._copy_now(stream)
        super().replay(commands, stream)

    def synchronize(self, stream: Any = None) -> None:
        self._copy_now(stream)
        super().synchronize(stream)

    def _later(self, stream: Any, copy: Callable[[], None]) -> None:
        self._pending.setdefault(id(stream), []).append(copy)

    def _copy_now(self, stream: Any) -> None:
        for copy in self._pending.pop(id(stream), []):
            copy()
