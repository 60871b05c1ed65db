"""The capabilities that only some devices have, with the behaviour of a device that lacks them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from gossamer.device.copying_graph import CopyingGraph, GraphThenCopies
from gossamer.device.page_locked import PageLockedMemory
from gossamer.errors import DeviceError, InputError
from gossamer.tensor import TensorSpec

if TYPE_CHECKING:
    from gossamer.device.base import Buffer, Device, Kernel


class DeviceArray(Protocol):
    """A C-contiguous array in a device's memory, which other libraries can read by DLPack."""

    @property
    def buffer(self) -> Buffer:
        """The memory of the array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""

    @property
    def dtype(self) -> np.dtype:
        """The array's dtype."""


class NeedsDeviceError(DeviceError):
    """A call that needs the device itself, where another process only builds kernels for it."""


class OptionalCapabilities(PageLockedMemory, abc.ABC):
    """The capabilities that a device may lack, from which Device inherits.

    A device that has one overrides its flag and the methods that belong to it. The inherited
    methods raise a DeviceError, or do what is right where the capability is lacking. The numbers
    and flags by which kernels are selected are in `Device.limits`.

    Attributes
    ----------
    architecture : str
        The CUDA architecture of the device, such as "sm_90"; empty where kernels are not built for
        one.
    """

    architecture: str = ""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name that a user types, with which errors begin."""

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

        It is 0 where launches take less than a short kernel: graphs of CUDA launch kernels faster
        than these run.
        """
        return 0.0

    @property
    def builds_side_by_side(self) -> bool:
        """True if several threads build kernels in less time than one."""
        return False

    @property
    def seconds_elsewhere(self) -> float:
        """Processor seconds that other processes have compiled for the calling thread."""
        return 0.0

    def compilers(self, processors: int) -> AbstractContextManager[None]:
        """Let other processes compile for this one, where several threads then build faster.

        Parameters
        ----------
        processors : int
            Number of processors that may compile.

        Returns
        -------
        context manager
            The processes run in its body.
        """
        return nullcontext()

    @property
    def build_only(self) -> Callable[[], Device] | None:
        """Function that makes a device in another process that builds kernels for this one.

        It can be pickled, and it is None where no other process can build. The device that it makes
        has the same limits and names, puts what it compiles and assembles into the disk cache where
        this device looks for it, and runs nothing: its memory has no content, and what needs the
        device itself raises NeedsDeviceError.
        """
        return None

    @property
    def toolkit(self) -> str:
        """The installed software besides the driver on which the speed of kernels depends.

        It is a name with a version, such as that of a compiler, and part of the key of every
        stored time; empty where there is none.
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
            The stream on which the graph is replayed where its call names no other.
        repeats : int
            How often one replay executes the work, one execution after another; it is recorded
            once.

        Returns
        -------
        callable
            A function of an optional stream that replays the work in the stream's order.

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
            The stream on which it is replayed.

        Returns
        -------
        callable
            A function without arguments.
        """
        return partial(graph, stream)

    def capture_copying(self, work: Callable[[Any], None],
                        copies: Sequence[tuple[Buffer, int]]) -> CopyingGraph:
        """Record some work and copies of what it writes, where `limits.graph` is true.

        Parameters
        ----------
        work : callable
            Queues the work on the stream that it is called with.
        copies : sequence of (Buffer, int)
            Memory that is copied after the work, and the number of bytes, at least 1.

        Returns
        -------
        CopyingGraph
            The graph, whose copies have no targets yet.

        Raises
        ------
        DeviceError
            The device has no graphs, or the recording failed.
        """
        return GraphThenCopies(cast("Device", self), self.capture(work), copies)

    def is_idle(self, stream: Any) -> bool:
        """Return whether a stream has no work left; True where that is not known.

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
        """Whether the object of a caller's stream says that the stream was closed.

        A bare handle says nothing: using one whose stream was destroyed may end the process.

        Parameters
        ----------
        stream : Any
            The stream.

        Returns
        -------
        bool
            True where it was closed.
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
            raise InputError(f"the stream {stream!r} was closed; give one that is in use, or leave "
                             "stream away")

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
            Whether kernels that may begin before the one before them has ended do so, as in a
            plan, where another step is before them; else each execution waits for the end of the
            one before.

        Returns
        -------
        callable
            A function that replays all executions and returns their time in microseconds. Where
            the device can take that time itself, delays of the calling thread are no part of it.

        Raises
        ------
        DeviceError
            The device has no graphs, or the recording failed.
        """
        graph = self.capture(work, repeats=repeats)
        return lambda: self.time(graph)

    @abc.abstractmethod
    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        """Return the time of some work; see `Device.time`."""

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
            The same streams at each call for the same stream; by default the stream itself, on
            which the work is done in turn.
        """
        return [stream] * count

    @property
    def assembles_ptx(self) -> bool:
        """True if the device runs programs in PTX, NVIDIA's assembly language."""
        return False

    def assemble(self, key: Sequence[str],
                 generate: Callable[[], Sequence[Any]]) -> Sequence[Kernel]:
        """Build programs in PTX, from the disk cache if possible, where `assembles_ptx` is true.

        Parameters
        ----------
        key : sequence of str
            Texts that identify the programs: all that their code depends on.
        generate : callable
            Returns the programs, of gossamer.device.cuda.ptx.PtxProgram. It is not called where the
            disk cache holds their kernels.

        Returns
        -------
        sequence of Kernel
            The kernel of each program.

        Raises
        ------
        DeviceError
            The device runs no PTX.
        CompileError
            The assembler refused a program; the message carries its log.
        """
        raise DeviceError(f"{self.name} runs no PTX; use a CUDA device")

    @property
    def runs_cuda_libraries(self) -> bool:
        """True if libraries for CUDA can work in the device's memory and on its streams.

        Such libraries are cuBLAS, cuSPARSE, cuDNN, PyTorch and JAX. They need `Buffer.address`,
        `stream_handle`, `current`, `keep` and `wrap`.
        """
        return False

    def stream_handle(self, stream: Any) -> int:
        """Return CUDA's handle of a stream, where `runs_cuda_libraries` is true.

        Parameters
        ----------
        stream : Any
            A stream of the device, or of a library that works on it.

        Returns
        -------
        int
            The handle.

        Raises
        ------
        DeviceError
            The device has no streams of CUDA.
        InputError
            The object is no stream.
        """
        raise self._without_cuda("its streams have no handles")

    def current(self) -> AbstractContextManager[None]:
        """Return a context manager inside which the device's CUDA context is current.

        Returns
        -------
        context manager
            It holds for the calling thread.

        Raises
        ------
        DeviceError
            The device has no CUDA context.
        """
        raise self._without_cuda("it has no context of CUDA")

    def keep(self, *objects: Any) -> None:
        """Make the graph that the calling thread records keep objects alive.

        Launches and copies do this for their own arguments. Where nothing is recorded, nothing is
        done.

        Parameters
        ----------
        *objects : Any
            What a library's call uses: buffers, descriptors, plans.
        """
        return None

    def wrap(self, address: int, nbytes: int, owner: object) -> Buffer:
        """Return memory of another library as a buffer, where `runs_cuda_libraries` is true.

        Parameters
        ----------
        address : int
            First byte of the memory.
        nbytes : int
            Size in bytes.
        owner : object
            What the buffer keeps alive, as the memory is freed with it.

        Returns
        -------
        Buffer
            The same memory.

        Raises
        ------
        DeviceError
            The device's memory has no addresses.
        """
        raise self._without_cuda("its memory has no addresses")

    def holds(self, array: Any) -> bool:
        """Return whether an array of another library lies on a device of this kind.

        Parameters
        ----------
        array : Any
            An array that supports DLPack or the CUDA array interface.

        Returns
        -------
        bool
            True where `incoming` takes such an array without a copy, or says why this one must be
            moved first.
        """
        return False

    def incoming(self, array: Any, stream: Any = None, *, name: str = "the input",
                 dtype: np.typing.DTypeLike | None = None) -> DeviceArray:
        """Return another library's array in the device's memory, where `holds` is true.

        It shares the array's memory and keeps it alive. Work that is pending on the array ends
        before later work of the stream.

        Parameters
        ----------
        array : Any
            The array.
        stream : Any
            The stream whose work will read the array.
        name : str
            Name of the array, for the error's message.
        dtype : dtype, optional
            The dtype that the array must have.

        Returns
        -------
        DeviceArray
            The array.

        Raises
        ------
        DeviceError
            The device takes no arrays of other libraries.
        InputError
            The array lies elsewhere, is not contiguous, or has another dtype; the message says
            what to do.
        """
        raise self._without_arrays()

    def empty_array(self, spec: TensorSpec, purpose: str, stream: Any = None) -> DeviceArray:
        """Allocate an array that other libraries can read, on a device that takes theirs.

        Parameters
        ----------
        spec : TensorSpec
            Shape and dtype of the array.
        purpose : str
            Use of the memory, for the error's message.
        stream : Any
            The stream whose work fills the array.

        Returns
        -------
        DeviceArray
            The array.

        Raises
        ------
        DeviceError
            The device exchanges no arrays with other libraries.
        OutOfMemoryError
            The device has too little memory.
        """
        raise self._without_arrays()

    def array_in(self, buffer: Buffer, spec: TensorSpec, stream: Any = None) -> DeviceArray:
        """Return an array over memory of the device, on a device that takes those of libraries.

        Parameters
        ----------
        buffer : Buffer
            The memory, which lives as long as the array.
        spec : TensorSpec
            Shape and dtype of the array.
        stream : Any
            The stream whose work fills the array.

        Returns
        -------
        DeviceArray
            The array.

        Raises
        ------
        DeviceError
            The device exchanges no arrays with other libraries.
        """
        raise self._without_arrays()

    def like(self, array: Any, result: DeviceArray) -> Any:
        """Return a result as an array of the library of another array, over the same memory.

        Parameters
        ----------
        array : Any
            An array of that library.
        result : DeviceArray
            An array of this device.

        Returns
        -------
        Any
            The library's array; for libraries that gossamer does not know the result itself.

        Raises
        ------
        DeviceError
            The device exchanges no arrays with other libraries.
        """
        raise self._without_arrays()

    def _without_cuda(self, reason: str) -> DeviceError:
        return DeviceError(f"{self.name} runs no libraries for CUDA, as {reason}; use a CUDA "
                           "device")

    def _without_arrays(self) -> DeviceError:
        return DeviceError(f"{self.name} takes no arrays of other libraries; give NumPy arrays")
