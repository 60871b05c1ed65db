"""The interface that every device implements: Buffer, Kernel and CoreDevice."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.errors import DeviceError


class Buffer(abc.ABC):
    """Device memory that is freed when the last reference is dropped.

    Attributes
    ----------
    device : Device
        The device that holds the memory.
    nbytes : int
        Size in bytes.
    """

    device: CoreDevice
    nbytes: int

    @property
    def address(self) -> int:
        """Address of the first byte, for CUDA libraries.

        Raises
        ------
        DeviceError
            Memory of the device has no addresses.
        """
        raise DeviceError(f"CUDA libraries need a memory address, which {self.device.name} does "
                          "not provide; use a CUDA device")

    @abc.abstractmethod
    def view(self, offset: int, nbytes: int) -> Buffer:
        """Return a view of this buffer that keeps the whole buffer alive.

        Parameters
        ----------
        offset : int
            First byte of the view, a multiple of `Device.alignment`.
        nbytes : int
            Size of the view in bytes.

        Returns
        -------
        Buffer
            The same memory, starting at `offset`.

        Raises
        ------
        ValueError
            The offset is not aligned, or the view exceeds the buffer.
        """


class Kernel(abc.ABC):
    """A compiled kernel function.

    Attributes
    ----------
    name : str
        Name of the function.
    source : KernelSource
        The source from which the kernel was built.
    registers : int or None
        Registers per thread, if the compiler reports them.
    spill_bytes : int or None
        CUDA local memory per thread in bytes, including spilled registers, if the compiler reports
        this size.
    code_bytes : int or None
        Size of the binary in bytes, if known.
    from_cache : bool
        Whether the binary was read from the disk cache.
    """

    name: str
    source: KernelSource
    registers: int | None = None
    spill_bytes: int | None = None
    code_bytes: int | None = None
    from_cache: bool = False


Argument = Buffer | int | float | np.generic | None
"""A kernel argument: int means int32, float means float32, and None is a null pointer."""


class CoreDevice(abc.ABC):
    """The methods that every device implements.

    For every parameter `stream`, None means the device's default stream. Arguments named `array`
    must be C-contiguous. Copying a device returns the same device; pickling a device stores only
    the device's name.

    The subclass Device adds optional capabilities.

    Attributes
    ----------
    api : str
        "host", "opencl" or "cuda", the first part of the device's name. Other code must test the
        device's capabilities instead of its api.
    index : int
        Index of the device among the devices of its api.
    description : str
        Name of the hardware.
    driver : str
        Name and version of the driver.
    limits : Limits
        The limits and flags that determine which kernels can run.
    alignment : int
        Required alignment in bytes of the offsets of buffer views.
    """

    api: ClassVar[str]
    index: int
    description: str
    driver: str
    limits: Limits
    alignment: int = 256
    unusable: str = ""
    """Reason why this process can no longer use the device; empty while it is usable."""
    reopen: ClassVar[Callable[[str], CoreDevice] | None] = None
    """Function that opens a device by its name in another process. The registry sets it."""

    @property
    def name(self) -> str:
        """The name that users specify: host, opencl:0, cuda:1."""
        return self.api if self.api == "host" else f"{self.api}:{self.index}"

    @property
    def kind(self) -> tuple[str, str, int]:
        """The api, the description and the compute units.

        Devices of the same kind share measurements.
        """
        return self.api, self.description, self.limits.compute_units

    @property
    def chip(self) -> str:
        """Name of the chip, without the driver's name that `description` may contain."""
        return self.description

    def check_usable(self) -> None:
        """Check that the driver works in this process.

        Raises
        ------
        DeviceError
            The process was forked after the device was opened.
        """
        if self.unusable:
            raise DeviceError(f"device {self.name} {self.unusable}")

    @abc.abstractmethod
    def compile(self, source: KernelSource) -> Kernel:
        """Return a kernel, built now or loaded from memory or disk.

        Parameters
        ----------
        source : KernelSource
            The kernel function.

        Returns
        -------
        Kernel
            The kernel; calls with the same source return the same object.

        Raises
        ------
        CompileError
            The compiler rejected the source; the message contains its log.
        """

    @abc.abstractmethod
    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> Buffer:
        """Allocate uninitialised memory.

        Parameters
        ----------
        nbytes : int
            Size in bytes.
        purpose : str
            Use of the memory, for the error message.
        stream : Any
            The only stream whose work uses the memory, or None. With a stream, the buffer may be
            dropped before the stream's work is complete, and CUDA allocates from a pool, which is
            faster.

        Returns
        -------
        Buffer
            The memory.

        Raises
        ------
        OutOfMemoryError
            The device has too little memory; the message names the purpose and the bytes.
        """

    @abc.abstractmethod
    def upload(self, array: np.ndarray, purpose: str) -> Buffer:
        """Copy an array into new memory; the copy is complete on return.

        Parameters
        ----------
        array : numpy.ndarray
            Array of any shape and dtype.
        purpose : str
            Use of the memory, for the error message.

        Returns
        -------
        Buffer
            Memory of `array.nbytes` bytes.

        Raises
        ------
        OutOfMemoryError
            The device has too little memory.
        """

    @abc.abstractmethod
    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        """Copy an array's bytes to the start of a buffer, in the stream's order.

        The caller may modify the array after the call returns.

        Parameters
        ----------
        buffer : Buffer
            The target, of at least `array.nbytes` bytes.
        array : numpy.ndarray
            Array of any shape and dtype.
        stream : Any
            The stream that orders the copy.

        Raises
        ------
        ValueError
            The array is not contiguous or does not fit.
        DeviceError
            The driver failed.
        """

    @abc.abstractmethod
    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        """Fill an array from the start of a buffer; the copy is complete on return.

        Parameters
        ----------
        buffer : Buffer
            The source, of at least `array.nbytes` bytes.
        array : numpy.ndarray
            Array of any shape and dtype, which is overwritten.
        stream : Any
            The stream that orders the copy.

        Raises
        ------
        ValueError
            The array is not contiguous or larger than the buffer.
        DeviceError
            The driver failed, or a kernel that was queued before the copy failed.
        """

    @abc.abstractmethod
    def copy(self, target: Buffer, source: Buffer, nbytes: int, stream: Any = None) -> None:
        """Copy bytes between buffers of this device, in the stream's order.

        Parameters
        ----------
        target, source : Buffer
            Buffers of at least `nbytes` bytes.
        nbytes : int
            Number of bytes, from the start of both buffers.
        stream : Any
            The stream that orders the copy.

        Raises
        ------
        ValueError
            A buffer is smaller than `nbytes`.
        """

    @abc.abstractmethod
    def launch(self, kernel: Kernel, groups: Sequence[int], work_group_size: Sequence[int],
               arguments: Sequence[Argument], *, shared_bytes: int = 0,
               stream: Any = None) -> None:
        """Queue a kernel, unless a dimension of `groups` is 0.

        Parameters
        ----------
        kernel : Kernel
            A kernel that this device compiled.
        groups, work_group_size : sequence of int
            Number of work-groups, and work-items per work-group, in one to three dimensions.
        arguments : sequence of Argument
            The kernel's arguments in order.
        shared_bytes : int
            Bytes of dynamic shared memory per work-group.
        stream : Any
            The stream that orders the launch.

        Raises
        ------
        DeviceError
            The launch exceeds a limit of the device or the driver failed.
        """

    @abc.abstractmethod
    def synchronize(self, stream: Any = None) -> None:
        """Wait for all work of the stream.

        Parameters
        ----------
        stream : Any
            The stream.

        Raises
        ------
        DeviceError
            A kernel failed.
        """

    def wait(self, waiting: Any, awaited: Any) -> None:
        """Make later work of one stream wait for queued work of another.

        By default the calling thread waits for the queued work. Nothing happens if both streams are
        the same.

        Parameters
        ----------
        waiting : Any
            The stream that waits.
        awaited : Any
            The stream to wait for.

        Raises
        ------
        DeviceError
            A kernel failed.
        """
        if waiting is not awaited:
            self.synchronize(awaited)

    @abc.abstractmethod
    def create_stream(self) -> Any:
        """Return a new stream, or None on the host, which has no streams."""

    @abc.abstractmethod
    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        """Return the device time of some work in microseconds.

        The time is measured by device events, or by the host's clock if events would slow down the
        work.

        Parameters
        ----------
        work : callable
            Queues the work on the stream passed to it.
        stream : Any
            The stream on which the work is timed.

        Returns
        -------
        float
            Microseconds.

        Raises
        ------
        DeviceError
            A kernel failed.
        """

    def __copy__(self) -> CoreDevice:
        """Return the device itself."""
        return self

    def __deepcopy__(self, memo: Any) -> CoreDevice:
        """Return the device itself."""
        return self

    def __reduce__(self) -> Any:
        """Pickle only the name; the receiving process opens the device again."""
        if type(self).reopen is None:
            raise TypeError(f"{self.name} cannot be pickled: import gossamer.device.registry first")
        return type(self).reopen, (self.name,)

    def __repr__(self) -> str:
        """Return the name and the description."""
        return f"<{self.name}: {self.description}>"
