"""OpenCL devices, through PyOpenCL: any GPU, CPU or simulator with an OpenCL 1.2 driver.

OpenCL calls shared memory "local memory": its names in that API contain LOCAL.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from gossamer.device.base import Argument, Buffer, Device, Kernel
from gossamer.device.checks import check_transfer, check_view, out_of_memory
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError, DeviceError

_MEMORY_STATUS = {
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_HOST_MEMORY,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.INVALID_BUFFER_SIZE,
}

_SURE_WORK_GROUP_SIZE = 256
"""Work-items in a work-group that OpenCL drivers allow every kernel of this package."""


class OpenCLBuffer(Buffer):
    """An OpenCL memory object, or a region of one."""

    device: OpenCLDevice

    def __init__(self, device: OpenCLDevice, root: cl.Buffer, offset: int, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.root = root
        self.offset = offset
        # a sub-buffer has no sub-buffers in OpenCL, and cannot be empty
        is_root = (offset == 0 and nbytes == root.size) or nbytes == 0
        self.handle: cl.Buffer = root if is_root else root.get_sub_region(offset, nbytes)

    def view(self, offset: int, nbytes: int) -> OpenCLBuffer:
        check_view(self, offset, nbytes)
        return OpenCLBuffer(self.device, self.root, self.offset + offset, nbytes)


class OpenCLKernel(Kernel):
    """One kernel function of a built program. Setting arguments is not thread-safe in OpenCL,
    so every thread has its own kernel object."""

    def __init__(self, source: KernelSource, program: cl.Program, device: cl.Device) -> None:
        self.name = source.function
        self.source = source
        self._program = program
        self._per_thread = threading.local()
        info = cl.kernel_work_group_info
        self.work_group_size = self.handle.get_work_group_info(info.WORK_GROUP_SIZE, device)
        self.shared_bytes = self.handle.get_work_group_info(info.LOCAL_MEM_SIZE, device)

    @property
    def handle(self) -> cl.Kernel:
        """The kernel object of the calling thread."""
        try:
            return self._per_thread.kernel
        except AttributeError:
            self._per_thread.kernel = cl.Kernel(self._program, self.name)
            return self._per_thread.kernel


class OpenCLDevice(Device):
    """One OpenCL device with its own context. A stream is an in-order command queue."""

    api = "opencl"

    def __init__(self, handle: cl.Device, index: int) -> None:
        self.index = index
        self.handle = handle
        self.description = describe(handle)
        self.driver = f"{handle.platform.version} {handle.driver_version}".strip()
        self.alignment = max(handle.mem_base_addr_align // 8, 64)
        self.limits = _limits(handle)
        self._context = cl.Context([handle])
        self._queue = self.create_stream()
        self._kernels: dict[KernelSource, OpenCLKernel] = {}
        self._timed = threading.local()
        self._options = ["-cl-std=CL1.2"]
        exact_division = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        if handle.single_fp_config & exact_division:
            self._options.append("-cl-fp32-correctly-rounded-divide-sqrt")
        if self.is_simulator:
            # Oclgrind computes vectors of comparisons wrongly, which only optimised code contains
            self._options.append("-cl-opt-disable")

    @property
    def chip(self) -> str:
        return self.handle.name.strip()

    @property
    def on_processors(self) -> bool:
        return bool(self.handle.type & cl.device_type.CPU)

    @property
    def is_simulator(self) -> bool:
        return is_simulator(self.handle)

    def compile(self, source: KernelSource) -> OpenCLKernel:
        kernel = self._kernels.get(source)
        if kernel is None:
            kernel = self._kernels.setdefault(source, self._build(source))
        return kernel

    def _build(self, source: KernelSource) -> OpenCLKernel:
        program = cl.Program(self._context, source.text())
        try:
            with warnings.catch_warnings():
                # some drivers write a log for every build
                warnings.simplefilter("ignore", cl.CompilerWarning)
                # drivers cache builds themselves; PyOpenCL's cache fails in a read-only home
                program.build(self._options, cache_dir=False)  # type: ignore[arg-type]
            return OpenCLKernel(source, program, self.handle)
        except cl.Error as error:
            raise CompileError(f"{self.name} cannot build {source.function} of "
                               f"{source.path.name}: {error}") from None

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> OpenCLBuffer:
        try:
            root = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, max(nbytes, 1))
            # drivers delay the allocation until the first use, where its purpose is unknown
            cl.enqueue_migrate_mem_objects(
                self._queue, [root], cl.mem_migration_flags.CONTENT_UNDEFINED).wait()
        except (cl.Error, MemoryError) as error:
            if isinstance(error, MemoryError) or error.code in _MEMORY_STATUS:
                raise out_of_memory(self, nbytes, purpose) from None
            raise self._failed("allocating memory", error) from None
        return OpenCLBuffer(self, root, 0, nbytes)

    def upload(self, array: np.ndarray, purpose: str) -> OpenCLBuffer:
        buffer = self.empty(array.nbytes, purpose)
        self.write(buffer, np.ascontiguousarray(array))
        return buffer

    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        if array.nbytes:
            self._enqueue("writing memory", lambda: cl.enqueue_copy(
                stream or self._queue, _handle(buffer), array, is_blocking=True))

    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        if array.nbytes:
            self._enqueue("reading memory", lambda: cl.enqueue_copy(
                stream or self._queue, array, _handle(buffer), is_blocking=True))

    def copy(self, target: Buffer, source: Buffer, nbytes: int, stream: Any = None) -> None:
        if nbytes:
            self._enqueue("copying memory", lambda: cl.enqueue_copy(
                stream or self._queue, _handle(target), _handle(source), byte_count=nbytes))

    def launch(self, kernel: Kernel, groups: Sequence[int], work_group_size: Sequence[int],
               arguments: Sequence[Argument], *, shared_bytes: int = 0,
               stream: Any = None) -> None:
        assert isinstance(kernel, OpenCLKernel)
        if 0 in groups:
            return
        self._check_fit(kernel, work_group_size, shared_bytes)
        global_size = tuple(g * s for g, s in zip(groups, work_group_size, strict=True))

        def enqueue() -> cl.Event:
            values = [_value(argument) for argument in arguments]
            if kernel.source.dynamic_shared:
                values.append(cl.LocalMemory(max(shared_bytes, 1)))
            handle = kernel.handle
            handle.set_args(*values)
            return cl.enqueue_nd_range_kernel(
                stream or self._queue, handle, global_size, tuple(work_group_size))

        self._enqueue(f"launching {kernel.name}", enqueue)

    def _check_fit(self, kernel: OpenCLKernel, work_group_size: Sequence[int],
                   shared_bytes: int) -> None:
        size = 1
        for length in work_group_size:
            size *= length
        if size > kernel.work_group_size:
            raise DeviceError(f"{self.name} runs {kernel.name} with at most "
                              f"{kernel.work_group_size} work-items in a work-group, "
                              f"asked for {size}")
        needed = kernel.shared_bytes + shared_bytes
        if needed > self.limits.shared_bytes:
            raise DeviceError(f"{kernel.name} needs {needed} bytes of shared memory, "
                              f"{self.name} has {self.limits.shared_bytes}")

    def synchronize(self, stream: Any = None) -> None:
        try:
            (stream or self._queue).finish()
        except cl.Error as error:
            raise self._failed("waiting for kernels", error) from None

    def create_stream(self) -> cl.CommandQueue:
        return cl.CommandQueue(
            self._context, properties=cl.command_queue_properties.PROFILING_ENABLE)

    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        queue = stream or self._queue
        queue.finish()
        events: list[cl.Event] = []
        self._timed.events = events
        try:
            work(queue)
        finally:
            self._timed.events = None
        self.synchronize(queue)
        if not events:
            return 0.0
        start = min(event.profile.start for event in events)
        return (max(event.profile.end for event in events) - start) / 1000

    def _enqueue(self, what: str, command: Callable[[], cl.Event]) -> None:
        try:
            event = command()
        except (cl.Error, OverflowError, TypeError) as error:
            raise self._failed(what, error) from None
        events = getattr(self._timed, "events", None)
        if events is not None:
            events.append(event)

    def _failed(self, what: str, error: Exception) -> DeviceError:
        return DeviceError(f"{self.name} failed {what}: {error}")


def _handle(buffer: Buffer) -> cl.Buffer:
    assert isinstance(buffer, OpenCLBuffer)
    return buffer.handle


def _value(argument: Argument) -> Any:
    if isinstance(argument, OpenCLBuffer):
        return argument.handle
    if isinstance(argument, int):
        return np.int32(argument)
    if isinstance(argument, float) and not isinstance(argument, np.generic):
        return np.float32(argument)
    return argument


def handles() -> list[cl.Device]:
    """Returns every OpenCL device of this machine: GPUs first, then other hardware, Oclgrind
    last."""
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
    """Returns the names of all installed OpenCL drivers, including those without a device."""
    try:
        return [platform.name.strip() for platform in cl.get_platforms()]
    except cl.Error:
        return []


def is_simulator(handle: cl.Device) -> bool:
    """Returns whether a device is Oclgrind, which interprets kernels to find their faults."""
    return handle.platform.name.strip() == "Oclgrind"


def is_gpu(handle: cl.Device) -> bool:
    """Returns whether a device is a GPU; no other OpenCL device is selected by default."""
    return bool(handle.type & cl.device_type.GPU) and not is_simulator(handle)


def describe(handle: cl.Device) -> str:
    """Returns the name of a device and of its driver."""
    return f"{handle.name.strip()} ({handle.platform.name.strip()})"


def _limits(handle: cl.Device) -> Limits:
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
    )
