"""The interface of devices: Device, including the optional capabilities."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.device.core import Argument, Buffer, CoreDevice, Kernel
from gossamer.device.other_libraries import OtherLibraries
from gossamer.errors import DeviceError, InputError

if TYPE_CHECKING:
    from gossamer.io.process_pool import ProcessPool

__all__ = ["Argument", "Buffer", "CopyingGraph", "Device", "GraphThenCopies", "Kernel"]


class CopyingGraph(abc.ABC):
    """Recorded work followed by copies to changeable targets.

    addresses: addresses of the current targets, as set by `copy_to`.
    """

    addresses: tuple[int, ...] = ()

    @abc.abstractmethod
    def copy_to(self, addresses: tuple[int, ...]) -> None:
        """Set the target address of each copy for later replays.

        The caller must keep the memory at these addresses alive.
        """

    @abc.abstractmethod
    def on(self, stream: Any) -> Callable[[], None]:
        """Return a function that replays the work on a stream with minimal overhead."""


class GraphThenCopies(CopyingGraph):
    """A graph followed by copies; a replay queues the graph, then each copy.

    graph: the recorded work.
    copies: pairs (buffer that the work writes, number of bytes to copy).
    """

    def __init__(self, device: Device, graph: Callable[..., None],
                 copies: Sequence[tuple[Buffer, int]]) -> None:
        self._device = device
        self._graph = graph
        self._copies = copies
        self._targets: Sequence[Buffer] = ()

    def copy_to(self, addresses: tuple[int, ...]) -> None:
        """Set the addresses of the targets; see CopyingGraph."""
        self.addresses = addresses
        self._targets = [self._device.wrap(address, nbytes, None)
                         for address, (_, nbytes) in zip(addresses, self._copies, strict=True)]

    def on(self, stream: Any) -> Callable[[], None]:
        """Return a function that replays the work and queues the copies."""
        def replay() -> None:
            self._graph(stream)
            for (source, nbytes), target in zip(self._copies, self._targets, strict=True):
                self._device.copy(target, source, nbytes, stream)

        return replay


class Device(CoreDevice, OtherLibraries):
    """A device that runs plans; `gossamer.device.registry.find` returns instances.

    CoreDevice declares the methods that every device implements. This class declares the optional
    capabilities: a device with a capability overrides the capability's flag and methods. If a
    device lacks a capability, the inherited methods raise a DeviceError or use a fallback.

    `Device.limits` contains the numbers and flags that determine which kernels can run.

    Attributes
    ----------
    architecture : str
        The CUDA architecture of the device, such as "sm_90"; empty for a device without one.
    compilers : ProcessPool or None
        Pool of processes that compile kernels for this process, or None. Only devices with
        `compiles_in_processes` use the pool.
    """

    architecture: str = ""
    compilers: ProcessPool | None = None

    @property
    def compiles(self) -> bool:
        """True if the device compiles and launches kernels; the host does not."""
        return True

    @property
    def on_processors(self) -> bool:
        """True if work runs on the host's CPU, which other programs use, too."""
        return False

    @property
    def is_simulator(self) -> bool:
        """True if kernels are interpreted to find faults, so their times are meaningless."""
        return False

    @property
    def queued_us(self) -> float:
        """Microseconds that the host needs to queue a launch.

        0 if the host queues launches faster than the device runs short kernels, for example with
        CUDA graphs.
        """
        return 0.0

    @property
    def builds_side_by_side(self) -> bool:
        """True if several threads build kernels faster than one thread does."""
        return False

    @property
    def compiles_in_processes(self) -> bool:
        """True if the device compiles in other processes once `compilers` is set."""
        return False

    @property
    def toolkit(self) -> str:
        """Name and version of the software that affects the speed of kernels.

        An example of such software is a compiler. The driver is not included. This text is part of
        the key of every stored time. It is empty for a device without such software.
        """
        return ""

    def capture(self, work: Callable[[Any], None], stream: Any = None,
                repeats: int = 1) -> Callable[..., None]:
        """Record work as a graph. Requires `limits.graph`.

        Parameters
        ----------
        work : callable
            Queues the work on the stream passed to it.
        stream : Any
            The default stream of replays.
        repeats : int
            Number of consecutive executions of the work in one replay. `work` is called once.

        Returns
        -------
        callable
            A function that replays the work. Its optional argument is the stream to replay on.

        Raises
        ------
        DeviceError
            The device does not support graphs, or recording failed.
        """
        raise DeviceError(f"{self.name} does not support graphs; check limits.graph first")

    def replayed(self, graph: Callable[..., None], stream: Any) -> Callable[[], None]:
        """Return a function that replays a graph with minimal overhead.

        Parameters
        ----------
        graph : callable
            A graph that `capture` returned.
        stream : Any
            The stream on which the graph is replayed.

        Returns
        -------
        callable
            A function without arguments.
        """
        return partial(graph, stream)

    def capture_copying(self, work: Callable[[Any], None],
                        copies: Sequence[tuple[Buffer, int]]) -> CopyingGraph:
        """Record work and copies of its results. Requires `limits.graph`.

        Parameters
        ----------
        work : callable
            Queues the work on the stream passed to it.
        copies : sequence of (Buffer, int)
            The buffers to copy after the work, each with the number of bytes to copy (at least 1).

        Returns
        -------
        CopyingGraph
            The graph. The targets of its copies are not set yet.

        Raises
        ------
        DeviceError
            The device does not support graphs, or recording failed.
        """
        return GraphThenCopies(self, self.capture(work), copies)

    def is_idle(self, stream: Any) -> bool:
        """Return whether all queued work of a stream is complete.

        Parameters
        ----------
        stream : Any
            The stream.

        Returns
        -------
        bool
            False while queued work runs or waits to run. Always True if the device cannot query
            streams.
        """
        return True

    def is_closed(self, stream: Any) -> bool:
        """Return whether a caller's stream object reports that it was closed.

        A bare handle always counts as open, because no driver call can safely test it.

        Parameters
        ----------
        stream : Any
            The stream.

        Returns
        -------
        bool
            True if the stream was closed.
        """
        return False

    def check_stream(self, stream: Any) -> None:
        """Raise an error if a caller's stream was closed.

        Parameters
        ----------
        stream : Any
            The stream.

        Raises
        ------
        InputError
            The stream was closed.
        """
        if self.is_closed(stream):
            raise InputError(f"the stream {stream!r} was closed; pass an open stream, or omit the "
                             "argument `stream`")

    def timed_graph(self, work: Callable[[Any], None], repeats: int, *,
                    as_in_plan: bool = False) -> Callable[[], float]:
        """Record repeated executions to time them. Requires `limits.graph`.

        Parameters
        ----------
        work : callable
            Queues the work on the stream passed to it.
        repeats : int
            Number of consecutive executions of the work in one replay.
        as_in_plan : bool, default False
            Whether consecutive executions may overlap, as consecutive steps of a plan do: a kernel
            with `KernelSource.begins_early` may begin before the previous execution has ended. By
            default each execution waits for the previous one.

        Returns
        -------
        callable
            A function that replays all executions and returns their total microseconds. If the
            device itself measures the time, delays of the calling thread are not included.

        Raises
        ------
        DeviceError
            The device does not support graphs, or recording failed.
        """
        graph = self.capture(work, repeats=repeats)
        return lambda: self.time(graph)

    @property
    def assembles_ptx(self) -> bool:
        """True if the device runs programs in PTX, NVIDIA's assembly language."""
        return False

    def assemble(self, name: str, key: Sequence[str], generate: Callable[[], Any]) -> Kernel:
        """Build a PTX program, or load it from the cache. Requires `assembles_ptx`.

        Parameters
        ----------
        name : str
            Name of the program's kernel.
        key : sequence of str
            Texts that identify everything that the code of the program depends on.
        generate : callable
            Function that returns the program, a gossamer.device.cuda.ptx.PtxProgram. The function
            is called only if the disk cache does not contain the kernel. If the function can be
            pickled, one of the `compilers` calls it.

        Returns
        -------
        Kernel
            The kernel.

        Raises
        ------
        DeviceError
            The device does not run PTX.
        CompileError
            The assembler rejected the program; the message contains its log.
        """
        raise DeviceError(f"{self.name} does not run PTX; use a CUDA device")

    @property
    def locks_pages(self) -> bool:
        """True if copies from and to page-locked memory overlap host work."""
        return False

    def page_locked(self, nbytes: int) -> np.ndarray:
        """Allocate host memory; the memory is page-locked if `locks_pages` is true.

        Parameters
        ----------
        nbytes : int
            Size in bytes.

        Returns
        -------
        numpy.ndarray
            Uninitialised memory of dtype uint8, freed when the last array that uses it is deleted.

        Raises
        ------
        OutOfMemoryError
            The driver cannot lock this much memory.
        """
        return np.empty(nbytes, np.uint8)

    def is_page_locked(self, array: np.ndarray) -> bool:
        """Return whether an array is in page-locked memory, allocated by any library.

        Parameters
        ----------
        array : numpy.ndarray
            Any array.

        Returns
        -------
        bool
            Always False if `locks_pages` is false.
        """
        return False

    def lock_pages(self, array: np.ndarray) -> None:
        """Page-lock the memory of an array, if `locks_pages` is true.

        The memory stays locked until the process ends.

        Parameters
        ----------
        array : numpy.ndarray
            Contiguous memory that starts at a page and has whole pages.

        Raises
        ------
        OutOfMemoryError
            The driver cannot lock this memory.
        """

    @property
    def needs_own_process(self) -> bool:
        """True if one process is too slow to keep several such devices busy."""
        return False

    def queue_write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        """Copy a page-locked array to the start of a buffer, in the stream's order.

        The array must not be modified or freed before the stream has executed the copy.

        Parameters
        ----------
        buffer : Buffer
            The target, of at least `array.nbytes` bytes.
        array : numpy.ndarray
            Contiguous array of any shape and dtype.
        stream : Any
            The stream that orders the copy.

        Raises
        ------
        ValueError
            The array is not contiguous or does not fit.
        DeviceError
            The driver failed.
        """
        self.write(buffer, array, stream)

    def queue_read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        """Fill a page-locked array from the start of a buffer, in the stream's order.

        The array must not be read or freed before the stream has executed the copy.

        Parameters
        ----------
        buffer : Buffer
            The source, of at least `array.nbytes` bytes.
        array : numpy.ndarray
            Contiguous array of any shape and dtype, which is overwritten.
        stream : Any
            The stream that orders the copy.

        Raises
        ------
        ValueError
            The array is not contiguous or larger than the buffer.
        DeviceError
            The driver failed.
        """
        self.read(buffer, array, stream)
