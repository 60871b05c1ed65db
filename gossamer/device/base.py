"""The interface of devices: Device, with the capabilities that only some devices have."""

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
    """Recorded work that ends with copies whose targets are set before a replay.

    addresses: the present targets of the copies, as `copy_to` set them.
    """

    addresses: tuple[int, ...] = ()

    @abc.abstractmethod
    def copy_to(self, addresses: tuple[int, ...]) -> None:
        """Set the address to which each copy of later replays writes.

        The caller keeps the memory at these addresses alive.
        """

    @abc.abstractmethod
    def on(self, stream: Any) -> Callable[[], None]:
        """Return a function that replays the work on a stream as quickly as possible."""


class GraphThenCopies(CopyingGraph):
    """A graph and copies that the device queues one by one after each replay of the graph.

    graph: the recorded work.
    copies: pairs of a buffer that the work writes and the number of bytes to copy.
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

    CoreDevice declares what every device implements. A device that has one of the other
    capabilities overrides the flag and the methods of this capability. The inherited methods raise
    a DeviceError, or do what is right for a device without the capability.
    The numbers and flags by which kernels are selected are in `Device.limits`.

    Attributes
    ----------
    architecture : str
        The CUDA architecture of the device, such as "sm_90"; empty for a device without one.
    compilers : ProcessPool or None
        Processes that compile kernels for this process, on devices where this makes builds faster;
        None while there are no such processes.
    """

    architecture: str = ""
    compilers: ProcessPool | None = None

    @property
    def compiles(self) -> bool:
        """True if the device compiles and launches kernels; the host does not."""
        return True

    @property
    def on_processors(self) -> bool:
        """True if work runs on the host's processors, which other programs use as well."""
        return False

    @property
    def is_simulator(self) -> bool:
        """True if kernels are interpreted to find faults, so that their times mean nothing."""
        return False

    @property
    def queued_us(self) -> float:
        """Microseconds that the host takes to queue a launch.

        The number is 0 where the host queues launches faster than the device runs short kernels,
        as with CUDA graphs.
        """
        return 0.0

    @property
    def builds_side_by_side(self) -> bool:
        """True if several threads build kernels in less time than one thread."""
        return False

    @property
    def compiles_in_processes(self) -> bool:
        """True if the device has other processes compile, where it has `compilers`."""
        return False

    @property
    def toolkit(self) -> str:
        """Name and version of software, besides the driver, that influences the speed of kernels.

        An example is a compiler. The text is part of the key of every stored time, and empty for a
        device without such software.
        """
        return ""

    def capture(self, work: Callable[[Any], None], stream: Any = None,
                repeats: int = 1) -> Callable[..., None]:
        """Record some work as a graph, where `limits.graph` is true.

        Parameters
        ----------
        work : callable
            Queues the work on the stream that it is called with.
        stream : Any
            The stream of replays that name no stream.
        repeats : int
            How often one replay executes the work, one execution after another. `work` is called
            once.

        Returns
        -------
        callable
            A function that replays the work, in the order of the stream that it may be given.

        Raises
        ------
        DeviceError
            The device has no graphs, or the recording failed.
        """
        raise DeviceError(f"{self.name} records no graphs; check limits.graph before")

    def replayed(self, graph: Callable[..., None], stream: Any) -> Callable[[], None]:
        """Return a function that replays a captured graph on one stream as quickly as possible.

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
        """Record some work and copies of its results, where `limits.graph` is true.

        Parameters
        ----------
        work : callable
            Queues the work on the stream that it is called with.
        copies : sequence of (Buffer, int)
            Each buffer that is copied after the work, and the number of its bytes, at least 1.

        Returns
        -------
        CopyingGraph
            The graph, whose copies have no targets yet.

        Raises
        ------
        DeviceError
            The device has no graphs, or the recording failed.
        """
        return GraphThenCopies(self, self.capture(work), copies)

    def is_idle(self, stream: Any) -> bool:
        """Return whether a stream has no work left; True where the device cannot tell.

        Parameters
        ----------
        stream : Any
            The stream.

        Returns
        -------
        bool
            False while queued work runs or waits.
        """
        return True

    def is_closed(self, stream: Any) -> bool:
        """Return whether a caller's stream was closed, as far as its object says so.

        A bare handle always counts as open: no call of the driver can safely test it.

        Parameters
        ----------
        stream : Any
            The stream.

        Returns
        -------
        bool
            True where the stream was closed.
        """
        return False

    def check_stream(self, stream: Any) -> None:
        """Raise where a caller's stream was closed.

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
            raise InputError(f"the stream {stream!r} was closed; give an open stream, or leave the "
                             "argument `stream` out")

    def timed_graph(self, work: Callable[[Any], None], repeats: int, *,
                    as_in_plan: bool = False) -> Callable[[], float]:
        """Record repeated executions of some work, where `limits.graph` is true, to time them.

        Parameters
        ----------
        work : callable
            Queues the work on the stream that it is called with.
        repeats : int
            How often one replay executes the work, one execution after another.
        as_in_plan : bool, default False
            Whether a kernel that may begin early (`KernelSource.begins_early`) begins before the
            previous execution has ended, as in a plan it begins before the previous step has
            ended. By default each execution waits for the end of the previous one.

        Returns
        -------
        callable
            A function that replays all executions and returns their time in microseconds. Where
            the device measures the time itself, delays of the calling thread are no part of this
            time.

        Raises
        ------
        DeviceError
            The device has no graphs, or the recording failed.
        """
        graph = self.capture(work, repeats=repeats)
        return lambda: self.time(graph)

    def side_streams(self, stream: Any, count: int) -> list[Any]:
        """Return streams for work that forks from a stream and joins it again by `wait`.

        Parameters
        ----------
        stream : Any
            The stream from which the work forks.
        count : int
            Number of streams.

        Returns
        -------
        list
            The streams; a further call for the same stream returns the same ones. By default each
            of them is `stream` itself, so that the work runs one part after another.
        """
        return [stream] * count

    @property
    def assembles_ptx(self) -> bool:
        """True if the device runs programs in PTX, NVIDIA's assembly language."""
        return False

    def assemble(self, key: Sequence[str],
                 generate: Callable[[], Sequence[Any]]) -> Sequence[Kernel]:
        """Build PTX programs, or load them from the disk cache, where `assembles_ptx` is true.

        Parameters
        ----------
        key : sequence of str
            Texts that name everything on which the programs' code depends.
        generate : callable
            Returns the programs, each a gossamer.device.cuda.ptx.PtxProgram. It is called only
            where the disk cache does not hold the programs' kernels, and in one of `compilers`
            where it can be pickled.

        Returns
        -------
        sequence of Kernel
            The kernel of each program.

        Raises
        ------
        DeviceError
            The device runs no PTX.
        CompileError
            The assembler refused a program; the message has the assembler's log.
        """
        raise DeviceError(f"{self.name} runs no PTX; use a CUDA device")

    @property
    def locks_pages(self) -> bool:
        """True if copies from and to page-locked memory overlap the host's own work."""
        return False

    def page_locked(self, nbytes: int) -> np.ndarray:
        """Allocate host memory that is page-locked where `locks_pages` is true.

        Parameters
        ----------
        nbytes : int
            Size in bytes.

        Returns
        -------
        numpy.ndarray
            Uninitialised memory of dtype uint8, which is freed with the last array over it.

        Raises
        ------
        OutOfMemoryError
            The driver cannot lock this much memory.
        """
        return np.empty(nbytes, np.uint8)

    def is_page_locked(self, array: np.ndarray) -> bool:
        """Return whether an array lies in page-locked memory, whichever library allocated it.

        Parameters
        ----------
        array : numpy.ndarray
            Any array.

        Returns
        -------
        bool
            False where `locks_pages` is false.
        """
        return False

    def queue_write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        """Copy a page-locked array to the start of a buffer, in the stream's order.

        The array must not be changed, nor freed, before the stream has made the copy.

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

        The array must not be read, nor freed, before the stream has made the copy.

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
