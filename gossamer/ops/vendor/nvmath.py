"""cuBLAS and cuSPARSE through nvmath-python, which are loaded when they are first used."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import DeviceError, installing
from gossamer.ops.vendor.loaded import Loaded

_INSTALL = installing("vendor")
CUBLAS, CUSPARSE = "cuBLAS", "cuSPARSE"
DATA_TYPES = {"float32": 0, "float16": 2}
"""CUDA's numbers of the dtypes (cudaDataType)."""
_LIBRARIES: Loaded[NvmathLibrary] = Loaded()
"""Each library on each device, or the reason why it cannot be used there."""
ONE, ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)
"""The scale factors alpha and beta of products, which the libraries read from host memory."""


def dtype_of(precision: str) -> str:
    """Returns the dtype that tensors have in memory for a variant's precision."""
    return "float16" if precision == "fp16" else "float32"


class NvmathLibrary:
    """cuBLAS or cuSPARSE with its handle on one device.

    api: module of the library's bindings.
    handle: handle of the library, for calls inside `calling`.
    version: the library's own version number.
    """

    def __init__(self, name: str, device: Device) -> None:
        self.name = name
        self.api = _bindings(name)
        self.device = device
        self._lock = threading.Lock()
        with device.current():
            self.handle = self.api.create()
            # get_version takes a handle in cuSPARSE and no argument in cuBLASLt
            self.version = str(self.api.get_version(*([self.handle] if name == CUSPARSE else [])))

    @contextlib.contextmanager
    def calling(self, what: str) -> Iterator[Any]:
        """Yields the bindings' module while no other thread uses it, with the device's context
        current. Raises DeviceError that names the failed operation and the library's error.

        what: the operation, for the message.
        """
        with self._lock, self.device.current():
            try:
                yield self.api
            except Exception as error:  # each binding has its own exceptions
                raise DeviceError(f"{self.device.name}: {self.name} failed {what}: "
                                  f"{_first_line(error)}") from error


def unavailable(name: str, device: Device) -> str | None:
    """Returns one line with the reason why a library cannot be used on a device; None where the
    library can be used."""
    library = _on(name, device)
    return library if isinstance(library, str) else None


def library_on(name: str, device: Device) -> NvmathLibrary:
    """Returns a library on a device. Raises DeviceError with the reason where the library cannot be
    used."""
    library = _on(name, device)
    if isinstance(library, str):
        raise DeviceError(f"{device.name}: {library}")
    return library


def loaded_version(name: str, device: Device) -> str:
    """Returns the version of a library on a device; empty where the library cannot be used."""
    library = _on(name, device)
    return "" if isinstance(library, str) else library.version


def _on(name: str, device: Device) -> NvmathLibrary | str:
    return _LIBRARIES.of((name, device), lambda: _started(name, device))


def _started(name: str, device: Device) -> NvmathLibrary | str:
    if not device.runs_cuda_libraries:
        return f"{name} runs on NVIDIA GPUs only"
    try:
        return NvmathLibrary(name, device)
    except ModuleNotFoundError as error:
        if error.name == "nvmath":
            return f"nvmath-python is not installed: {_INSTALL}"
        return f"nvmath-python cannot be loaded: {_first_line(error)}"
    except Exception as error:  # loading and starting can fail in many ways
        return f"{name} cannot be loaded: {_first_line(error)}; {_INSTALL}"


def _bindings(name: str) -> Any:
    return importlib.import_module(
        {CUBLAS: "nvmath.bindings.cublasLt", CUSPARSE: "nvmath.bindings.cusparse"}[name])


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
