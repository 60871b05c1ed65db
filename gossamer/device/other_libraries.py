"""How other libraries use a device's memory and streams, and which library defines an array."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from gossamer.device.core import Buffer
from gossamer.errors import DeviceError
from gossamer.tensor import TensorSpec


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


class OtherLibraries(abc.ABC):
    """The capabilities of devices in whose memory other libraries work.

    A device without these capabilities inherits methods that raise a DeviceError.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name that a user types; error messages begin with it."""

    @property
    def runs_cuda_libraries(self) -> bool:
        """True if libraries for CUDA can work in the device's memory and on its streams.

        Such libraries are cuBLAS, cuSPARSE, cuDNN, PyTorch and JAX. These libraries need
        `Buffer.address`, `stream_handle`, `current`, `keep` and `wrap`.
        """
        return False

    def stream_handle(self, stream: Any) -> int:
        """Return CUDA's handle of a stream, where `runs_cuda_libraries` is true.

        Parameters
        ----------
        stream : Any
            A stream of the device, or of a library that works on the device.

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
            The context is current in the calling thread only.

        Raises
        ------
        DeviceError
            The device has no CUDA context.
        """
        raise self._without_cuda("it has no context of CUDA")

    def keep(self, *objects: Any) -> None:
        """Keep objects alive as long as the graph that the calling thread records.

        Launches and copies do this for their own arguments. The call does nothing where the thread
        records no graph.

        Parameters
        ----------
        *objects : Any
            Objects that a library's call uses: buffers, descriptors, plans.
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
            Object that the buffer keeps alive, since the memory is freed with this object.

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
            True where `incoming` accepts the array without a copy, or says in its error why the
            array must be moved first.
        """
        return False

    def incoming(self, array: Any, stream: Any = None, *, name: str = "the input",
                 dtype: np.typing.DTypeLike | None = None) -> DeviceArray:
        """Return another library's array as an array of this device, where `holds` is true.

        The returned array shares the memory and keeps it alive. Work that is pending on the array
        ends before later work of the stream begins.

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
            The device accepts no arrays of other libraries.
        InputError
            The array lies on another device, is not contiguous, or has another dtype; the message
            says what to do.
        """
        raise self._without_arrays()

    def empty_array(self, spec: TensorSpec, purpose: str, stream: Any = None) -> DeviceArray:
        """Allocate an array that other libraries can read.

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
        """Return memory of the device as an array that other libraries can read.

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
        """Return a result as an array of the library that defines `array`, over the same memory.

        Parameters
        ----------
        array : Any
            An array of the library.
        result : DeviceArray
            An array of this device.

        Returns
        -------
        Any
            The library's array; the result itself where gossamer does not know the library.

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


def library(array: Any) -> str:
    """Return the name of the package that defines an array, such as numpy, torch, cupy or jax."""
    package = type(array).__module__.split(".")[0]
    return "jax" if package == "jaxlib" else package
