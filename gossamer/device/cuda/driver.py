"""The CUDA driver API: checked calls, the current context, device limits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.errors import DeviceError, DeviceLostError


class DriverError(DeviceError):
    """A failed driver call, with its status and the driver's description."""

    def __init__(self, code: driver.CUresult) -> None:
        self.code = code
        status, text = driver.cuGetErrorString(code)
        description = text.decode() if status == driver.CUresult.CUDA_SUCCESS else "unknown error"
        super().__init__(f"{code.name}: {description}")


_FINAL = {getattr(driver.CUresult, f"CUDA_ERROR_{name}") for name in (
    "ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "ILLEGAL_INSTRUCTION",
    "INVALID_PC", "HARDWARE_STACK_ERROR", "ASSERT", "LAUNCH_FAILED", "LAUNCH_TIMEOUT",
    "ECC_UNCORRECTABLE", "NVLINK_UNCORRECTABLE", "CONTEXT_IS_DESTROYED")}
"""Statuses after which all further calls with the same context fail."""


def device_error(what: str, error: DriverError) -> DeviceError:
    """Return the error of a failed driver call.

    what: text that names the device and the work that failed.
    """
    if error.code not in _FINAL:
        return DeviceError(f"{what}: {error}")
    return DeviceLostError(f"{what}: {error}; this process can no longer use the device: "
                           "restart the process")


def check(result: tuple[Any, ...]) -> Any:
    """Return the results of a driver call without the status.

    A single result is returned directly, several results as a tuple. Raises DriverError on failure.
    """
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(result[0])
    return result[1] if len(result) == 2 else result[1:]


class DriverDevice(Device):
    """A device of the CUDA driver, with checked driver calls."""

    def checked(self, what: str, result: tuple[Any, ...]) -> Any:
        """Return the results of a driver call, like check().

        what: description of the call for error messages.
        Raises DeviceError on failure.
        """
        try:
            return check(result)
        except DriverError as error:
            raise device_error(f"{self.name} failed {what}", error) from None

    def call(self, what: str, call: Callable[..., tuple[Any, ...]], *arguments: Any) -> None:
        """Make a driver call, and retry it in the device's context if it fails.

        A call fails in a thread whose current context is missing or belongs to another device. To
        save time, the device's context is made current only for the second attempt.
        """
        if call(*arguments)[0] != driver.CUresult.CUDA_SUCCESS:
            with self.current():
                self.checked(what, call(*arguments))


class Current:
    """A context manager that makes a device's context current.

    On exit, the thread's previous context, which another library may have set, is restored.
    """

    _entered = threading.local()
    """The contexts that each thread has entered, as pairs (handle, whether it was pushed).

    Entering the thread's innermost context again needs no driver call.
    """

    def __init__(self, context: driver.CUcontext) -> None:
        self._context = context
        self._handle = int(context)

    def __enter__(self) -> None:
        stack = self._entered.__dict__.setdefault("stack", [])
        is_inner = bool(stack) and stack[-1][0] == self._handle
        foreign = not is_inner and int(driver.cuCtxGetCurrent()[1]) != self._handle
        if foreign:
            check(driver.cuCtxPushCurrent(self._context))
        stack.append((self._handle, foreign))

    def __exit__(self, *_: object) -> None:
        if self._entered.stack.pop()[1]:
            driver.cuCtxPopCurrent()


def quietly(device: DriverDevice, call: Callable[..., Any], *arguments: Any) -> None:
    """Make a driver call that frees a resource, and ignore errors.

    Errors are expected if an earlier call failed fatally, or if the driver was shut down at exit.
    """
    try:
        with device.current():
            call(*arguments)
    except Exception:
        pass


def count() -> int:
    """Return the number of NVIDIA devices.

    Raises DeviceError with the reason if no device can be used.
    """
    try:
        check(driver.cuInit(0))
        devices = int(check(driver.cuDeviceGetCount()))
    except RuntimeError:
        raise DeviceError("no NVIDIA driver found (libcuda.so.1); install NVIDIA's driver for "
                          "CUDA 13 (580 or newer)") from None
    except DriverError as error:
        raise DeviceError(f"the NVIDIA driver does not work: {error}") from None
    if not devices:
        raise DeviceError("the NVIDIA driver reports no GPU; check CUDA_VISIBLE_DEVICES")
    return devices


def device_of(pointer: int) -> int:
    """Return the index of the device whose memory contains an address.

    Raises DriverError if the address is in no device's memory.
    """
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(check(driver.cuPointerGetAttribute(attribute, pointer)))


def driver_version() -> str:
    """Return the CUDA version of the driver, and the driver version if known."""
    version = int(check(driver.cuDriverGetVersion()))
    text = f"CUDA {version // 1000}.{version % 1000 // 10}"
    try:
        with open("/sys/module/nvidia/version") as file:
            text += f", driver {file.read().strip()}"
    except OSError:
        pass
    return text


def limits_of(device: driver.CUdevice) -> tuple[Limits, tuple[int, int]]:
    """Return the limits of a device and its compute capability (major, minor)."""
    def attribute(name: str) -> int:
        member = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(driver.cuDeviceGetAttribute(member, device)))

    capability = (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR"))
    return Limits(
        compute_units=attribute("MULTIPROCESSOR_COUNT"),
        memory_bytes=int(check(driver.cuDeviceTotalMem(device))),
        shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
        shared_bytes_opt_in=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        work_group_size=attribute("MAX_THREADS_PER_BLOCK"),
        subgroup_size=attribute("WARP_SIZE"),
        sure_work_group_size=attribute("MAX_THREADS_PER_BLOCK"),
        cache_bytes=attribute("L2_CACHE_SIZE"),
        graph=True,
        mma=capability >= (8, 0),
        wgmma=capability == (9, 0),
        cluster=(16 if capability == (9, 0) else 8) if attribute("CLUSTER_LAUNCH") else 1,
    ), capability
