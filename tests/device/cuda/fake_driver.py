"""A CUDA driver that is not there: it notes its calls, and fails those that a test chooses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from cuda.bindings import driver

from gossamer.device.cuda.device import CudaDevice

SUCCESS = driver.CUresult.CUDA_SUCCESS
CONTEXT = 500
"""The handle of the context of every device."""
_MADE = ("cuStreamCreate", "cuMemAlloc", "cuMemAllocFromPoolAsync", "cuMemPoolCreate",
         "cuEventCreate", "cuGraphCreate", "cuGraphInstantiate", "cuGraphAddChildGraphNode",
         "cuGraphAddEventRecordNode", "cuGraphAddMemcpyNode", "cuStreamEndCapture",
         "cuModuleLoadData", "cuModuleGetFunction", "cuMemHostAlloc")
"""The functions that return a new handle or address."""
_DONE = ("cuStreamDestroy", "cuMemFree", "cuMemFreeAsync", "cuMemPoolSetAttribute",
         "cuEventRecord", "cuEventDestroy", "cuEventSynchronize", "cuStreamWaitEvent",
         "cuStreamSynchronize", "cuStreamQuery", "cuCtxSynchronize", "cuStreamBeginCapture",
         "cuGraphDestroy", "cuGraphExecDestroy", "cuGraphLaunch", "cuLaunchKernel",
         "cuLaunchKernelEx", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync",
         "cuModuleUnload", "cuFuncSetAttribute", "cuGraphMemcpyNodeSetParams",
         "cuGraphExecMemcpyNodeSetParams", "cuMemFreeHost", "cuMemHostRegister")
"""The functions that return a status only."""


class FakeDriver:
    """The driver's functions, in the place of the real ones.

    calls: the text of each call. failing: the statuses that the next calls of a function return.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.failing: dict[str, list[Any]] = {}
        self.numbers: dict[str, int] = {"COMPUTE_CAPABILITY_MAJOR": 9}
        self.attributes: dict[str, int] = {}
        self.parameters: list[tuple[int, int]] = []
        self.contexts = [CONTEXT]
        self._made = itertools.count(1000)
        values = {
            "cuDeviceGet": lambda index: 10 + index,
            "cuDeviceGetName": lambda length, of: b"Made GPU\0\0",
            "cuDevicePrimaryCtxRetain": lambda of: CONTEXT,
            "cuDeviceGetAttribute": lambda member, of: self.numbers.get(
                member.name.removeprefix("CU_DEVICE_ATTRIBUTE_"), 0),
            "cuDeviceTotalMem": lambda of: 2**33, "cuDriverGetVersion": lambda: 13010,
            "cuCtxGetCurrent": lambda: self.contexts[-1], "cuCtxPushCurrent": self.contexts.append,
            "cuCtxPopCurrent": self.contexts.pop, "cuEventElapsedTime": lambda *events: 0.25,
            "cuGetErrorString": lambda code: b"wrong", "cuMemGetInfo": lambda: 3,
            "cuFuncGetAttribute": lambda member, of: self.attributes.get(
                member.name.removeprefix("CU_FUNC_ATTRIBUTE_"), 0),
            **dict.fromkeys(_MADE, lambda *arguments: next(self._made)),
            **dict.fromkeys(_DONE)}
        for name, value in values.items():
            monkeypatch.setattr(driver, name, self._function(name, value))
        monkeypatch.setattr(driver, "cuFuncGetParamInfo", lambda of, index: (
            (SUCCESS, *self.parameters[index]) if index < len(self.parameters)
            else (driver.CUresult.CUDA_ERROR_INVALID_VALUE, 0, 0)))

    def _function(self, name: str, value: Any) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            if not name.startswith(("cuCtx", "cuGetError", "cuDevice", "cuFuncGet")):
                self.calls.append(" ".join((name.removeprefix("cu"), *map(_text, arguments))))
            status = self.failing[name].pop(0) if self.failing.get(name) else SUCCESS
            if value is None or (status != SUCCESS and name in _MADE):
                return (status,) if value is None else (status, 0)
            return status, value(*arguments)
        return call

    def clear(self) -> None:
        """Forgets the calls so far, and the statuses of the next ones."""
        self.calls.clear()
        self.failing.clear()


def _text(value: Any) -> str:
    """Returns a text of an argument; addresses of the host are left out."""
    if hasattr(value, "name"):
        return str(value.name)
    if isinstance(value, bytes | list | tuple) or value is None:
        return str(value)
    try:
        number = int(value)
    except (TypeError, ValueError):
        return type(value).__name__
    return str(number) if number < 10**6 or number == 2**64 - 1 else "host"


@contextmanager
def fake_device(index: int = 0) -> Iterator[CudaDevice]:
    """Gives a device of the fake driver, which no real driver is asked about afterwards."""
    made = CudaDevice(index)
    try:
        yield made
    finally:
        made._current = nullcontext()  # type: ignore[assignment]
