"""What every device implements: Buffer, Kernel, and the methods of CoreDevice."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from gossamer.device.limits import Limits, PeakRates
from gossamer.device.source import KernelSource
from gossamer.errors import DeviceError


class Buffer(abc.ABC):
    """Device memory, which is freed with the last reference to it.

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
        """Address of the first byte, on devices that run libraries for CUDA.

        Raises
        ------
        DeviceError
            The device's memory has no addresses.
        """
        raise DeviceError(f"memory of {self.device.name} has no address, which libraries for CUDA "
                          "need; use a CUDA device")

    @abc.abstractmethod
    def view(self, offset: int, nbytes: int) -> Buffer:
        """Return a part of this buffer that keeps the full buffer alive.

        Parameters
        ----------
        offset : int
            First byte of the part, a multiple of `Device.alignment`.
        nbytes : int
            Size of the part in bytes.

        Returns
        -------
        Buffer
            The same memory from `offset` on.

        Raises
        ------
        ValueError
            The offset is not aligned, or the part leaves the buffer.
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
        Registers of each thread, where the compiler reports them.
    spill_bytes : int or None
        Bytes of each thread in CUDA's thread-local memory, registers that were spilled included,
        where the compiler reports them.
    code_bytes : int or None
        Size of the binary, where it is known.
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
"""A kernel argument: int means int32, float means float32, None a null pointer."""


class CoreDevice(abc.ABC):
    """The methods that every device implements.

    A parameter `stream` takes None for the device's default stream. Arguments named `array` must
    be C-contiguous. Copying a device returns the same device, and a pickle holds only its name.
    The subclass Device adds the capabilities that only some devices have.

    Attributes
    ----------
    api : str
        "host", "opencl" or "cuda", the first part of the device's name. Other code decides by the
        device's capabilities, never by its api.
    index : int
        Number of the device among the devices of its api.
    description : str
        Name of the hardware.
    driver : str
        Name and version of the driver.
    limits : Limits
        The capabilities of the device.
    rates : PeakRates or None
        The peak rates of the device; None until they were measured.
    alignment : int
        Bytes of which the offset of every view of a buffer is a multiple.
    """

    api: ClassVar[str]
    index: int
    description: str
    driver: str
    limits: Limits
    rates: PeakRates | None = None
    alignment: int = 256
    unusable: str = ""
    """Why the device cannot be used in this process any more; empty while it can be used."""
    reopen: ClassVar[Callable[[str], CoreDevice] | None] = None
    """Function that opens a device by its name in another process; the registry sets it."""

    @property
    def name(self) -> str:
        """The name that a user types: host, opencl:0, cuda:1."""
        return self.api if self.api == "host" else f"{self.api}:{self.index}"

    @property
    def kind(self) -> tuple[str, str, int]:
        """The kind of device: measurements hold for all devices of the same kind."""
        return self.api, self.description, self.limits.compute_units

    @property
    def chip(self) -> str:
        """Name of the chip alone; a description may also contain the driver's name."""
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
        """Return a kernel for this device, built now or taken from memory or the disk cache.

        Parameters
        ----------
        source : KernelSource
            The kernel function.

        Returns
        -------
        Kernel
            The same object for the same source.

        Raises
        ------
        CompileError
            The compiler refused the source; the message has the compiler's log.
        """

    @abc.abstractmethod
    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> Buffer:
        """Allocate uninitialised memory.

        Parameters
        ----------
        nbytes : int
            Size in bytes.
        purpose : str
            Use of the memory, for the error's message.
        stream : Any
            A stream, if only its work uses the memory. The buffer may then be dropped before that
            work is done, and on CUDA the memory comes from a pool, which allocates faster.

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
            Use of the memory, for the error's message.

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

        The array may be changed after the return.

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
        """Copy bytes from one buffer to another of this device, in the stream's order.

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
            A buffer is smaller.
        """

    @abc.abstractmethod
    def launch(self, kernel: Kernel, groups: Sequence[int], work_group_size: Sequence[int],
               arguments: Sequence[Argument], *, shared_bytes: int = 0,
               stream: Any = None) -> None:
        """Queue a kernel; nothing is launched where a dimension of `groups` is 0.

        Parameters
        ----------
        kernel : Kernel
            A kernel that this device compiled.
        groups, work_group_size : sequence of int
            Number of work-groups, and of work-items in each, along one to three dimensions.
        arguments : sequence of Argument
            The kernel's arguments in order.
        shared_bytes : int
            Bytes of dynamic shared memory for each work-group.
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
        """Make later work of one stream start after the present work of another stream.

        By default the calling thread itself waits for the present work. Nothing happens where both
        streams are the same.

        Parameters
        ----------
        waiting : Any
            The stream whose later work waits.
        awaited : Any
            The stream whose present work is waited for.

        Raises
        ------
        DeviceError
            A kernel failed.
        """
        if waiting is not awaited:
            self.synchronize(awaited)

    @abc.abstractmethod
    def create_stream(self) -> Any:
        """Return a new stream of the device; None on the host, which has no streams."""

    @abc.abstractmethod
    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        """Return the time that the device spends on some work.

        The time is measured by the device's events, or by the host's clock where events would slow
        the work down.

        Parameters
        ----------
        work : callable
            Queues the work on the stream that it is called with.
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
        """Pickle the name only: another process opens the device itself."""
        if type(self).reopen is None:
            raise TypeError(f"{self.name} cannot be pickled: import gossamer.device.registry first")
        return type(self).reopen, (self.name,)

    def __repr__(self) -> str:
        """Return the name and the description."""
        return f"<{self.name}: {self.description}>"
