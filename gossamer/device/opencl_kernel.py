"""Kernels of OpenCL devices, and recorded commands."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyopencl as cl

from gossamer.device.base import Buffer, Kernel
from gossamer.device.opencl_memory import Owner
from gossamer.device.source import KernelSource


class OpenCLKernel(Kernel):
    """One kernel function of a built program. Setting arguments is not thread-safe in OpenCL,
    so every thread has its own kernel object."""

    def __init__(self, source: KernelSource, program: cl.Program, device: cl.Device,
                 calls: AbstractContextManager[Any]) -> None:
        self.name = source.function
        self.source = source
        self._program = program
        self._calls = calls
        self._per_thread = threading.local()
        info, kernel = cl.kernel_work_group_info, self.create()
        # the size that a kernel's source requires may be larger than the size that drivers state
        required = kernel.get_work_group_info(info.COMPILE_WORK_GROUP_SIZE, device)
        self.work_group_size = max(
            kernel.get_work_group_info(info.WORK_GROUP_SIZE, device), math.prod(required))
        self.shared_bytes = kernel.get_work_group_info(info.LOCAL_MEM_SIZE, device)

    @property
    def handle(self) -> cl.Kernel:
        """The kernel object of the calling thread."""
        try:
            return self._per_thread.owner.objects[0]
        except AttributeError:
            self._per_thread.owner = owner = Owner([self.create()], self._calls)
            return owner.objects[0]

    def create(self) -> cl.Kernel:
        """Returns a kernel object with arguments of its own."""
        return cl.Kernel(self._program, self.name)


Command = Callable[[cl.CommandQueue], cl.Event | None]
"""A function that queues one command and returns its event, if it has one."""


def _enqueue_function() -> Callable[..., int] | None:
    """Returns clEnqueueNDRangeKernel of the library that PyOpenCL is linked with; None where the
    function cannot be found."""
    try:
        return ctypes.CDLL(cl._cl.__file__).clEnqueueNDRangeKernel
    except (OSError, AttributeError):
        return None


ENQUEUE = _enqueue_function()
"""OpenCL's function that queues a kernel. PyOpenCL's wrapper of it makes an event for each
launch."""


class LaunchError(Exception):
    """A driver refused to queue a kernel."""


class LaunchWithoutEvent:
    """A command that launches a kernel with its present arguments, and makes no event.

    kernel: a kernel object whose arguments are not changed any more.
    global_size, local_size: the work-items of the launch and of a work-group along each dimension.
    """

    def __init__(self, kernel: cl.Kernel, global_size: Sequence[int],
                 local_size: Sequence[int]) -> None:
        assert ENQUEUE is not None
        self._enqueue = ENQUEUE
        # keeps the kernel object alive: the arguments below hold only its pointer
        self._kernel = kernel
        sizes = ctypes.c_size_t * len(global_size)
        self._arguments = (ctypes.c_void_p(kernel.int_ptr), ctypes.c_uint(len(global_size)), None,
                           sizes(*global_size), sizes(*local_size), ctypes.c_uint(0), None, None)
        self._latest: tuple[cl.CommandQueue | None, Callable[[], int]] = (None, int)

    def __call__(self, queue: cl.CommandQueue) -> None:
        """Queues the launch. Raises LaunchError where the driver refuses it."""
        latest = self._latest
        if latest[0] is not queue:
            latest = self._latest = (queue, functools.partial(
                self._enqueue, ctypes.c_void_p(queue.int_ptr), *self._arguments))
        status = latest[1]()
        if status:
            # drivers have status numbers of their own, which PyOpenCL does not know
            name = cl.status_code.to_string(status, "status %d")  # type: ignore[operator]
            raise LaunchError(f"clEnqueueNDRangeKernel: {name}")


class OpenCLGraph:
    """Recorded commands, whose kernels have their arguments already. Calling the graph queues all
    commands again, in a small part of the time that setting the arguments would take."""

    def __init__(self, replay: Callable[[Sequence[tuple[str, Command]], Any], None],
                 commands: Owner, buffers: Sequence[Buffer], stream: Any, repeats: int) -> None:
        self._replay = replay
        self._commands = commands
        # a kernel object does not keep the memory of its arguments
        self._buffers = buffers
        self._stream = stream
        self._repeats = repeats

    def __call__(self, stream: Any = None) -> None:
        """Queues the commands on a stream; None means the stream for which they were recorded."""
        self._replay(self._commands.objects * self._repeats, stream or self._stream)
