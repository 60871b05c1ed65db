"""cuBLAS through nvmath-python, and cuDNN through its Python frontend.

Each library is loaded when it is first used on a device.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import DeviceError, first_line, installing

CUBLAS, CUDNN = "cuBLAS", "cuDNN"
DATA_TYPES = {"float32": 0, "float16": 2}
"""Values of cudaDataType by dtype."""
ONE, ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)
"""Values for the scale factors alpha and beta, which the libraries read from host memory."""

_INSTALL = installing("vendor")
_OLDEST_FRONTEND = (1, 32)
_OLDEST_CUDNN = 90200
"""The first version of cuDNN that reports the workspace of an engine before building it."""
_NEEDED_BY_CUDNN = ("cudart", "nvrtc", "cublasLt")
_LIBRARIES: dict[tuple[str, Device], NvmathLibrary | CudnnLibrary | str] = {}
"""Each library on each device, or the reason why the library cannot be used on the device."""
_STARTING = threading.Lock()


def dtype_of(precision: str) -> str:
    """Return the stored dtype of tensors for a variant's precision."""
    return "float16" if precision == "fp16" else "float32"


def unavailable(name: str, device: Device) -> str | None:
    """Return in one line why a library cannot be used on a device; None if it can."""
    library = _on(name, device)
    return library if isinstance(library, str) else None


def library_on(name: str, device: Device) -> Any:
    """Return a library on a device: a CudnnLibrary for CUDNN, else an NvmathLibrary.

    Raises DeviceError with the reason if the library cannot be used.
    """
    library = _on(name, device)
    if isinstance(library, str):
        raise DeviceError(f"{device.name}: {library}")
    return library


def loaded_version(name: str, device: Device) -> str:
    """Return the version of a library on a device; empty if it is unavailable."""
    library = _on(name, device)
    return "" if isinstance(library, str) else library.version


def _on(name: str, device: Device) -> NvmathLibrary | CudnnLibrary | str:
    """Return a library, or why it cannot be used. The first call loads the library."""
    key = (name, device)
    if key not in _LIBRARIES:
        with _STARTING:
            if key not in _LIBRARIES:
                _LIBRARIES[key] = _started(name, device)
    return _LIBRARIES[key]


def _started(name: str, device: Device) -> NvmathLibrary | CudnnLibrary | str:
    if not device.runs_cuda_libraries:
        return f"{name} runs on NVIDIA GPUs only"
    return _started_cudnn(device) if name == CUDNN else _started_nvmath(device)


class NvmathLibrary:
    """cuBLAS with its handle on one device.

    api: module of the library's bindings.
    handle: handle of the library, to be used only inside `calling`.
    version: the library's own version number.
    """

    def __init__(self, device: Device) -> None:
        self.api = importlib.import_module("nvmath.bindings.cublasLt")
        self.device = device
        self._lock = threading.Lock()
        with device.current():
            self.handle = self.api.create()
            self.version = str(self.api.get_version())

    @contextlib.contextmanager
    def calling(self, what: str) -> Iterator[Any]:
        """Yield the bindings' module for exclusive use.

        Within the block the device's context is current, and no other thread uses the bindings.
        Raises DeviceError with the failed operation and the library's error.

        what: the operation, for the message.
        """
        with self._lock, self.device.current():
            try:
                yield self.api
            except Exception as error:  # each binding has its own exceptions
                raise DeviceError(f"{self.device.name}: {CUBLAS} failed {what}: "
                                  f"{first_line(error)}") from error


def _started_nvmath(device: Device) -> NvmathLibrary | str:
    try:
        return NvmathLibrary(device)
    except ModuleNotFoundError as error:
        if error.name == "nvmath":
            return f"nvmath-python is not installed: {_INSTALL}"
        return f"nvmath-python cannot be loaded: {first_line(error)}"
    except Exception as error:  # loading and starting can fail in many ways
        return f"{CUBLAS} cannot be loaded: {first_line(error)}; {_INSTALL}"


class CudnnLibrary:
    """cuDNN with its handles on one device.

    A handle is used by only one thread at a time.

    api: the frontend's module.
    version: version of cuDNN, not of the frontend.
    failures: exception classes that the frontend's calls raise.
    """

    def __init__(self, api: Any, device: Device) -> None:
        self.api = api
        self.version: str = api.backend_version_string()
        self.failures = (api.cudnnGraphNotSupportedError, RuntimeError, ValueError)
        self._device = device
        with device.current():
            self._free: deque[tuple[Any, Any]] = deque([self._created()])
            """Unused handles, each with its own stream."""

    def _created(self) -> tuple[Any, Any]:
        handle, stream = self.api.create_handle(), self._device.create_stream()
        self.api.set_stream(handle, self._device.stream_handle(stream))
        return handle, stream

    @contextlib.contextmanager
    def handle(self) -> Iterator[Any]:
        """Yield a handle for exclusive use, with the device's context current.

        cuDNN works on the handle's own stream while it builds or deserialises an execution plan.
        """
        with self._taken() as (handle, _):
            yield handle

    @contextlib.contextmanager
    def handle_on(self, stream: Any) -> Iterator[Any]:
        """Yield a handle for exclusive use, with a given stream instead of the handle's own."""
        with self._taken() as (handle, own_stream):
            self.api.set_stream(handle, self._device.stream_handle(stream))
            try:
                yield handle
            finally:
                # Restore the handle's own stream, because the frontend captures work on the
                # handle's stream to deserialise a plan. If the handle kept the given stream, work
                # that other threads queue on this stream would be captured instead of executed. If
                # the given stream had been destroyed, the process would crash.
                self.api.set_stream(handle, self._device.stream_handle(own_stream))

    @contextlib.contextmanager
    def _taken(self) -> Iterator[tuple[Any, Any]]:
        with self._device.current():
            try:
                taken = self._free.pop()
            except IndexError:
                taken = self._created()
            try:
                yield taken
            finally:
                self._free.append(taken)


def _started_cudnn(device: Device) -> CudnnLibrary | str:
    api = _frontend()
    if isinstance(api, str):
        return api
    try:
        return CudnnLibrary(api, device)
    except Exception as error:  # starting can fail in many ways
        return f"cuDNN does not start: {first_line(error)}"


@functools.cache
def _frontend() -> Any:
    """Return cuDNN's frontend, or why the frontend or cuDNN is missing, too old or broken.

    Importing the frontend loads cuDNN.
    """
    try:
        api = importlib.import_module("cudnn")
    except ModuleNotFoundError as error:
        if error.name == "cudnn":
            return f"cuDNN is not installed: {_INSTALL}"
        return f"cuDNN's frontend cannot be loaded: {first_line(error)}"
    except Exception as error:  # the import opens the library, which can fail in many ways
        return f"cuDNN cannot be loaded: {first_line(error)}"
    version = str(getattr(api, "__version__", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _OLDEST_FRONTEND:
        oldest = ".".join(map(str, _OLDEST_FRONTEND))
        return f"nvidia-cudnn-frontend {version} is older than {oldest}: {_INSTALL}"
    try:
        library = api.backend_version()
    except RuntimeError:
        return f"cuDNN's library (libcudnn.so.9) was not found: {_INSTALL}"
    if library < _OLDEST_CUDNN:
        return f"cuDNN {api.backend_version_string()} is older than 9.2: {_INSTALL}"
    needed_libraries()
    return api


@functools.cache
def needed_libraries() -> tuple[str, ...]:
    """Load the libraries that cuDNN needs; return the names of the libraries that were found.

    The libraries are loaded from pip's installation folders, because cuDNN itself searches only the
    system's folders.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except ImportError:
        return ()
    found = []
    for name in _NEEDED_BY_CUDNN:
        # if a library is missing, the cuDNN engines that need it fail later with their own errors
        with contextlib.suppress(Exception):
            load_nvidia_dynamic_lib(name)
            found.append(name)
    return tuple(found)
