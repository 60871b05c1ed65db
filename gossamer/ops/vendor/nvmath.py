"""cuBLAS and cuSPARSE through nvmath-python: loaded when they are first asked for."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import DeviceError

if TYPE_CHECKING:
    from gossamer.device.cuda.device import CudaDevice

_INSTALL = "pip install 'gossamer[vendor]'"
CUBLAS, CUSPARSE = "cuBLAS", "cuSPARSE"
DATA_TYPES = {"float32": 0, "float16": 2}
"""CUDA's numbers for them."""
ONE, ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)
"""Factors, which the libraries read from host memory."""


def dtype_of(precision: str) -> str:
    """Of what lies in memory for a variant's precision."""
    return "float16" if precision == "fp16" else "float32"


class NvmathLibrary:
    """One of the libraries with its handle on one device.

    api: the module of its bindings. handle: for calls inside `calling`. version: as the library
    numbers it.
    """

    def __init__(self, name: str, device: CudaDevice) -> None:
        self.name = name
        self.api = _bindings(name)
        self.device = device
        self._lock = threading.Lock()
        with device.current():
            self.handle = self.api.create()
            # cuSPARSE asks for a handle, cuBLASLt does not
            self.version = str(self.api.get_version(*([self.handle] if name == CUSPARSE else [])))

    @contextlib.contextmanager
    def calling(self, what: str) -> Iterator[Any]:
        """The bindings' module, for this thread alone, with the device's context current.
        Raises DeviceError that says what failed and what the library said."""
        with self._lock, self.device.current():
            try:
                yield self.api
            except Exception as error:  # each binding has errors of its own
                raise DeviceError(f"{self.device.name}: {self.name} failed {what}: "
                                  f"{_first_line(error)}") from error


def unavailable(name: str, device: Device) -> str | None:
    """Why a library cannot be used on a device, in one line; None where it can."""
    found = _on(name, device)
    return found if isinstance(found, str) else None


def library_on(name: str, device: Device) -> NvmathLibrary:
    """The library on a device. Raises DeviceError that says why it cannot be used."""
    found = _on(name, device)
    if isinstance(found, str):
        raise DeviceError(f"{device.name}: {found}")
    return found


def loaded_version(name: str, device: Device) -> str:
    """Of a library on a device, as the library numbers it; empty where it cannot be used."""
    found = _on(name, device)
    return "" if isinstance(found, str) else found.version


@functools.cache
def _on(name: str, device: Any) -> NvmathLibrary | str:
    if device.api != "cuda":
        return f"{name} runs on NVIDIA GPUs only"
    try:
        return NvmathLibrary(name, device)
    except ModuleNotFoundError as error:
        if error.name == "nvmath":
            return f"nvmath-python is not installed: {_INSTALL}"
        return f"nvmath-python cannot be loaded: {_first_line(error)}"
    except Exception as error:  # whatever keeps a library from loading or starting
        return f"{name} cannot be loaded: {_first_line(error)}; {_INSTALL}"


def _bindings(name: str) -> Any:
    return importlib.import_module(
        {CUBLAS: "nvmath.bindings.cublasLt", CUSPARSE: "nvmath.bindings.cusparse"}[name])


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
