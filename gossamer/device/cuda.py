"""NVIDIA devices: kernels built by cuda.core, run through the CUDA driver API."""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver

from gossamer.device import kernel_cache, nvrtc
from gossamer.device.base import (
    Argument,
    Buffer,
    Device,
    Kernel,
    KernelSource,
    Limits,
    check_transfer,
    check_view,
    out_of_memory,
)
from gossamer.errors import DeviceError, InputError

_STATIC_LOCAL_BYTES = 48 * 1024
_LARGEST_GRID = (2**31 - 1, 65535, 65535)

_FORMATS: dict[type, str] = {
    type(None): "P", bool: "i", int: "i", float: "f",
    np.bool_: "?", np.int8: "b", np.uint8: "B", np.int16: "h", np.uint16: "H",
    np.int32: "i", np.uint32: "I", np.int64: "q", np.uint64: "Q",
    np.float16: "e", np.float32: "f", np.float64: "d",
}


class _DriverError(DeviceError):
    def __init__(self, code: driver.CUresult) -> None:
        self.code = code
        status, text = driver.cuGetErrorString(code)
        said = text.decode() if status == driver.CUresult.CUDA_SUCCESS else "unknown error"
        super().__init__(f"{code.name}: {said}")


def _check(result: tuple[Any, ...]) -> Any:
    """What a driver call returned beside its status. Raises _DriverError for a bad status."""
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise _DriverError(result[0])
    return result[1] if len(result) == 2 else result[1:]


class CudaStream:
    """A CUDA stream of our own, destroyed with this object."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        with device.current():
            self.handle = int(_check(
                driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))
        weakref.finalize(self, _quietly, device, driver.cuStreamDestroy, self.handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class CudaBuffer(Buffer):
    """Device memory at `handle`: owned, part of another buffer, or foreign with an owner that
    is kept alive."""

    device: CudaDevice

    def __init__(self, device: CudaDevice, handle: int, nbytes: int, owner: object) -> None:
        self.device = device
        self.handle = handle
        self.nbytes = nbytes
        self.owner = owner

    def view(self, offset: int, nbytes: int) -> CudaBuffer:
        check_view(self, offset, nbytes)
        return CudaBuffer(self.device, self.handle + offset, nbytes, self)

    def used_on(self, stream: Any) -> None:
        """Tells that the memory's last use is in this stream, whose order its release follows
        if it was allocated in a stream's order."""
        owner = self.owner
        while isinstance(owner, CudaBuffer):
            owner = owner.owner
        if isinstance(owner, _StreamAllocation):
            owner.last_use[0] = stream


_FORMATS[CudaBuffer] = "P"


class _Allocation:
    """Memory that is given back to the driver with this object."""

    def __init__(self, device: CudaDevice, handle: int) -> None:
        weakref.finalize(self, _quietly, device, driver.cuMemFree, handle)


class _StreamAllocation:
    """Memory of the device's pool, given back in the order of the stream that used it last."""

    def __init__(self, device: CudaDevice, handle: int, stream: Any) -> None:
        self.last_use = [stream]

        def release(last_use: list[Any]) -> None:
            _quietly(device, driver.cuMemFreeAsync, handle, device.stream_handle(last_use[0]))

        weakref.finalize(self, release, self.last_use)


class _Packer:
    """The parameter block of one kernel for one sequence of argument types. cuLaunchKernel
    copies the block, so one a thread serves every launch."""

    def __init__(self, kernel: CudaKernel, types: tuple[type, ...]) -> None:
        formats = []
        for index, kind in enumerate(types):
            if kind not in _FORMATS:
                raise DeviceError(f"argument {index} of {kernel.name} has type {kind.__name__}, "
                                  "which no kernel takes")
            formats.append(_FORMATS[kind])
        self._struct = struct.Struct("@" + "".join(formats))
        self._block = ctypes.create_string_buffer(max(self._struct.size, 1))
        base = ctypes.addressof(self._block)
        offsets = [struct.calcsize("@" + "".join(formats[:i + 1])) - struct.calcsize(f)
                   for i, f in enumerate(formats)]
        kernel.check_parameters([(offset, struct.calcsize(f))
                                 for offset, f in zip(offsets, formats, strict=True)])
        self._pointers = (ctypes.c_void_p * max(len(types), 1))(*[base + o for o in offsets])
        self.address = ctypes.addressof(self._pointers)

    def pack(self, arguments: Sequence[Argument]) -> None:
        self._struct.pack_into(self._block, 0, *[
            a.handle if isinstance(a, CudaBuffer) else 0 if a is None else a for a in arguments])


class CudaKernel(Kernel):
    """One kernel function of a loaded cubin."""

    def __init__(self, source: KernelSource, cubin: bytes, device: CudaDevice) -> None:
        self.name = source.function
        self.source = source
        self._device = device
        image = np.frombuffer(cubin, np.uint8)
        with device.current():
            self._module = _check(driver.cuModuleLoadData(image.ctypes.data))
            weakref.finalize(self, _quietly, device, driver.cuModuleUnload, self._module)
            self.function = _check(
                driver.cuModuleGetFunction(self._module, self.name.encode()))
        attribute = driver.CUfunction_attribute
        self.registers = self._attribute(attribute.CU_FUNC_ATTRIBUTE_NUM_REGS)
        self.spill_bytes = self._attribute(attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
        self.local_bytes = self._attribute(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        self.group_size = self._attribute(
            attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        self._dynamic_bytes = max(_STATIC_LOCAL_BYTES - self.local_bytes, 0)
        self._own = threading.local()

    def _attribute(self, attribute: driver.CUfunction_attribute) -> int:
        return int(_check(driver.cuFuncGetAttribute(attribute, self.function)))

    def check_parameters(self, given: Sequence[tuple[int, int]]) -> None:
        """Raises DeviceError unless the kernel takes parameters of these offsets and sizes."""
        wanted: list[tuple[int, int]] = []
        while True:
            status, offset, size = driver.cuFuncGetParamInfo(self.function, len(wanted))
            if status != driver.CUresult.CUDA_SUCCESS:
                break
            wanted.append((int(offset), int(size)))
        if len(wanted) != len(given):
            raise DeviceError(f"{self.name} takes {len(wanted)} arguments, got {len(given)}")
        for index, (want, have) in enumerate(zip(wanted, given, strict=True)):
            if want != have:
                raise DeviceError(f"argument {index} of {self.name} takes {want[1]} bytes, "
                                  f"got {have[1]}")

    def packed(self, arguments: Sequence[Argument]) -> int:
        """The address of the parameter pointers for a launch by this thread."""
        types = tuple(map(type, arguments))
        packers: dict[tuple[type, ...], _Packer] | None = getattr(self._own, "packers", None)
        if packers is None:
            packers = self._own.packers = {}
        packer = packers.get(types)
        if packer is None:
            packer = packers[types] = _Packer(self, types)
        packer.pack(arguments)
        return packer.address

    def allow_dynamic(self, nbytes: int) -> None:
        """Lifts the kernel's limit of dynamic local memory to at least this."""
        if nbytes <= self._dynamic_bytes:
            return
        limit = self._device.limits.local_bytes_opt_in
        if nbytes + self.local_bytes > limit:
            raise DeviceError(f"{self.name} needs {nbytes + self.local_bytes} bytes of local "
                              f"memory, {self._device.name} has {limit}")
        _check(driver.cuFuncSetAttribute(
            self.function,
            driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes))
        self._dynamic_bytes = nbytes


class CudaGraph:
    """Recorded work. Calling it, or launch(stream), replays the work in the stream's order."""

    def __init__(self, device: CudaDevice, graph: driver.CUgraph, kept: list[Any],
                 stream: Any) -> None:
        self._device = device
        self._stream = stream
        # the graph holds bare addresses: buffers and kernels must outlive it
        self._kept = kept
        self._executable = _check(driver.cuGraphInstantiate(graph, 0))
        weakref.finalize(self, _quietly, device, driver.cuGraphExecDestroy, self._executable)

    def launch(self, stream: Any = None) -> None:
        """Replays on a stream; None: the one it was captured for."""
        stream = self._stream if stream is None else stream
        with self._device.current():
            self._device.checked("replaying a graph", driver.cuGraphLaunch(
                self._executable, self._device.stream_handle(stream)))

    def __call__(self, stream: Any = None) -> None:
        self.launch(stream)


class _Current:
    """Makes a device's context the calling thread's own for a while, and gives back the one
    that another library had set."""

    def __init__(self, context: driver.CUcontext) -> None:
        self._context = context
        self._handle = int(context)
        self._pushed = threading.local()

    def __enter__(self) -> None:
        foreign = int(driver.cuCtxGetCurrent()[1]) != self._handle
        if foreign:
            _check(driver.cuCtxPushCurrent(self._context))
        stack = self._pushed.__dict__.setdefault("stack", [])
        stack.append(foreign)

    def __exit__(self, *_: object) -> None:
        if self._pushed.stack.pop():
            driver.cuCtxPopCurrent()


class CudaDevice(Device):
    """One NVIDIA GPU, through its primary context, which torch, cupy and jax share.

    A stream is a CudaStream, an object with `__cuda_stream__`, a torch or cupy stream, or the
    integer handle of one. None is a stream of the device's own.
    """

    api = "cuda"

    def __init__(self, index: int) -> None:
        self.index = index
        try:
            device = _check(driver.cuDeviceGet(index))
            name = _check(driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
            self._current = _Current(_check(driver.cuDevicePrimaryCtxRetain(device)))
            self.limits, capability = _limits(device)
        except _DriverError as error:
            raise DeviceError(f"cuda:{index} cannot be opened: {error}") from None
        self.architecture = "sm_{}{}".format(*capability)
        self.description = f"{name} ({self.architecture})"
        self.driver = _driver_version()
        self._kernels: dict[KernelSource, CudaKernel] = {}
        self._recording = threading.local()
        self._pool: driver.CUmemoryPool | None = None
        self._pool_lock = threading.Lock()
        self._stream = CudaStream(self)

    def current(self) -> _Current:
        """A context manager: the device's context is current inside."""
        return self._current

    def checked(self, what: str, result: tuple[Any, ...]) -> Any:
        """The value of a driver call. Raises DeviceError that says what failed."""
        try:
            return _check(result)
        except _DriverError as error:
            raise DeviceError(f"{self.name} failed {what}: {error}") from None

    def stream_handle(self, stream: Any) -> int:
        """The integer handle of anything that can be meant by a stream."""
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
        raise InputError(f"a {type(stream).__name__} is no CUDA stream; give a stream of torch, "
                         "cupy or cuda.core, or its integer handle")

    def compile(self, source: KernelSource) -> CudaKernel:
        kernel = self._kernels.get(source)
        if kernel is None:
            kernel = self._kernels.setdefault(source, self._load(source))
        return kernel

    def _load(self, source: KernelSource) -> CudaKernel:
        key = (source.text(), source.function, nvrtc.OPTIONS, self.architecture, nvrtc.version())

        def build() -> bytes:
            return nvrtc.compile_cubin(source, self.architecture)[0]

        try:
            return CudaKernel(source, kernel_cache.cached(key, build), self)
        except _DriverError:
            # an entry that is whole but does not load
            kernel_cache.forget(key)
        try:
            return CudaKernel(source, kernel_cache.cached(key, build), self)
        except _DriverError as error:
            raise DeviceError(f"{self.name} cannot load {source.function} of "
                              f"{source.path.name}: {error}") from None

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> CudaBuffer:
        with self.current():
            if stream is None:
                status, pointer = driver.cuMemAlloc(max(nbytes, 1))
            else:
                status, pointer = driver.cuMemAllocFromPoolAsync(
                    max(nbytes, 1), self._memory_pool(), self.stream_handle(stream))
            if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                free = driver.cuMemGetInfo()[1]
                raise out_of_memory(self, nbytes, purpose, int(free))
        self.checked(f"allocating {nbytes} bytes ({purpose})", (status,))
        handle = int(pointer)
        owner = (_Allocation(self, handle) if stream is None
                 else _StreamAllocation(self, handle, stream))
        return CudaBuffer(self, handle, nbytes, owner)

    def _memory_pool(self) -> driver.CUmemoryPool:
        with self._pool_lock:
            if self._pool is None:
                properties = driver.CUmemPoolProps()
                properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
                properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                properties.location.id = self.index
                self._pool = self.checked(
                    "making a memory pool", driver.cuMemPoolCreate(properties))
                # freed memory stays in the pool, so that fresh outputs cost no system call
                self.checked("making a memory pool", driver.cuMemPoolSetAttribute(
                    self._pool,
                    driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                    driver.cuuint64_t(2**64 - 1)))
            return self._pool

    def wrap(self, handle: int, nbytes: int, owner: object) -> CudaBuffer:
        """Foreign device memory as a buffer that keeps its owner alive."""
        return CudaBuffer(self, handle, nbytes, owner)

    def upload(self, array: np.ndarray, purpose: str) -> CudaBuffer:
        buffer = self.empty(array.nbytes, purpose)
        self.write(buffer, np.ascontiguousarray(array))
        return buffer

    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        if array.nbytes:
            handle = self.stream_handle(stream)
            with self.current():
                self.checked("writing memory", driver.cuMemcpyHtoDAsync(
                    _pointer(buffer), array.ctypes.data, array.nbytes, handle))
                # the copy of page-locked memory goes on after the call
                self.checked("writing memory", driver.cuStreamSynchronize(handle))

    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        if array.nbytes:
            handle = self.stream_handle(stream)
            with self.current():
                self.checked("reading memory", driver.cuMemcpyDtoHAsync(
                    array.ctypes.data, _pointer(buffer), array.nbytes, handle))
                self.checked("reading memory", driver.cuStreamSynchronize(handle))

    def copy(self, target: Buffer, source: Buffer, nbytes: int, stream: Any = None) -> None:
        if nbytes:
            self._keep(target, source)
            with self.current():
                self.checked("copying memory", driver.cuMemcpyDtoDAsync(
                    _pointer(target), _pointer(source), nbytes, self.stream_handle(stream)))

    def launch(self, kernel: Kernel, groups: Sequence[int], group_size: Sequence[int],
               arguments: Sequence[Argument], *, local_bytes: int = 0,
               stream: Any = None) -> None:
        assert isinstance(kernel, CudaKernel)
        if 0 in groups:
            return
        try:
            parameters = kernel.packed(arguments)
        except struct.error as error:
            raise DeviceError(f"{self.name} failed launching {kernel.name}: {error}") from None
        gx, gy, gz = (*groups, 1, 1)[:3]
        bx, by, bz = (*group_size, 1, 1)[:3]
        self._check_fit(kernel, (gx, gy, gz), bx * by * bz)
        self._keep(kernel, arguments)
        with self.current():
            try:
                kernel.allow_dynamic(local_bytes)
                _check(driver.cuLaunchKernel(
                    kernel.function, gx, gy, gz, bx, by, bz, local_bytes,
                    self.stream_handle(stream), parameters, 0))
            except _DriverError as error:
                raise DeviceError(f"{self.name} failed launching {kernel.name}: {error}") from None

    def _check_fit(self, kernel: CudaKernel, groups: Sequence[int], threads: int) -> None:
        if threads > kernel.group_size:
            raise DeviceError(f"{self.name} runs {kernel.name} with at most {kernel.group_size} "
                              f"work-items a group, asked for {threads}")
        for dimension, (have, most) in enumerate(zip(groups, _LARGEST_GRID, strict=True)):
            if have > most:
                raise DeviceError(f"{self.name} runs at most {most} groups in dimension "
                                  f"{dimension}, {kernel.name} asked for {have}")

    def synchronize(self, stream: Any = None) -> None:
        with self.current():
            self.checked("running kernels",
                         driver.cuStreamSynchronize(self.stream_handle(stream)))

    def create_stream(self) -> CudaStream:
        return CudaStream(self)

    def wait(self, waiting: Any, awaited: Any) -> None:
        """What comes next in one stream starts after what is now in the other."""
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
            events = [self.checked("timing", driver.cuEventCreate(
                driver.CUevent_flags.CU_EVENT_DEFAULT)) for _ in range(2)]
            try:
                self.checked("timing", driver.cuEventRecord(events[0], handle))
                work(stream)
                self.checked("timing", driver.cuEventRecord(events[1], handle))
                self.checked("running kernels", driver.cuEventSynchronize(events[1]))
                milliseconds = self.checked("timing", driver.cuEventElapsedTime(*events))
            finally:
                for event in events:
                    driver.cuEventDestroy(event)
        return float(milliseconds) * 1000

    def capture(self, work: Callable[[Any], None], stream: Any = None) -> CudaGraph:
        """work(stream) recorded as a graph, on a stream made for that; `stream` is where the
        result replays when it is called without one. The graph keeps alive what it uses."""
        recorder = CudaStream(self)
        kept: list[Any] = []
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with self.current():
            self.checked("recording a graph",
                         driver.cuStreamBeginCapture(recorder.handle, mode))
            self._recording.kept = kept
            try:
                work(recorder)
            except BaseException:
                _, graph = driver.cuStreamEndCapture(recorder.handle)
                if int(graph):
                    driver.cuGraphDestroy(graph)
                raise
            finally:
                self._recording.kept = None
            graph = self.checked("recording a graph",
                                 driver.cuStreamEndCapture(recorder.handle))
            try:
                return CudaGraph(self, graph, kept, stream)
            except _DriverError as error:
                raise DeviceError(f"{self.name} failed recording a graph: {error}") from None
            finally:
                driver.cuGraphDestroy(graph)

    def _keep(self, *used: Any) -> None:
        kept = getattr(self._recording, "kept", None)
        if kept is not None:
            kept.extend(used)


def _pointer(buffer: Buffer) -> int:
    assert isinstance(buffer, CudaBuffer)
    return buffer.handle


def _quietly(device: CudaDevice, call: Callable[..., Any], *arguments: Any) -> None:
    """A driver call that frees something; it may come after a failure, or at exit."""
    try:
        with device.current():
            call(*arguments)
    except Exception:
        pass


def count() -> int:
    """The number of NVIDIA devices. Raises DeviceError that says why there is none."""
    try:
        _check(driver.cuInit(0))
        found = int(_check(driver.cuDeviceGetCount()))
    except RuntimeError:
        raise DeviceError("no NVIDIA driver found (libcuda.so.1); install NVIDIA's driver for "
                          "CUDA 13 (580 or newer)") from None
    except _DriverError as error:
        raise DeviceError(f"the NVIDIA driver does not work: {error}") from None
    if not found:
        raise DeviceError("the NVIDIA driver shows no GPU; check CUDA_VISIBLE_DEVICES")
    return found


def _driver_version() -> str:
    version = int(_check(driver.cuDriverGetVersion()))
    text = f"CUDA {version // 1000}.{version % 1000 // 10}"
    try:
        with open("/sys/module/nvidia/version") as file:
            text += f", driver {file.read().strip()}"
    except OSError:
        pass
    return text


def _limits(device: driver.CUdevice) -> tuple[Limits, tuple[int, int]]:
    def attribute(name: str) -> int:
        member = driver.CUdevice_attribute[f"CU_DEVICE_ATTRIBUTE_{name}"]
        return int(_check(driver.cuDeviceGetAttribute(member, device)))

    capability = (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR"))
    return Limits(
        units=attribute("MULTIPROCESSOR_COUNT"),
        memory_bytes=int(_check(driver.cuDeviceTotalMem(device))),
        local_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
        local_bytes_opt_in=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        group_size=attribute("MAX_THREADS_PER_BLOCK"),
        subgroup_size=attribute("WARP_SIZE"),
        cache_bytes=attribute("L2_CACHE_SIZE"),
        graph=True,
        ballot=True,
        fp16=True,
        b1_mma=capability >= (8, 0),
        cooperative=bool(attribute("COOPERATIVE_LAUNCH")),
    ), capability
