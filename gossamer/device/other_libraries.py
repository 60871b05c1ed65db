"""Interoperation with other libraries: arrays, memory and streams."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from gossamer.device.core import Buffer
from gossamer.errors import DeviceError
from gossamer.tensor import TensorSpec


class DeviceArray(Protocol):
    """A C-contiguous array in device memory that supports DLPack."""

    @property
    def buffer(self) -> Buffer:
        """The memory of the array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the array."""


class OtherLibraries(abc.ABC):
    """Capabilities of devices that share memory with other libraries.

    The inherited methods raise a DeviceError; devices with these capabilities override the methods.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name that users specify; error messages begin with it."""

    @property
    def runs_cuda_libraries(self) -> bool:
        """True if CUDA libraries can use the device's memory and streams.

        Examples of CUDA libraries are cuBLAS, cuDNN, PyTorch and JAX. These libraries
        need `Buffer.address`, `stream_handle`, `current`, `keep` and `wrap`.
        """
        return False

    def stream_handle(self, stream: Any) -> int:
        """Return CUDA's handle of a stream. Requires `runs_cuda_libraries`.

        Parameters
        ----------
        stream : Any
            A stream of the device, or of a library that uses the device.

        Returns
        -------
        int
            The handle.

        Raises
        ------
        DeviceError
            The device has no CUDA streams.
        InputError
            The object is not a stream.
        """
        raise self._without_cuda("its streams have no handles")

    def current(self) -> AbstractContextManager[None]:
        """Return a context manager that makes the device's CUDA context current.

        Returns
        -------
        context manager
            The context manager affects only the calling thread.

        Raises
        ------
        DeviceError
            The device has no CUDA context.
        """
        raise self._without_cuda("it has no CUDA context")

    def keep(self, *objects: Any) -> None:
        """Keep objects alive as long as the graph being recorded.

        Launches and copies already keep their arguments alive. The call does nothing if the calling
        thread is not recording a graph.

        Parameters
        ----------
        *objects : Any
            Objects used by a library call: buffers, descriptors, plans.
        """
        return None

    def wrap(self, address: int, nbytes: int, owner: object) -> Buffer:
        """Wrap another library's memory as a buffer. Requires `runs_cuda_libraries`.

        Parameters
        ----------
        address : int
            First byte of the memory.
        nbytes : int
            Size in bytes.
        owner : object
            The owner of the memory; the buffer keeps it alive.

        Returns
        -------
        Buffer
            The same memory.

        Raises
        ------
        DeviceError
            Memory of the device has no addresses.
        """
        raise self._without_cuda("its memory has no addresses")

    def holds(self, array: Any) -> bool:
        """Return whether another library's array is on a device that can share its memory.

        Parameters
        ----------
        array : Any
            An array that supports DLPack or the CUDA array interface.

        Returns
        -------
        bool
            True if the array should be passed to `incoming`: `incoming` either accepts the array
            without a copy, or raises an error that says why the array must be moved first.
        """
        return False

    def incoming(self, array: Any, stream: Any = None, *, name: str = "the input",
                 dtype: np.typing.DTypeLike | None = None) -> DeviceArray:
        """Convert another library's array without a copy. Requires `holds(array)`.

        The returned array shares the memory and keeps it alive. Later work of `stream` waits for
        pending work on the array.

        Parameters
        ----------
        array : Any
            The array.
        stream : Any
            The stream that will read the array.
        name : str
            Name of the array, for the error message.
        dtype : dtype, optional
            The dtype that the array must have.

        Returns
        -------
        DeviceArray
            The array.

        Raises
        ------
        DeviceError
            The device does not accept arrays of other libraries.
        InputError
            The array is on another device, is not contiguous, or has another dtype; the message
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
            Use of the memory, for the error message.
        stream : Any
            The stream that fills the array.

        Returns
        -------
        DeviceArray
            The array.

        Raises
        ------
        DeviceError
            The device does not exchange arrays with other libraries.
        OutOfMemoryError
            The device has too little memory.
        """
        raise self._without_arrays()

    def array_in(self, buffer: Buffer, spec: TensorSpec, stream: Any = None) -> DeviceArray:
        """Return device memory as an array that other libraries can read.

        Parameters
        ----------
        buffer : Buffer
            The memory; the array keeps it alive.
        spec : TensorSpec
            Shape and dtype of the array.
        stream : Any
            The stream that fills the array.

        Returns
        -------
        DeviceArray
            The array.

        Raises
        ------
        DeviceError
            The device does not exchange arrays with other libraries.
        """
        raise self._without_arrays()

    def like(self, array: Any, result: DeviceArray) -> Any:
        """Convert a result to the library of an array, without a copy.

        Parameters
        ----------
        array : Any
            An array of the library.
        result : DeviceArray
            An array of this device.

        Returns
        -------
        Any
            The library's array; the result itself if gossamer does not know the library.

        Raises
        ------
        DeviceError
            The device does not exchange arrays with other libraries.
        """
        raise self._without_arrays()

    def _without_cuda(self, reason: str) -> DeviceError:
        return DeviceError(f"{self.name} does not support CUDA libraries, since {reason}; use a "
                           "CUDA device")

    def _without_arrays(self) -> DeviceError:
        return DeviceError(f"{self.name} does not accept arrays of other libraries; "
                           "pass NumPy arrays")


def library(array: Any) -> str:
    """Return the package that defines an array: numpy, torch, cupy, jax or another."""
    package = type(array).__module__.split(".")[0]
    return "jax" if package == "jaxlib" else package
