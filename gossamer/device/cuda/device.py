"""NVIDIA devices, through the CUDA driver API."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

from gossamer.device import kernel_cache
from gossamer.device.base import Argument, Buffer, Kernel
from gossamer.device.checks import check_copy, check_transfer, out_of_memory
from gossamer.device.cuda import dlpack, memory, nvjitlink, nvrtc
from gossamer.device.cuda.driver import (
    Current,
    DriverDevice,
    DriverError,
    check,
    count,
    device_error,
    driver_version,
    limits_of,
)
from gossamer.device.cuda.graph import CudaCopyingGraph, CudaGraph, Recorder
from gossamer.device.cuda.kernel import CudaKernel, check_fit, early_launch
from gossamer.device.cuda.memory import Allocation, CudaBuffer, MemoryPool, StreamAllocation
from gossamer.device.cuda.ptx import PtxProgram
from gossamer.device.cuda.streams import CudaStream, EventPair
from gossamer.device.other_libraries import DeviceArray
from gossamer.device.source import KernelSource
from gossamer.errors import CompilerEndedError, DeviceError, InputError, OutOfMemoryError, kind_of
from gossamer.io.process_pool import NoProcessError, ProcessEndedError
from gossamer.tensor import TensorSpec

__all__ = ["CudaBuffer", "CudaDevice", "CudaGraph", "CudaKernel", "CudaStream", "count"]

_HERE = 3
"""Maximum number of kernels that this process compiles concurrently, in addition to `compilers`.

A rule of thumb: within one process, NVRTC parses only one kernel at a time. Parsing takes about 20
of the 150 milliseconds of a compilation. If there were many threads, most of them would wait.
"""


class CudaDevice(DriverDevice):
    """An NVIDIA GPU, used through its primary context, which torch, cupy and jax use, too.

    A stream is a CudaStream, an object with `__cuda_stream__`, a torch or cupy stream, or the
    integer handle of a stream. None means a stream that belongs to the device.
    """

    api = "cuda"

    def __init__(self, index: int) -> None:
        self.index = index
        try:
            device = check(driver.cuDeviceGet(index))
            name = check(driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
            self._current = Current(check(driver.cuDevicePrimaryCtxRetain(device)))
            self.limits, capability = limits_of(device)
        except DriverError as error:
            raise DeviceError(f"cuda:{index} cannot be opened: {error}") from None
        self.architecture = "sm_{}{}".format(*capability)
        self._launches_early = capability >= (9, 0)
        self._chip = name
        self.description = f"{name} ({self.architecture})"
        self.driver = driver_version()
        self._kernels: dict[KernelSource, Future[CudaKernel]] = {}
        self._here = threading.Semaphore(_HERE)
        self._recorder = Recorder(self)
        self._of_thread = threading.local()
        self._pool = MemoryPool(self)
        self._stream = CudaStream(self)

    def current(self) -> Current:
        return self._current

    def stream_handle(self, stream: Any) -> int:
        if stream is None:
            return self._stream.handle
        if isinstance(stream, CudaStream):
            return stream.handle
        if isinstance(stream, int):
            return stream
        if hasattr(stream, "__cuda_stream__"):
            protocol = stream.__cuda_stream__
            return int((protocol() if callable(protocol) else protocol)[1])
        for attribute in ("cuda_stream", "ptr"):
            if hasattr(stream, attribute):
                return int(getattr(stream, attribute))
        raise InputError(f"expected a CUDA stream of torch, cupy or cuda.core, or its integer "
                         f"handle, got {kind_of(stream)}")

    @property
    def chip(self) -> str:
        return self._chip

    @property
    def builds_side_by_side(self) -> bool:
        return True

    @property
    def toolkit(self) -> str:
        return f"NVRTC {nvrtc.version()}"

    @property
    def assembles_ptx(self) -> bool:
        return True

    @property
    def compiles_in_processes(self) -> bool:
        return True

    @property
    def runs_cuda_libraries(self) -> bool:
        return True

    def compile(self, source: KernelSource) -> CudaKernel:
        future: Future[CudaKernel] = Future()
        kernel = self._kernels.setdefault(source, future)
        if kernel is future:
            try:
                future.set_result(self._load(source))
            except BaseException as error:
                # threads waiting for the kernel raise the same error; later calls retry
                future.set_exception(error)
                del self._kernels[source]
        return kernel.result()

    def assemble(self, name: str, key: Sequence[str],
                 generate: Callable[[], PtxProgram]) -> CudaKernel:
        """Return the kernel of a program, from the disk cache if possible.

        If the cache lacks the kernel, one of the `compilers` generates and assembles the program.
        """
        def build() -> bytes:
            return bytes(self._elsewhere(nvjitlink.assembled, generate, self.architecture,
                                         what="assembled generated code"))

        return self._loaded(nvjitlink.key(key, self.architecture), build,
                            KernelSource(Path(f"{name}.ptx"), name))

    def _load(self, source: KernelSource) -> CudaKernel:
        architecture = source.built_for(self.architecture)
        return self._loaded(nvrtc.key(source, architecture),
                            lambda: self._compiled(source, architecture), source)

    def _compiled(self, source: KernelSource, architecture: str) -> bytes:
        """Return the cubin of a kernel.

        While all `compilers` are busy, this process itself compiles a few kernels.
        """
        pool = self.compilers
        if pool is not None and not pool.has_idle and self._here.acquire(blocking=False):
            try:
                return nvrtc.compile_cubin(source, architecture)[0]
            finally:
                self._here.release()
        return bytes(self._elsewhere(
            nvrtc.compile_cubin, source, architecture,
            what=f"compiled {source.function} of {source.path.name}")[0])

    def _elsewhere(self, function: Callable[..., Any], *arguments: Any, what: str) -> Any:
        """Call a function in one of the `compilers`, or else in this process.

        what: description of the work for error messages.
        Raises CompilerEndedError if the compiler process ended.
        """
        if self.compilers is not None:
            try:
                return self.compilers.submit(function, *arguments, what=what).result()
            except ProcessEndedError as ended:
                raise CompilerEndedError(ended) from None
            except (NoProcessError, CancelledError):
                pass
        return function(*arguments)

    def _loaded(self, key: Sequence[str], build: Callable[[], bytes],
                source: KernelSource) -> CudaKernel:
        """Return the kernel whose cubin is an entry of the kernel cache.

        `build` creates the cubin if it is missing or cannot be loaded.
        """
        def loaded() -> CudaKernel:
            cubin, from_cache = kernel_cache.cached(key, build)
            kernel = CudaKernel(source, cubin, self)
            kernel.from_cache = from_cache
            return kernel

        try:
            return loaded()
        except DriverError:
            # the entry is intact but cannot be loaded
            kernel_cache.forget(key)
        try:
            return loaded()
        except DriverError as error:
            raise device_error(f"{self.name} cannot load {source.function} of "
                               f"{source.path.name}", error) from None

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> CudaBuffer:
        with self.current():
            if stream is None:
                status, pointer = driver.cuMemAlloc(max(nbytes, 1))
            else:
                status, pointer = driver.cuMemAllocFromPoolAsync(
                    max(nbytes, 1), self._pool.handle, self.stream_handle(stream))
            if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                free = driver.cuMemGetInfo()[1]
                raise out_of_memory(self, nbytes, purpose, int(free))
        self.checked(f"allocating {nbytes} bytes ({purpose})", (status,))
        address = int(pointer)
        owner = (Allocation(self, address) if stream is None
                 else StreamAllocation(self, address, stream))
        return CudaBuffer(self, address, nbytes, owner)

    def wrap(self, address: int, nbytes: int, owner: object) -> CudaBuffer:
        return CudaBuffer(self, address, nbytes, owner)

    def holds(self, array: Any) -> bool:
        return dlpack.cuda_index(array) is not None

    def incoming(self, array: Any, stream: Any = None, *, name: str = "the input",
                 dtype: np.typing.DTypeLike | None = None) -> dlpack.CudaArray:
        return dlpack.incoming(array, self, stream, name=name, dtype=dtype)

    def empty_array(self, spec: TensorSpec, purpose: str, stream: Any = None) -> dlpack.CudaArray:
        return self.array_in(self.empty(spec.nbytes, purpose, stream), spec, stream)

    def array_in(self, buffer: Buffer, spec: TensorSpec, stream: Any = None) -> dlpack.CudaArray:
        assert isinstance(buffer, CudaBuffer)
        return dlpack.CudaArray(buffer, spec.shape, spec.stored_dtype, stream)

    def like(self, array: Any, result: DeviceArray) -> Any:
        assert isinstance(result, dlpack.CudaArray)
        return dlpack.like(array, result)

    def upload(self, array: np.ndarray, purpose: str) -> CudaBuffer:
        buffer = self.empty(array.nbytes, purpose)
        self.write(buffer, np.ascontiguousarray(array))
        return buffer

    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        self.queue_write(buffer, array, stream)
        # queue_write returns before a copy from page-locked memory is complete
        self.synchronize(stream)

    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        self.queue_read(buffer, array, stream)
        self.synchronize(stream)

    @property
    def locks_pages(self) -> bool:
        return True

    def page_locked(self, nbytes: int) -> np.ndarray:
        try:
            return memory.page_locked(self, nbytes)
        except DriverError as error:
            raise OutOfMemoryError(f"{self.name} cannot lock {nbytes} bytes of host memory: "
                                   f"{error}") from None

    def is_page_locked(self, array: np.ndarray) -> bool:
        return memory.is_page_locked(array)

    def lock_pages(self, array: np.ndarray) -> None:
        try:
            memory.lock_pages(self, array)
        except DriverError as error:
            raise OutOfMemoryError(f"{self.name} cannot lock {array.nbytes} bytes of host memory: "
                                   f"{error}") from None

    @property
    def needs_own_process(self) -> bool:
        # only in the default compute mode can several processes use the device
        mode = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
        device = self.checked("reading its compute mode", driver.cuDeviceGet(self.index))
        return self.checked("reading its compute mode", driver.cuDeviceGetAttribute(
            mode, device)) == driver.CUcomputemode.CU_COMPUTEMODE_DEFAULT

    def queue_write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        if array.nbytes:
            self.call("writing memory", driver.cuMemcpyHtoDAsync, _pointer(buffer),
                       array.ctypes.data, array.nbytes, self.stream_handle(stream))

    def queue_read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        if array.nbytes:
            self.call("reading memory", driver.cuMemcpyDtoHAsync, array.ctypes.data,
                       _pointer(buffer), array.nbytes, self.stream_handle(stream))

    def copy(self, target: Buffer, source: Buffer, nbytes: int, stream: Any = None) -> None:
        check_copy(target, source, nbytes)
        if nbytes:
            self.keep(target, source)
            with self.current():
                self.checked("copying memory", driver.cuMemcpyDtoDAsync(
                    _pointer(target), _pointer(source), nbytes, self.stream_handle(stream)))

    def launch(self, kernel: Kernel, groups: Sequence[int], work_group_size: Sequence[int],
               arguments: Sequence[Argument], *, shared_bytes: int = 0,
               stream: Any = None) -> None:
        assert isinstance(kernel, CudaKernel)
        if 0 in groups:
            return
        try:
            parameters = kernel.packed(arguments)
        except struct.error as error:
            raise DeviceError(f"{self.name} failed launching {kernel.name}: {error}") from None
        gx, gy, gz = (*groups, 1, 1)[:3]
        bx, by, bz = (*work_group_size, 1, 1)[:3]
        check_fit(self, kernel, (gx, gy, gz), bx * by * bz)
        self.keep(kernel, arguments)
        with self.current():
            try:
                kernel.allow_dynamic(shared_bytes)
                if self._launches_early and kernel.begins_early:
                    self._recorder.note_early_begin()
                    config = early_launch((gx, gy, gz), (bx, by, bz), shared_bytes,
                                          self.stream_handle(stream))
                    check(driver.cuLaunchKernelEx(config, kernel.function, parameters, 0))
                    return
                check(driver.cuLaunchKernel(
                    kernel.function, gx, gy, gz, bx, by, bz, shared_bytes,
                    self.stream_handle(stream), parameters, 0))
            except DriverError as error:
                raise device_error(f"{self.name} failed launching {kernel.name}", error) from None

    def synchronize(self, stream: Any = None) -> None:
        self.call("running kernels", driver.cuStreamSynchronize, self.stream_handle(stream))

    def is_idle(self, stream: Any) -> bool:
        if self.is_closed(stream):
            return False
        with self.current():
            status = driver.cuStreamQuery(self.stream_handle(stream))[0]
        return bool(status != driver.CUresult.CUDA_ERROR_NOT_READY)

    def is_closed(self, stream: Any) -> bool:
        # the driver has no call that is safe with the handle of a destroyed stream
        return bool(getattr(stream, "is_closed", False))

    def create_stream(self) -> CudaStream:
        return CudaStream(self)

    def wait(self, waiting: Any, awaited: Any) -> None:
        if self.is_closed(awaited):
            # a closed stream's work may still run, but the stream's handle is invalid: wait for all
            # work of the context
            self.call("running kernels", driver.cuCtxSynchronize)
            return
        first, second = self.stream_handle(waiting), self.stream_handle(awaited)
        if first == second:
            return
        with self.current():
            event = self.checked("ordering streams", driver.cuEventCreate(
                driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
            try:
                self.checked("ordering streams", driver.cuEventRecord(event, second))
                self.checked("ordering streams", driver.cuStreamWaitEvent(first, event, 0))
            finally:
                driver.cuEventDestroy(event)

    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        stream = self._stream if stream is None else stream
        handle = self.stream_handle(stream)
        with self.current():
            pair = self._event_pair()
            self.checked("timing", driver.cuEventRecord(pair.events[0], handle))
            work(stream)
            self.checked("timing", driver.cuEventRecord(pair.events[1], handle))
            return pair.elapsed_us()

    def _event_pair(self) -> EventPair:
        """Return the event pair of the calling thread."""
        pair: EventPair | None = getattr(self._of_thread, "events", None)
        if pair is None:
            pair = self._of_thread.events = EventPair(self)
        return pair

    def capture(self, work: Callable[[Any], None], stream: Any = None,
                repeats: int = 1) -> CudaGraph:
        """Record work as a graph that keeps the work's buffers and kernels alive.

        `work` is called with a stream that belongs to the calling thread.
        """
        return self._recorder.graph(work, stream, repeats)

    def capture_copying(self, work: Callable[[Any], None],
                        copies: Sequence[tuple[Buffer, int]]) -> CudaCopyingGraph:
        return self._recorder.copying_graph(work, copies)

    def replayed(self, graph: Callable[..., None], stream: Any) -> Callable[[], None]:
        assert isinstance(graph, CudaGraph)
        return graph.on(stream)

    def timed_graph(self, work: Callable[[Any], None], repeats: int, *,
                    as_in_plan: bool = False) -> Callable[[], float]:
        """Return a function that replays a graph enclosed by two timing events."""
        with self.current():
            pair = EventPair(self)
        graph = self._recorder.graph(work, self._stream, repeats, pair.events,
                                     as_in_plan=as_in_plan)

        def timed() -> float:
            with self.current():
                graph.launch()
                return pair.elapsed_us()

        return timed

    def keep(self, *objects: Any) -> None:
        self._recorder.keep(*objects)


def _pointer(buffer: Buffer) -> int:
    assert isinstance(buffer, CudaBuffer)
    return buffer.address
