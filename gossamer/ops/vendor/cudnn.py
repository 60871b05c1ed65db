"""cuDNN on a CUDA device, through NVIDIA's Python frontend, which is loaded when it is first
used."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import DeviceError, first_line, installing
from gossamer.ops.vendor.loaded import Loaded

_OLDEST_FRONTEND = (1, 32)
_OLDEST_LIBRARY = 90200
"""The first version of cuDNN that reports the workspace of an engine before the engine is built."""

_INSTALL = installing("vendor")
_LIBRARIES: Loaded[CudnnLibrary] = Loaded()
"""cuDNN on each device, or the reason why it cannot be used there."""
_NEEDED_LIBRARIES = ("cudart", "nvrtc", "cublasLt")


class CudnnLibrary:
    """cuDNN with its handles on one device. Only one thread at a time uses a handle.

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
            """Handles that no thread uses now, each with a stream of its own."""

    def _created(self) -> tuple[Any, Any]:
        handle, stream = self.api.create_handle(), self._device.create_stream()
        self.api.set_stream(handle, self._device.stream_handle(stream))
        return handle, stream

    @contextlib.contextmanager
    def handle(self) -> Iterator[Any]:
        """Yields a handle that no other thread uses, with the device's context current. The handle
        has its own stream, on which cuDNN works while it builds or deserialises an execution
        plan."""
        with self._taken() as (handle, _):
            yield handle

    @contextlib.contextmanager
    def handle_on(self, stream: Any) -> Iterator[Any]:
        """Yields a handle as `handle` does, but with a given stream in place of the handle's own
        stream."""
        with self._taken() as (handle, own_stream):
            self.api.set_stream(handle, self._device.stream_handle(stream))
            try:
                yield handle
            finally:
                # The handle gets its own stream back. To deserialise a plan, the frontend captures
                # work on the handle's stream: the process would end if the given stream was
                # destroyed by then, and work that another thread queues on the given stream would
                # be captured instead of executed.
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


def unavailable(device: Device) -> str | None:
    """Returns the reason why cuDNN cannot be used on a device, with a remedy; None where cuDNN can
    be used."""
    library = _on(device)
    return library if isinstance(library, str) else None


def library_on(device: Device) -> CudnnLibrary:
    """Returns cuDNN on a device. Raises DeviceError with the reason where cuDNN cannot be used."""
    library = _on(device)
    if isinstance(library, str):
        raise DeviceError(f"{device.name}: {library}")
    return library


def loaded_version(device: Device) -> str:
    """Returns the version of cuDNN on a device; empty where cuDNN cannot be used."""
    library = _on(device)
    return "" if isinstance(library, str) else library.version


def _on(device: Device) -> CudnnLibrary | str:
    return _LIBRARIES.of(device, lambda: _started(device))


def _started(device: Device) -> CudnnLibrary | str:
    if not device.runs_cuda_libraries:
        return "cuDNN runs on NVIDIA GPUs only"
    api = _loaded()
    if isinstance(api, str):
        return api
    try:
        return CudnnLibrary(api, device)
    except Exception as error:  # starting can fail in many ways
        return f"cuDNN does not start: {first_line(error)}"


@functools.cache
def _loaded() -> Any:
    """Returns the frontend's module; its import loads cuDNN. Returns a text with the reason where
    the frontend or cuDNN is missing, too old or broken."""
    try:
        api = importlib.import_module("cudnn")
    except ModuleNotFoundError as error:
        if error.name == "cudnn":
            return f"cuDNN is not installed: {_INSTALL}"
        return f"cuDNN's frontend cannot be loaded: {first_line(error)}"
    except Exception as error:  # the import opens the library, which can fail in many ways
        return f"cuDNN cannot be loaded: {first_line(error)}"
    version = str(getattr(api, "__version__", "0"))
    if _numbers(version) < _OLDEST_FRONTEND:
        oldest = ".".join(map(str, _OLDEST_FRONTEND))
        return f"nvidia-cudnn-frontend {version} is older than {oldest}: {_INSTALL}"
    try:
        library = api.backend_version()
    except RuntimeError:
        return f"cuDNN's library (libcudnn.so.9) was not found: {_INSTALL}"
    if library < _OLDEST_LIBRARY:
        return f"cuDNN {api.backend_version_string()} is older than 9.2: {_INSTALL}"
    needed_libraries()
    return api


@functools.cache
def needed_libraries() -> tuple[str, ...]:
    """Loads the libraries of _NEEDED_LIBRARIES from the folders where pip installs them, because
    cuDNN itself looks for them in the system's folders. Returns the names of the libraries that
    were found."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except ImportError:
        return ()
    found = []
    for name in _NEEDED_LIBRARIES:
        # a cuDNN engine that needs a missing library fails later, with its own error
        with contextlib.suppress(Exception):
            load_nvidia_dynamic_lib(name)
            found.append(name)
    return tuple(found)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
