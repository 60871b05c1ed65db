"""The host as a device, and the logical processors available to this process.

The host device runs NumPy. It always works, needs no driver and compiles no kernels.
"""

from __future__ import annotations

import functools
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np

from gossamer.device import blas
from gossamer.device.base import Argument, Buffer, Device, Kernel
from gossamer.device.checks import check_copy, check_transfer, check_view, out_of_memory
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.errors import DeviceError
from gossamer.tensor import TensorSpec

_ALIGNMENT = 64
"""Alignment of buffers in bytes: a cache line, and the longest vector of x86 CPUs."""
_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def processors() -> int:
    """Return the number of logical processors that this process may use.

    The CPU affinity of the process and the CPU limit of its container restrict the number.
    """
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _most_processors())
    return os.cpu_count() or 1


@functools.cache
def _most_processors() -> int:
    """Return the container's limit in whole logical processors, read once per process."""
    quota = cpu_quota()
    return sys.maxsize if quota == math.inf else max(1, math.ceil(quota))


class HostBuffer(Buffer):
    """Host memory, which algorithms access through `host_array`.

    bytes: the memory as a flat uint8 array.
    pointer: address of the first byte.
    """

    device: HostDevice

    def __init__(self, device: HostDevice, data: np.ndarray) -> None:
        self.device = device
        self.nbytes = data.nbytes
        self.bytes = data

    @functools.cached_property
    def pointer(self) -> int:
        return int(self.bytes.ctypes.data)

    def view(self, offset: int, nbytes: int) -> HostBuffer:
        check_view(self, offset, nbytes)
        return HostBuffer(self.device, self.bytes[offset : offset + nbytes])


def host_array(buffer: Buffer, shape: TensorSpec | Sequence[int],
               dtype: np.typing.DTypeLike | None = None) -> np.ndarray:
    """Return the start of a host buffer as a C-contiguous array view.

    shape: shape of the array, or a TensorSpec with its stored shape and dtype.
    dtype: dtype of the array; by default the spec's, or float32 for a plain shape.
    Raises DeviceError for memory of another device, and ValueError if the memory is too small.
    """
    if isinstance(shape, TensorSpec):
        dtype = shape.stored_dtype if dtype is None else dtype
        shape = shape.stored_shape
    kind = np.dtype(np.float32 if dtype is None else dtype)
    size = math.prod(shape) * kind.itemsize
    if size > buffer.nbytes:
        raise ValueError(f"shape {tuple(shape)} of {kind} needs {size} bytes, "
                         f"but the buffer has {buffer.nbytes}")
    return _bytes_of(buffer)[:size].view(kind).reshape(tuple(shape))


def address_of(buffer: Buffer) -> int:
    """Return the address of a host buffer.

    Raises DeviceError for memory of another device.
    """
    _bytes_of(buffer)
    return buffer.pointer  # type: ignore[attr-defined,no-any-return]


def part_of(buffer: Buffer, offset: int, nbytes: int) -> Buffer:
    """Return a view of a host buffer; the view need not be aligned.

    Raises DeviceError for memory of another device.
    """
    data = _bytes_of(buffer)
    return HostBuffer(buffer.device, data[offset:offset + nbytes])  # type: ignore[arg-type]


class HostDevice(Device):
    """NumPy on this machine. The host has no streams, so all calls are synchronous."""

    api = "host"
    alignment = _ALIGNMENT

    def __init__(self) -> None:
        self.index = 0
        self.description = _processor_name()
        self.driver = f"NumPy {np.__version__}"
        self.limits = Limits(
            compute_units=processors(),
            memory_bytes=_memory_bytes(),
            shared_bytes=0,
            shared_bytes_opt_in=0,
            work_group_size=1,
            subgroup_size=1,
            sure_work_group_size=1,
        )

    @property
    def compiles(self) -> bool:
        return False

    @property
    def on_processors(self) -> bool:
        return True

    @property
    def toolkit(self) -> str:
        threads = blas.threads()
        return f"BLAS with {threads} thread" + "s" * (threads != 1)

    def compile(self, source: KernelSource) -> NoReturn:
        raise DeviceError(f"the host cannot compile the kernel {source.function} of "
                          f"{source.path.name}; use an OpenCL or CUDA device")

    def launch(self, kernel: Kernel, groups: Sequence[int], work_group_size: Sequence[int],
               arguments: Sequence[Argument], *, shared_bytes: int = 0,
               stream: Any = None) -> NoReturn:
        raise DeviceError(f"the host cannot launch the kernel {kernel.name}; use an "
                          "OpenCL or CUDA device")

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> HostBuffer:
        try:
            data = np.empty(nbytes + _ALIGNMENT, np.uint8)
        except MemoryError:
            raise out_of_memory(self, nbytes, purpose) from None
        start = -data.ctypes.data % _ALIGNMENT
        return HostBuffer(self, data[start : start + nbytes])

    def upload(self, array: np.ndarray, purpose: str) -> HostBuffer:
        buffer = self.empty(array.nbytes, purpose)
        self.write(buffer, np.ascontiguousarray(array))
        return buffer

    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        _bytes_of(buffer)[: array.nbytes] = array.reshape(-1).view(np.uint8)

    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        array.reshape(-1).view(np.uint8)[...] = _bytes_of(buffer)[: array.nbytes]

    def copy(self, target: Buffer, source: Buffer, nbytes: int, stream: Any = None) -> None:
        check_copy(target, source, nbytes)
        _bytes_of(target)[:nbytes] = _bytes_of(source)[:nbytes]

    def synchronize(self, stream: Any = None) -> None:
        pass

    def create_stream(self) -> None:
        return None

    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        start = time.perf_counter()
        work(stream)
        return (time.perf_counter() - start) * 1e6


def _bytes_of(buffer: Buffer) -> np.ndarray:
    if not isinstance(buffer, HostBuffer):
        raise DeviceError(f"expected host memory, got memory of {buffer.device.name}; copy it to "
                          "the host with Device.read")
    return buffer.bytes


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_quota() -> float:
    """Return the number of logical processors allowed by this process's control groups.

    The number may be fractional, such as 1.5. It is infinite if no limit is set or known.
    """
    try:
        lines = _GROUPS.read_text().splitlines()
    except OSError:
        return math.inf
    limits = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += [_version_2(folder) for folder in _folders(_ROOT, path)]
        elif "cpu" in controllers.split(","):
            limits += [_version_1(folder) for folder in _folders(_ROOT / "cpu", path)]
    return min(limits)


def _folders(root: Path, path: str) -> Iterator[Path]:
    """Yield the folders of a control group and its ancestors."""
    # in a container the path may begin with "..", if the group is above the mounted folder
    names = [name for name in PurePosixPath(path).parts if name not in ("/", "..")]
    for count in range(len(names) + 1):
        yield root.joinpath(*names[:count])


def _version_2(folder: Path) -> float:
    """Return the limit of a version 2 control group in logical processors.

    The file cpu.max contains the quota and the period: 'max 100000' (no limit) or '150000 100000'.
    """
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _version_1(folder: Path) -> float:
    """Return the limit of a version 1 control group in logical processors.

    One file contains the quota (-1 for no limit), and another contains the period.
    """
    try:
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text())
                         for name in ("quota", "period"))
        return quota / period if quota > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
