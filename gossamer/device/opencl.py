"""OpenCL devices through PyOpenCL: GPUs, CPUs and simulators with OpenCL 1.2.

OpenCL and PyOpenCL call shared memory "local memory": LocalMemory, LOCAL_MEM_SIZE.
"""

from __future__ import annotations

import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyopencl as cl

from gossamer.device.base import Argument, Buffer, Device, Kernel
from gossamer.device.checks import check_copy, check_transfer, out_of_memory
from gossamer.device.opencl_driver import (
    ENQUEUE,
    Command,
    LaunchError,
    LaunchWithoutEvent,
    OpenCLBuffer,
    OpenCLGraph,
    OpenCLKernel,
    OpenCLMemory,
    Owner,
    describe,
    is_gpu,
    is_simulator,
    limits_of,
    lock_of,
)
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError, DeviceError

_MEMORY_STATUS = {
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_HOST_MEMORY,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.INVALID_BUFFER_SIZE,
}

_QUEUED_US = 7.0
"""Microseconds that NVIDIA's driver needs to queue a kernel without an event.

Measured: 6.5 to 7.1 on the host of an H200. On slower or faster hosts, the expected times of short
kernels are wrong by the difference.
"""
_WAITS = 10
"""Number of times that the wait for an empty stream is measured; the minimum is used.

A rule of thumb.
"""
_LEAST_SHARE = 0.1
"""Lower limit of a corrected time, as a fraction of the wall-clock time.

The correction subtracts the wait for an empty stream. The limit is a rule of thumb.
"""

_REFUSED = (cl.Error, OverflowError, TypeError, LaunchError)
"""Errors that PyOpenCL or a driver raises for a command or its arguments."""


class OpenCLDevice(Device):
    """One OpenCL device with its own context. A stream is an in-order command queue."""

    api = "opencl"

    def __init__(self, handle: cl.Device, index: int) -> None:
        self.index = index
        self.handle = handle
        self.description = describe(handle)
        self.driver = f"{handle.platform.version} {handle.driver_version}".strip()
        self.alignment = max(handle.mem_base_addr_align // 8, 64)
        self.limits = limits_of(handle)
        self._calls = lock_of(handle)
        self._is_gpu = is_gpu(handle)
        with self._calls:
            self._context = cl.Context([handle])
            self._queue = self.create_stream()
            self._timing_queue = self.create_stream() if self._is_gpu else cl.CommandQueue(
                self._context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self._kernels: dict[KernelSource, OpenCLKernel] = {}
        self._timed = threading.local()
        self._recording = threading.local()
        self._options = ["-cl-std=CL1.2"]
        exact_division = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        if handle.single_fp_config & exact_division:
            self._options.append("-cl-fp32-correctly-rounded-divide-sqrt")
        if self.is_simulator:
            # Oclgrind computes vector comparisons wrongly; only optimised code contains them
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

    @property
    def queued_us(self) -> float:
        return _QUEUED_US if self._is_gpu else 0.0

    def compile(self, source: KernelSource) -> OpenCLKernel:
        kernel = self._kernels.get(source)
        if kernel is None:
            # without the lock, two threads could build the same kernel; the redundant kernel would
            # then be released by a thread that does not hold the lock
            with self._calls:
                kernel = self._kernels.get(source) or self._kernels.setdefault(
                    source, self._build(source))
        return kernel

    def _build(self, source: KernelSource) -> OpenCLKernel:
        text = source.text()
        with self._calls, warnings.catch_warnings():
            # PyOpenCL turns build logs into warnings, and some drivers write a log for every build
            warnings.simplefilter("ignore", cl.CompilerWarning)
            try:
                return self._built(source, text)
            except cl.Error as error:
                # the frames of the traceback refer to the program: clear them here, so that the
                # program is released while the lock is held
                traceback.clear_frames(error.__traceback__)
                problem = str(error)
        raise CompileError(f"{self.name} cannot build {source.function} of {source.path.name}: "
                           f"{problem}")

    def _built(self, source: KernelSource, text: str) -> OpenCLKernel:
        """Build the kernel of a source from its text.

        Raises cl.Error if the driver cannot build it.
        """
        program = cl.Program(self._context, text)
        # drivers cache builds themselves; PyOpenCL's cache fails if the home folder is read-only
        program.build(self._options, cache_dir=False)  # type: ignore[arg-type]
        return OpenCLKernel(source, program, self.handle, self._calls)

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> OpenCLBuffer:
        try:
            with self._calls:
                memory = OpenCLMemory(cl.Buffer(
                    self._context, cl.mem_flags.READ_WRITE, max(nbytes, 1)), self._calls)
                # force the allocation: by default drivers allocate at the first use, where an error
                # message could not name the purpose
                cl.enqueue_migrate_mem_objects(
                    self._queue, [memory.starting_at(0)],
                    cl.mem_migration_flags.CONTENT_UNDEFINED).wait()
        except (cl.Error, MemoryError) as error:
            if isinstance(error, MemoryError) or error.code in _MEMORY_STATUS:
                raise out_of_memory(self, nbytes, purpose) from None
            raise self._failed("allocating memory", error) from None
        return OpenCLBuffer(self, memory, 0, nbytes)

    def upload(self, array: np.ndarray, purpose: str) -> OpenCLBuffer:
        buffer = self.empty(array.nbytes, purpose)
        self.write(buffer, np.ascontiguousarray(array))
        return buffer

    def queue(self, stream: Any) -> cl.CommandQueue:
        """Return the queue of a stream, for libraries that add commands to it."""
        return stream or self._queue

    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        if array.nbytes:
            self._enqueue_now("writing memory", lambda queue: cl.enqueue_copy(
                queue, _handle(buffer), array, is_blocking=True), stream)

    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        if array.nbytes:
            self._enqueue_now("reading memory", lambda queue: cl.enqueue_copy(
                queue, array, _handle(buffer), is_blocking=True), stream)

    def copy(self, target: Buffer, source: Buffer, nbytes: int, stream: Any = None) -> None:
        check_copy(target, source, nbytes)
        if nbytes:
            self._enqueue("copying memory", lambda queue: cl.enqueue_copy(
                queue, _handle(target), _handle(source), byte_count=nbytes), stream,
                (target, source))

    def launch(self, kernel: Kernel, groups: Sequence[int], work_group_size: Sequence[int],
               arguments: Sequence[Argument], *, shared_bytes: int = 0,
               stream: Any = None) -> None:
        assert isinstance(kernel, OpenCLKernel)
        if 0 in groups:
            return
        self._check_fit(kernel, work_group_size, shared_bytes)
        global_size = tuple(g * s for g, s in zip(groups, work_group_size, strict=True))
        local_size = tuple(work_group_size)
        what = f"launching {kernel.name}"
        try:
            with self._calls:
                handle = kernel.create() if self._is_recording else kernel.handle
                values = [_value(argument) for argument in arguments]
                if kernel.source.dynamic_shared:
                    values.append(cl.LocalMemory(max(shared_bytes, 1)))
                handle.set_args(*values)
        except _REFUSED as error:
            raise self._failed(what, error) from None
        self._enqueue(what, self._launch_command(handle, global_size, local_size), stream,
                      [argument for argument in arguments if isinstance(argument, Buffer)])

    def _launch_command(self, kernel: cl.Kernel, global_size: tuple[int, ...],
                        local_size: tuple[int, ...]) -> Command:
        """Return a command that launches a kernel with its current arguments.

        On GPUs, the launches recorded for plans create no events: NVIDIA's driver takes 1.5 times
        as long to queue a launch with an event.
        """
        if self._is_recording and self._is_gpu and ENQUEUE is not None:
            return LaunchWithoutEvent(kernel, global_size, local_size)
        return lambda queue: cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)

    def _check_fit(self, kernel: OpenCLKernel, work_group_size: Sequence[int],
                   shared_bytes: int) -> None:
        size = 1
        for length in work_group_size:
            size *= length
        if size > kernel.work_group_size:
            raise DeviceError(f"{self.name} runs {kernel.name} with at most "
                              f"{kernel.work_group_size} work-items per work-group, "
                              f"got {size}")
        needed = kernel.shared_bytes + shared_bytes
        if needed > self.limits.shared_bytes:
            raise DeviceError(f"{kernel.name} needs {needed} bytes of shared memory, "
                              f"but {self.name} has {self.limits.shared_bytes}")

    def synchronize(self, stream: Any = None) -> None:
        try:
            with self._calls:
                (stream or self._queue).finish()
        except cl.Error as error:
            raise self._failed("waiting for kernels", error) from None

    def create_stream(self) -> cl.CommandQueue:
        with self._calls:
            return cl.CommandQueue(self._context)

    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        """Return the time of some work in microseconds.

        On GPUs the time is measured by the host's clock, on other devices by events. GPUs run short
        kernels faster than drivers queue them: the time of a short kernel is the time that it takes
        to queue the kernel. Events need a stream with profiling. On such a stream, NVIDIA's driver
        takes twice as long to queue a kernel as on a stream of a plan. On a GPU, events would
        therefore measure longer times than kernels take in a plan.
        """
        self.synchronize(stream)
        return (self._time_by_clock if self._is_gpu else self._time_by_events)(work)

    def _time_by_clock(self, work: Callable[[Any], None]) -> float:
        queue = self._timing_queue
        # hold the lock throughout, so that the time includes no wait for a build in another thread
        with self._calls:
            waiting_us = self._waiting_us
            start = time.perf_counter()
            work(queue)
            self.synchronize(queue)
            elapsed_us = 1e6 * (time.perf_counter() - start)
        return max(elapsed_us - waiting_us, _LEAST_SHARE * elapsed_us)

    @cached_property
    def _waiting_us(self) -> float:
        """Microseconds that a wait for an empty stream takes."""
        def once() -> float:
            markers = Owner([], self._calls)
            start = time.perf_counter()
            self._mark(self._timing_queue, markers)
            self.synchronize(self._timing_queue)
            return 1e6 * (time.perf_counter() - start)

        return min(once() for _ in range(_WAITS))

    def _time_by_events(self, work: Callable[[Any], None]) -> float:
        """Return the time between the first and the last command of the work.

        If another library queues the commands, their events are unknown; the time is then measured
        between markers before and after the work.
        """
        queue = self._timing_queue
        events, markers = Owner([], self._calls), Owner([], self._calls)
        self._mark(queue, markers)
        self._timed.events = events.objects
        try:
            work(queue)
        finally:
            self._timed.events = None
        self._mark(queue, markers)
        self.synchronize(queue)
        with self._calls:
            if events.objects:
                return (max(event.profile.end for event in events.objects)
                        - min(event.profile.start for event in events.objects)) / 1000
            before, after = (event.profile.end for event in markers.objects)
            return (after - before) / 1000

    def _mark(self, queue: cl.CommandQueue, markers: Owner) -> None:
        """Queue a marker, and add its event to `markers`.

        The marker completes when all earlier commands are complete.
        """
        try:
            with self._calls:
                markers.objects.append(cl.enqueue_marker(queue))
        except cl.Error as error:
            raise self._failed("timing", error) from None

    def capture(self, work: Callable[[Any], None], stream: Any = None,
                repeats: int = 1) -> OpenCLGraph:
        """Record the launches and copies of work(stream).

        Each recorded launch has a kernel object of its own, which keeps the launch's arguments.
        """
        commands: list[tuple[str, Command]] = []
        buffers: list[Buffer] = []
        self._recording.commands, self._recording.buffers = commands, buffers
        try:
            work(stream)
        finally:
            self._recording.commands = self._recording.buffers = None
        return OpenCLGraph(self.replay, Owner(commands, self._calls), buffers, stream, repeats)

    def replay(self, commands: Sequence[tuple[str, Command]], stream: Any) -> None:
        """Queue recorded commands.

        While the calling thread times the stream, the events of the first and the last command are
        kept.
        """
        last = len(commands) - 1
        timed = (0, last) if self._is_timed(stream) else ()
        queue = stream or self._queue
        with self._calls:
            for index, (what, command) in enumerate(commands):
                try:
                    event = command(queue)
                except _REFUSED as error:
                    raise self._failed(what, error) from None
                if index in timed:
                    self._timed.events.append(event)
                # an event that is not kept must be released while the lock is held
                del event

    @property
    def _is_recording(self) -> bool:
        """Whether the calling thread is recording a graph."""
        return getattr(self._recording, "commands", None) is not None

    def _is_timed(self, stream: Any) -> bool:
        """Return whether the calling thread is timing a stream."""
        return stream is self._timing_queue and getattr(self._timed, "events", None) is not None

    def _enqueue(self, what: str, command: Command, stream: Any,
                 buffers: Sequence[Buffer]) -> None:
        """Queue a command that uses some buffers, or record it."""
        if self._is_recording:
            self._recording.commands.append((what, command))
            self._recording.buffers.extend(buffers)
        else:
            self.replay([(what, command)], stream)

    def _enqueue_now(self, what: str, command: Command, stream: Any) -> None:
        """Queue a copy between host and device.

        Raises DeviceError while a graph is being recorded, because the host memory may be freed
        before the graph is replayed.
        """
        if self._is_recording:
            raise DeviceError(f"{self.name} failed {what}: a graph can record only launches and "
                              "copies within the device")
        self.replay([(what, command)], stream)

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
