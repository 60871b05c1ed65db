"""The interface that every place where code runs implements: Device, Buffer, Kernel."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gossamer.errors import DeviceError, OutOfMemoryError

DIALECT = tuple(Path(__file__).parent / "dialect" / f"{name}.h"
                for name in ("opencl", "cuda", "common"))
"""The headers that make one source OpenCL C and CUDA C++, in the order in which they are put
before a kernel."""


@dataclass(frozen=True)
class Limits:
    """What a device offers; kernels are chosen and sized by these."""

    compute_units: int
    memory_bytes: int
    shared_bytes: int
    shared_bytes_opt_in: int
    work_group_size: int
    subgroup_size: int
    cache_bytes: int = 0
    graph: bool = False
    mma: bool = False
    cluster: int = 1
    """Groups that may reach one another's shared memory."""


@dataclass(frozen=True)
class KernelSource:
    """One kernel function of one file, specialised by macros.

    path: the `.cl` or `.cu` file; `.cl` files get the headers of DIALECT in front.
    defines: macros, in order; a value may be any C text (an expression's statements too).
    architectures: the oldest and newest CUDA architectures it is built for.
    dynamic_shared: whether it takes a DYNAMIC_SHARED_PARAMETER as its last parameter.
    headers: files that several kernels share, put before the kernel's own.
    """

    path: Path
    function: str
    defines: tuple[tuple[str, str], ...] = ()
    architectures: tuple[str, str] = ("sm_75", "sm_100")
    dynamic_shared: bool = False
    headers: tuple[Path, ...] = ()

    @staticmethod
    def of(path: Path, function: str, defines: Mapping[str, object] | None = None,
           **options: Any) -> KernelSource:
        items = tuple((name, str(value)) for name, value in (defines or {}).items())
        return KernelSource(path, function, items, **options)

    def text(self) -> str:
        """The whole translation unit."""
        lines = [f"#define {name} {_one_line(value)}" for name, value in self.defines]
        if self.path.suffix == ".cl":
            lines += [header.read_text() for header in DIALECT]
        lines += [path.read_text() for path in (*self.headers, self.path)]
        return "\n".join(lines)


def _one_line(text: str) -> str:
    return text.replace("\n", " \\\n")


class Buffer(abc.ABC):
    """Device memory. Freed when the last reference goes."""

    device: Device
    nbytes: int

    @abc.abstractmethod
    def view(self, offset: int, nbytes: int) -> Buffer:
        """A part of this buffer, `offset` bytes in (a multiple of `Device.alignment`), that
        keeps the whole alive."""


class Kernel(abc.ABC):
    """A compiled kernel function."""

    name: str
    source: KernelSource
    registers: int | None = None
    """Registers a thread, where the compiler tells."""
    spill_bytes: int | None = None
    """Bytes a thread keeps in off-chip local memory, where the compiler tells."""
    code_bytes: int | None = None
    """Of its binary, where that is known."""
    from_cache: bool = False
    """Whether it was compiled before and read from the disk cache."""
    apart_seconds: float = 0.0
    """That another process took to build it."""


Argument = Buffer | int | float | np.generic | None
"""A kernel argument: int means int32, float means float32, None a null pointer."""


class Device(abc.ABC):
    """One place where plans run. Obtain one from `gossamer.device.registry.find`."""

    api: ClassVar[str]
    index: int
    description: str
    driver: str
    limits: Limits
    alignment: int = 256

    @property
    def name(self) -> str:
        """What a user types: host, opencl:0, cuda:1."""
        return self.api if self.api == "host" else f"{self.api}:{self.index}"

    @property
    def compiles(self) -> bool:
        """Whether kernels can be compiled and launched here (not on the host)."""
        return True

    @property
    def on_processors(self) -> bool:
        """Whether work runs on the host's processors, which other programs use too."""
        return False

    @property
    def builds_side_by_side(self) -> bool:
        """Whether several threads build kernels in less time than one."""
        return False

    @abc.abstractmethod
    def compile(self, source: KernelSource) -> Kernel:
        """The kernel built for this device, from memory or the disk cache when seen before.

        Raises CompileError with the build log.
        """

    @abc.abstractmethod
    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> Buffer:
        """Uninitialised memory. Raises OutOfMemoryError naming the purpose and the bytes.

        With a stream, memory for work in that stream's order only, dropped before or after the
        work is done: quick where the device has memory pools (CUDA), the same elsewhere.
        """

    @abc.abstractmethod
    def upload(self, array: np.ndarray, purpose: str) -> Buffer:
        """New memory that holds a copy of the array's bytes; complete when it returns."""

    @abc.abstractmethod
    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        """Copies a contiguous array's bytes to the start of the buffer, in the stream's order.
        The array may be changed once this returns."""

    @abc.abstractmethod
    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        """Fills a contiguous array from the start of the buffer; complete when it returns."""

    @abc.abstractmethod
    def copy(self, target: Buffer, source: Buffer, nbytes: int, stream: Any = None) -> None:
        """Copies within the device, in the stream's order."""

    @abc.abstractmethod
    def launch(self, kernel: Kernel, groups: Sequence[int], work_group_size: Sequence[int],
               arguments: Sequence[Argument], *, shared_bytes: int = 0,
               stream: Any = None) -> None:
        """Runs `groups` work-groups of `work_group_size` work-items (one to three dimensions).
        No launch happens when a dimension is 0. shared_bytes sizes the dynamic shared memory."""

    @abc.abstractmethod
    def synchronize(self, stream: Any = None) -> None:
        """Waits for all work of the stream (None: the default one).
        Raises DeviceError when a kernel failed."""

    @abc.abstractmethod
    def create_stream(self) -> Any: ...

    @abc.abstractmethod
    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        """Microseconds that the device spends on work(stream), by its own events."""

    def capture(self, work: Callable[[Any], None],
                stream: Any = None) -> Callable[..., None] | None:
        """work(stream) recorded as a graph: calling the result replays it in the stream's order,
        or in that of the stream it is called with. None where the device has no graphs."""
        return None

    def __copy__(self) -> Device:
        return self

    def __deepcopy__(self, memo: Any) -> Device:
        return self

    def __reduce__(self) -> Any:
        """By name: another process opens the device itself."""
        from gossamer.device.registry import find_or_best

        return find_or_best, (self.name,)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.description}>"


def check_view(buffer: Buffer, offset: int, nbytes: int) -> None:
    """Raises ValueError unless a view of the buffer may start and end there."""
    if offset % buffer.device.alignment:
        raise ValueError(f"a view on {buffer.device.name} starts at a multiple of "
                         f"{buffer.device.alignment} bytes, got {offset}")
    if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
        raise ValueError(f"a view of {nbytes} bytes at {offset} leaves a buffer of "
                         f"{buffer.nbytes} bytes")


def check_transfer(buffer: Buffer, array: np.ndarray) -> None:
    """Raises ValueError unless the array's bytes can go to or come from the buffer."""
    if not array.flags.c_contiguous:
        raise ValueError("only a C-contiguous array is copied to or from a device")
    if array.nbytes > buffer.nbytes:
        raise ValueError(f"an array of {array.nbytes} bytes does not fit a buffer of "
                         f"{buffer.nbytes} bytes")


def out_of_memory(device: Device, nbytes: int, purpose: str,
                  free: int | None = None) -> OutOfMemoryError:
    """The error for an allocation that failed; `free` where the driver tells it."""
    have = (f"{free} bytes are free" if free is not None
            else f"it has {device.limits.memory_bytes} bytes in all")
    return OutOfMemoryError(f"{device.name} has no room for {nbytes} bytes ({purpose}): {have}; "
                            "use a smaller batch or another device")


@dataclass(frozen=True)
class DeviceInfo:
    """One device as discovered: usable, or the reason why not."""

    name: str
    description: str
    driver: str
    compute_units: int
    memory_bytes: int
    problem: str | None
    """None: it built and ran a one-line kernel. Otherwise one line that says why it is not
    offered."""


def self_check(device: Device) -> None:
    """Builds and runs a one-line kernel and compares its result.

    Raises DeviceError when the result is wrong; compile and launch errors pass through.
    """
    source = KernelSource.of(Path(__file__).with_name("self_check.cl"), "self_check")
    values = np.arange(1, 65, dtype=np.float32)
    buffer = device.upload(values, "the self-check")
    device.launch(device.compile(source), (1,), (64,), (buffer, 64))
    result = np.zeros_like(values)
    device.read(buffer, result)
    if not np.array_equal(result, values * 2 + 1):
        raise DeviceError(f"{device.name} built a one-line kernel but computed wrong numbers")
