"""CUDA arrays shared with torch, cupy, jax and others through DLPack."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from cuda.core import Buffer as CoreBuffer
from cuda.core.utils import StridedMemoryView

from gossamer.device.cuda.driver import DriverDevice, DriverError, device_of
from gossamer.device.cuda.memory import CudaBuffer
from gossamer.device.cuda.streams import LEGACY_STREAM
from gossamer.device.other_libraries import library
from gossamer.errors import InputError, kind_of

_CUDA, _CUDA_MANAGED = 2, 13
"""DLPack's device type codes kDLCUDA and kDLCUDAManaged."""
_TO_CONTIGUOUS = {
    "torch": "x.contiguous()",
    "cupy": "cupy.ascontiguousarray(x)",
    "jax": "jax.numpy.copy(x)",
}


class CudaArray:
    """A C-contiguous array in the memory of a CUDA device.

    Other libraries read an array `a` without a copy: torch.from_dlpack(a), cupy.from_dlpack(a),
    jax.dlpack.from_dlpack(a). The library's stream waits for the stream that fills the array, and
    the library's array keeps the memory alive.

    stream: the stream that fills the array; None is the device's default stream.
    """

    def __init__(self, buffer: CudaBuffer, shape: tuple[int, ...], dtype: np.typing.DTypeLike,
                 stream: Any = None) -> None:
        self.buffer = buffer
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.stream = stream

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def numpy(self) -> np.ndarray:
        """Return a copy in host memory; the copy is complete on return."""
        array = np.empty(self.shape, self.dtype)
        self.buffer.device.read(self.buffer, array, self._open_stream())
        return array

    def __array__(self, dtype: np.typing.DTypeLike | None = None,
                  copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a CudaArray cannot become a NumPy array without a copy; "
                             "omit copy=False")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError("a CudaArray can be exported only on its own device")
        if copy:
            raise BufferError("a CudaArray can be exported only without a copy; omit copy=True")
        device = self.buffer.device
        if stream != -1:
            consumer = LEGACY_STREAM if stream is None else stream
            device.wait(consumer, self.stream)
            self.buffer.used_on(consumer)
        with device.current():
            memory = CoreBuffer.from_handle(self.buffer.address, self.nbytes, owner=self.buffer)
            view = StridedMemoryView.from_buffer(memory, self.shape, dtype=self.dtype)
            return view.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.buffer.device.index

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.buffer.address if self.nbytes else 0, False),
            "strides": None,
            # the interface forbids the handle 0; 1 denotes the legacy stream
            "stream": self.buffer.device.stream_handle(self._open_stream()) or LEGACY_STREAM,
        }

    def _open_stream(self) -> Any:
        """Return the stream that fills the array, if it is still open.

        If the stream has been closed, wait for its work and return the device's default stream.
        """
        device = self.buffer.device
        if not device.is_closed(self.stream):
            return self.stream
        device.wait(None, self.stream)
        return None

    def __repr__(self) -> str:
        return f"CudaArray({self.shape}, {self.dtype}, {self.buffer.device.name})"


class _DLPackOnly:
    """A wrapper that exposes only the DLPack interface of an array.

    StridedMemoryView then cannot use other interfaces of the array.
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self.array.__dlpack_device__()
        return int(kind), int(index)


def cuda_index(array: Any) -> int | None:
    """Return the index of an array's CUDA device; None for other memory.

    Raises InputError if the address in a CUDA array interface belongs to no device.
    """
    if isinstance(array, np.ndarray):
        return None
    if hasattr(array, "__dlpack_device__"):
        kind, index = array.__dlpack_device__()
        return int(index) if int(kind) in (_CUDA, _CUDA_MANAGED) else None
    if not hasattr(array, "__cuda_array_interface__"):
        return None
    address = array.__cuda_array_interface__["data"][0]
    try:
        # an empty array has no address
        return device_of(address) if address else 0
    except DriverError as error:
        raise InputError(f"{kind_of(array)} at address {address:#x} is not in the memory of "
                         f"a CUDA device ({error})") from None


def incoming(array: Any, device: DriverDevice, stream: Any = None, *,
             name: str = "the input", dtype: np.typing.DTypeLike | None = None) -> CudaArray:
    """Return another library's array as a CudaArray; see `OtherLibraries.incoming`."""
    if isinstance(array, CudaArray) and array.buffer.device is device:
        _check(name, array.dtype, dtype)
        device.wait(stream, array.stream)
        array.buffer.used_on(stream)
        return array
    array_index = cuda_index(array)
    if array_index != device.index:
        location = "host memory" if array_index is None else f"cuda:{array_index}"
        raise InputError(f"{name} is in {location}, but the plan runs on {device.name}; "
                         f"move it to {device.name}")
    consumer = device.stream_handle(stream) or LEGACY_STREAM
    try:
        with device.current():
            if hasattr(array, "__dlpack__"):
                view = StridedMemoryView.from_dlpack(_DLPackOnly(array), stream_ptr=consumer)
            else:
                view = StridedMemoryView.from_cuda_array_interface(array, stream_ptr=consumer)
            shape, strides, kind = view.shape, view.strides, view.dtype
    except Exception as error:  # each library has its own exceptions
        raise InputError(f"{name} cannot be read through DLPack: {error}") from None
    if kind is None or kind.kind not in "biuf":
        raise InputError(f"{name} has unsupported dtype {kind}; convert it to float32")
    _check(name, kind, dtype)
    if not _is_contiguous(shape, strides):
        remedy = _TO_CONTIGUOUS.get(library(array), "a contiguous copy")
        raise InputError(f"{name} is not contiguous (shape {shape}, strides {strides}); "
                         f"pass {remedy}")
    nbytes = math.prod(shape) * kind.itemsize
    return CudaArray(CudaBuffer(device, view.ptr, nbytes, view), shape, kind, stream)


def like(array: Any, result: CudaArray) -> Any:
    """Convert a result to the library of `array`; see `OtherLibraries.like`."""
    package = library(array)
    if package == "torch":
        import torch
        return torch.from_dlpack(result)
    if package == "cupy":
        import cupy
        # cupy destroys a stream with its Python object, but passes only the handle to __dlpack__:
        # keep the object alive with the buffer
        result.buffer.used_on(cupy.cuda.get_current_stream(result.buffer.device.index))
        return cupy.from_dlpack(result)
    if package == "jax":
        import jax
        return jax.dlpack.from_dlpack(result)
    return result


def _check(name: str, dtype: np.dtype, expected: np.typing.DTypeLike | None) -> None:
    if expected is not None and dtype != np.dtype(expected):
        raise InputError(f"{name} has dtype {dtype}, expected {np.dtype(expected)}; "
                         "convert it first")


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    if strides is None or 0 in shape:
        return True
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
