"""OpenCL drivers: their devices and limits, memory, kernels, and recorded commands.

Only one thread at a time may call NVIDIA's driver. `lock_of` returns the lock for these calls, and
`Owner` releases objects while it holds this lock.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyopencl as cl

from gossamer.device.base import Buffer, Device, Kernel
from gossamer.device.checks import check_view
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource

_SURE_WORK_GROUP_SIZE = 256
"""Number of work-items per work-group that OpenCL drivers allow for every kernel of gossamer."""

_NVIDIA_CALLS = threading.RLock()
"""The lock for calls of NVIDIA's driver.

The driver crashes if several threads of a process call it concurrently, even for different devices.
"""


def handles() -> list[cl.Device]:
    """Return every OpenCL device of this machine.

    GPUs come first, then other hardware, then Oclgrind.
    """
    def rank(device: cl.Device) -> int:
        if is_simulator(device):
            return 2
        return 0 if is_gpu(device) else 1

    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:
        return []
    return sorted(devices, key=rank)


def drivers() -> list[str]:
    """Return the names of all installed OpenCL drivers, with or without devices."""
    try:
        return [platform.name.strip() for platform in cl.get_platforms()]
    except cl.Error:
        return []


def lock_of(handle: cl.Device) -> AbstractContextManager[Any]:
    """Return the lock to hold during each call of a device's driver.

    For drivers that support concurrent calls, the result is a context manager that does nothing.
    """
    return _NVIDIA_CALLS if "NVIDIA" in handle.platform.name else nullcontext()


def is_simulator(handle: cl.Device) -> bool:
    """Return whether a device is Oclgrind, which simulates kernels to find faults."""
    return handle.platform.name.strip() == "Oclgrind"


def is_gpu(handle: cl.Device) -> bool:
    """Return whether a device is a GPU; only GPUs are selected by default."""
    return bool(handle.type & cl.device_type.GPU) and not is_simulator(handle)


def describe(handle: cl.Device) -> str:
    """Return the names of a device and its driver."""
    return f"{handle.name.strip()} ({handle.platform.name.strip()})"


def limits_of(handle: cl.Device) -> Limits:
    """Return the limits of a device."""
    extensions = handle.extensions.split()
    subgroup = 1
    if "cl_nv_device_attribute_query" in extensions:
        subgroup = handle.warp_size_nv
    elif "cl_amd_device_attribute_query" in extensions:
        subgroup = handle.wavefront_width_amd
    return Limits(
        compute_units=handle.max_compute_units,
        memory_bytes=handle.global_mem_size,
        shared_bytes=handle.local_mem_size,
        shared_bytes_opt_in=handle.local_mem_size,
        work_group_size=handle.max_work_group_size,
        subgroup_size=subgroup,
        sure_work_group_size=min(_SURE_WORK_GROUP_SIZE, handle.max_work_group_size),
        cache_bytes=handle.global_mem_cache_size,
        graph=True,
        float64=bool(handle.double_fp_config),
    )


class Owner:
    """The owner of some driver objects; it releases them while it holds the driver's lock.

    The owner holds the only references to the driver objects, because the driver releases an object
    when the last reference is dropped.

    calls: the lock for calls of the driver.
    """

    def __init__(self, objects: list[Any], calls: AbstractContextManager[Any]) -> None:
        self.objects = objects
        self._calls = calls

    def __del__(self) -> None:
        with self._calls:
            self.objects.clear()


class OpenCLMemory:
    """An allocation and its sub-buffers.

    Sub-buffers are released only with the allocation, latest first. If two sub-buffers overlap and
    the older one is released first, NVIDIA's driver accesses freed memory. The process then crashes
    sooner or later.

    calls: the lock for calls of the driver.
    """

    def __init__(self, whole: cl.Buffer, calls: AbstractContextManager[Any]) -> None:
        self._whole = whole
        self._calls = calls
        self._parts: dict[int, cl.Buffer] = {}
        self._lock = threading.Lock()

    def starting_at(self, offset: int) -> cl.Buffer:
        """Return the sub-buffer from an offset to the end of the allocation.

        All buffers with the same offset share this sub-buffer.
        """
        if offset == 0:
            return self._whole
        with self._calls, self._lock:
            if offset not in self._parts:
                self._parts[offset] = self._whole.get_sub_region(offset, self._whole.size - offset)
            return self._parts[offset]

    def __del__(self) -> None:
        # release explicitly: other references may keep the Python objects alive
        with self._calls:
            while self._parts:
                self._parts.popitem()[1].release()
            self._whole.release()


class OpenCLBuffer(Buffer):
    """An OpenCL memory object, or a region of one."""

    device: Device

    def __init__(self, device: Device, memory: OpenCLMemory, offset: int, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.offset = offset
        self._memory = memory

    @property
    def handle(self) -> cl.Buffer:
        """The OpenCL memory object that begins at this buffer's first byte.

        The memory object may be longer than the buffer.
        """
        # OpenCL does not allow a sub-buffer that begins at the end of the allocation
        return self._memory.starting_at(self.offset if self.nbytes else 0)

    def view(self, offset: int, nbytes: int) -> OpenCLBuffer:
        check_view(self, offset, nbytes)
        return OpenCLBuffer(self.device, self._memory, self.offset + offset, nbytes)


class OpenCLKernel(Kernel):
    """One kernel function of a built program.

    Every thread uses its own kernel object, because setting arguments is not thread-safe in OpenCL.
    """

    def __init__(self, source: KernelSource, program: cl.Program, device: cl.Device,
                 calls: AbstractContextManager[Any]) -> None:
        self.name = source.function
        self.source = source
        self._program = program
        self._calls = calls
        self._per_thread = threading.local()
        info, kernel = cl.kernel_work_group_info, self.create()
        # a kernel may require a larger work-group than the maximum reported by the driver
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
        """Return a new kernel object, whose arguments are independent of others."""
        return cl.Kernel(self._program, self.name)


Command = Callable[[cl.CommandQueue], cl.Event | None]
"""A function that queues one command and returns its event, if any."""


def _enqueue_function() -> Callable[..., int] | None:
    """Return clEnqueueNDRangeKernel of the library that PyOpenCL is linked with.

    The result is None if the function cannot be found.
    """
    try:
        return ctypes.CDLL(cl._cl.__file__).clEnqueueNDRangeKernel
    except (OSError, AttributeError):
        return None


ENQUEUE = _enqueue_function()
"""OpenCL's function that queues a kernel.

Unlike PyOpenCL's wrapper, this function need not create an event.
"""


class LaunchError(Exception):
    """A driver failed to queue a kernel."""


class LaunchWithoutEvent:
    """A command that launches a kernel without creating an event.

    kernel: a kernel object whose arguments no longer change.
    global_size, local_size: work-items of the launch and of a work-group in each dimension.
    """

    def __init__(self, kernel: cl.Kernel, global_size: Sequence[int],
                 local_size: Sequence[int]) -> None:
        assert ENQUEUE is not None
        self._enqueue = ENQUEUE
        # keep the kernel object alive: the arguments below contain only its pointer
        self._kernel = kernel
        sizes = ctypes.c_size_t * len(global_size)
        self._arguments = (ctypes.c_void_p(kernel.int_ptr), ctypes.c_uint(len(global_size)), None,
                           sizes(*global_size), sizes(*local_size), ctypes.c_uint(0), None, None)
        self._latest: tuple[cl.CommandQueue | None, Callable[[], int]] = (None, int)

    def __call__(self, queue: cl.CommandQueue) -> None:
        """Queue the launch. Raises LaunchError if the driver rejects it."""
        latest = self._latest
        if latest[0] is not queue:
            latest = self._latest = (queue, functools.partial(
                self._enqueue, ctypes.c_void_p(queue.int_ptr), *self._arguments))
        status = latest[1]()
        if status:
            # drivers may define status codes unknown to PyOpenCL
            name = cl.status_code.to_string(status, "status %d")  # type: ignore[operator]
            raise LaunchError(f"clEnqueueNDRangeKernel: {name}")


class OpenCLGraph:
    """Recorded commands; calling the graph queues all of them again.

    A replay does not set kernel arguments: this would take most of the time of a launch.
    """

    def __init__(self, replay: Callable[[Sequence[tuple[str, Command]], Any], None],
                 commands: Owner, buffers: Sequence[Buffer], stream: Any, repeats: int) -> None:
        self._replay = replay
        self._commands = commands
        # keep the buffers alive: a kernel object does not own the memory of its arguments
        self._buffers = buffers
        self._stream = stream
        self._repeats = repeats

    def __call__(self, stream: Any = None) -> None:
        """Queue the commands on a stream; None means the stream of the recording."""
        self._replay(self._commands.objects * self._repeats, stream or self._stream)
