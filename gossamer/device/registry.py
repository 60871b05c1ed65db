"""The devices of this machine, with one instance of each."""

from __future__ import annotations

import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

from gossamer.device.base import Device
from gossamer.device.checks import self_check
from gossamer.device.host import HostDevice
from gossamer.device.limits import DeviceInfo
from gossamer.errors import (
    DeviceError,
    GossamerError,
    GossamerWarning,
    InputError,
    did_you_mean,
    installing,
    quoted,
)

__all__ = ["devices", "find", "find_or_best", "find_several", "names_several"]

ALL = "all"
"""The index that denotes all devices of an API, as in cuda:all."""


class _DeviceProbe:
    """A device that is opened and checked on first use.

    preferred: whether `find` may return the device when it is called without a name.
    """

    def __init__(self, name: str, description: str, open_device: Callable[[], Device],
                 preferred: bool) -> None:
        self.name = name
        self.description = description
        self.preferred = preferred
        self.problem: str | None = None
        self.device: Device | None = None
        self._open = open_device
        self._lock = threading.Lock()
        self._checked = False

    def check(self) -> Device | None:
        """Return the device if it works, else None with the reason in `problem`."""
        with self._lock:
            if not self._checked:
                self._checked = True
                try:
                    device = self._open()
                    if device.compiles:
                        self_check(device)
                    self.device = device
                except Exception as error:  # a driver may fail in any way
                    self.problem = _one_line(error)
            return self.device

    def forked(self) -> None:
        """Mark the device as unusable in a forked child, where drivers hang."""
        self._lock = threading.Lock()
        if self.name != "host":
            self.problem = ("was opened before this process was forked, and its driver works only "
                            "in the parent; start processes with "
                            "multiprocessing.get_context('spawn') or joblib")
            if self.device is not None:
                # plans still refer to the device, and would wait forever for a lock of the driver
                # that a thread of the parent held at the fork
                self.device.unusable = self.problem
            self._checked, self.device = True, None

    def info(self) -> DeviceInfo:
        """Check the device and describe it."""
        device = self.check()
        if device is None:
            return DeviceInfo(self.name, self.description, "", 0, 0, self.problem)
        return DeviceInfo(self.name, device.description, device.driver, device.limits.compute_units,
                          device.limits.memory_bytes, None)


_lock = threading.Lock()
_candidates: dict[str, list[_DeviceProbe]] = {}
"""The devices by API.

The devices of an API are searched for on first use of the API, so that a program that computes on
the host loads no CUDA or OpenCL libraries.
"""


def devices() -> list[DeviceInfo]:
    """Return every device of this machine in the order of preference.

    Each device is checked once per process by building and running a one-line kernel.

    Returns
    -------
    list of DeviceInfo
        One entry per device. If a device is unusable, `problem` says why.
    """
    return [candidate.info() for candidate in _all()]


def find(name: str | None = None) -> Device:
    """Return a device; calls for the same device return the same instance.

    Parameters
    ----------
    name : str, optional
        Name of the device, such as host, opencl:0 or cuda:1. A missing index means 0. By
        default, the best device is returned: CUDA, else an OpenCL GPU, else the host.

    Returns
    -------
    Device
        The device, after a successful check.

    Raises
    ------
    DeviceError
        No device has this name, or the device cannot be used.
    InputError
        The name is not a string.

    Warns
    -----
    GossamerWarning
        No name was given, and a GPU that does not work was skipped.
    """
    if name is None:
        return _best()
    if not isinstance(name, str):
        raise InputError(f"device {quoted(name)}: expected the name of a device, such as 'host'")
    full_name = _with_index(name.strip().lower())
    for candidate in _of(full_name.partition(":")[0]):
        if full_name == _with_index(candidate.name):
            device = candidate.check()
            if device is None:
                raise DeviceError(f"device {candidate.name} cannot be used: {candidate.problem}")
            return device
    usable = ", ".join(info.name for info in devices() if info.problem is None)
    known = {part for info in devices() for part in (info.name, info.name.partition(":")[0])}
    # torch and others call the host "cpu"
    hint = "; did you mean 'host'?" if full_name == "cpu:0" else did_you_mean(name, known)
    raise DeviceError(f"there is no device {name!r} here; usable devices: {usable}{hint}")


def names_several(device: object) -> TypeGuard[str | Sequence[str | Device]]:
    """Return whether a value names several devices, as `find_several` expects.

    Parameters
    ----------
    device : object
        The value that a caller passed as a device.

    Returns
    -------
    bool
        True for "cuda:all", a string with commas, a list or a tuple.
    """
    if isinstance(device, str):
        return "," in device or device.strip().lower().endswith(f":{ALL}")
    return isinstance(device, list | tuple)


def find_several(devices: str | Sequence[str | Device]) -> list[Device]:
    """Return several devices that share work.

    Parameters
    ----------
    devices : str or sequence of str or Device
        A sequence of names or devices, or one string of names separated by commas. "cuda:all" means
        every usable CUDA device. A device may occur twice.

    Returns
    -------
    list of Device
        The devices in the given order, at least one.

    Raises
    ------
    DeviceError
        A device does not exist or is unusable, or all devices of an API are requested and none of
        them is usable.
    InputError
        The sequence is empty, or contains something other than names and devices.

    Warns
    -----
    GossamerWarning
        All devices of an API are requested, and an unusable one is skipped.
    """
    if not isinstance(devices, str | Sequence) or not all(
            isinstance(each, str | Device) for each in devices):
        raise InputError(f"device {devices!r}: expected a name such as 'cuda:0', a Device, or a "
                         "list of these")
    parts = devices.split(",") if isinstance(devices, str) else devices
    found: list[Device] = []
    for part in parts:
        if isinstance(part, Device):
            found.append(part)
        elif part.strip().lower().endswith(f":{ALL}"):
            found += _all_of(part.strip().lower().removesuffix(f":{ALL}"))
        else:
            found.append(find(part))
    if not found:
        raise InputError("the list of devices is empty; expected names such as cuda:0 or cuda:all")
    return found


def _all_of(api: str) -> list[Device]:
    """Return every usable device of an API, and warn of unusable ones."""
    found = []
    problems = []
    for candidate in _all():
        if candidate.name.partition(":")[0] != api:
            continue
        device = candidate.check()
        if device is not None:
            found.append(device)
        else:
            problems.append(f"{candidate.name} cannot be used: {candidate.problem}")
    if not found:
        raise DeviceError(f"there is no device {api}:{ALL} here: "
                          f"{'; '.join(problems) or 'there is no such API'}")
    for problem in problems:
        warnings.warn(problem, GossamerWarning, stacklevel=4)
    return found


def find_or_best(name: str) -> Device:
    """Return a device, or the best device if the named one is unusable.

    Parameters
    ----------
    name : str
        Name of the device, as `find` accepts it.

    Returns
    -------
    Device
        The device, after a successful check.

    Warns
    -----
    GossamerWarning
        The named device is unusable, and the best device is returned.
    """
    try:
        return find(name)
    except DeviceError as error:
        device = find()
        warnings.warn(f"{error}; using {device.name} instead", GossamerWarning, stacklevel=2)
        return device


Device.reopen = staticmethod(find_or_best)


def _with_index(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _best() -> Device:
    for candidate in _all():
        if not candidate.preferred:
            continue
        device = candidate.check()
        if device is not None:
            return device
        warnings.warn(f"{candidate.name} ({candidate.description}) cannot be used: "
                      f"{candidate.problem}", GossamerWarning, stacklevel=3)
    raise DeviceError("no device of this machine works, not even the host")


def _all() -> list[_DeviceProbe]:
    """Return all devices in the order of preference."""
    return [candidate for api in _FINDERS for candidate in _of(api)]


def _of(api: str) -> list[_DeviceProbe]:
    """Return the devices of an API; empty if the API is not installed."""
    with _lock:
        if api not in _candidates and api in _FINDERS:
            _candidates[api] = list(_FINDERS[api]())
        return _candidates.get(api, [])


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for of_api in _candidates.values():
        for candidate in of_api:
            candidate.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _keep_caches_writable() -> None:
    """Keep the caches of PyOpenCL and PoCL out of a folder that cannot be written.

    Without its cache, PyOpenCL fails in the first launch, and PoCL has no device.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: no home is known
        is_writable = False
    if not is_writable:
        os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
        os.environ.setdefault("POCL_CACHE_DIR", str(
            Path(tempfile.gettempdir(), f"pocl-{os.getuid()}")))


def _opencl() -> Iterator[_DeviceProbe]:
    _keep_caches_writable()
    try:
        from gossamer.device import opencl, opencl_driver
    except ImportError:
        yield _missing("opencl", "any OpenCL device",
                       f"PyOpenCL is not installed: {installing('opencl')}")
        return
    handles = opencl_driver.handles()
    if not handles:
        yield _missing("opencl", "any OpenCL device", _no_opencl(opencl_driver.drivers()))
    for index, handle in enumerate(handles):
        yield _DeviceProbe(
            f"opencl:{index}", opencl_driver.describe(handle),
            lambda handle=handle, index=index: opencl.OpenCLDevice(handle, index),  # type: ignore[misc]
            opencl_driver.is_gpu(handle),
        )


def _no_opencl(drivers: Sequence[str]) -> str:
    if not drivers:
        return "no OpenCL driver found; on Debian: apt-get install pocl-opencl-icd"
    problem = f"the OpenCL driver offers no device: {', '.join(drivers)}"
    if "Portable Computing Language" in drivers:
        problem += "; it needs a writable folder: set XDG_CACHE_HOME to one"
    return problem


def _cuda() -> Iterator[_DeviceProbe]:
    try:
        from gossamer.device.cuda import device as cuda
    except ImportError:
        yield _missing("cuda", "any NVIDIA GPU",
                       f"cuda.core is not installed: {installing('cuda')}")
        return
    try:
        count = cuda.count()
    except DeviceError as error:
        yield _missing("cuda", "any NVIDIA GPU", str(error))
        return
    for index in range(count):
        yield _DeviceProbe(f"cuda:{index}", "NVIDIA GPU",
                           lambda index=index: cuda.CudaDevice(index), True)  # type: ignore[misc]


def _host() -> Iterator[_DeviceProbe]:
    yield _DeviceProbe("host", "NumPy", HostDevice, True)


_FINDERS: dict[str, Callable[[], Iterator[_DeviceProbe]]] = {
    "cuda": _cuda, "opencl": _opencl, "host": _host}
"""The functions that find the devices of each API, in order of preference."""


def _missing(name: str, description: str, problem: str) -> _DeviceProbe:
    def fail() -> Device:
        raise DeviceError(problem)

    return _DeviceProbe(name, description, fail, False)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, GossamerError) else f"{type(error).__name__}: {text}"
