"""Where code runs: finding the devices of this machine and keeping one instance of each."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence

from gossamer.device.base import Device, DeviceInfo, self_check
from gossamer.device.host import HostDevice
from gossamer.errors import DeviceError, GossamerError, GossamerWarning

__all__ = ["devices", "find", "find_or_best"]


class _DeviceProbe:
    """A device that may work: opened and checked once, when somebody asks for it."""

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
        """The device when it works; else None, and `problem` says why."""
        with self._lock:
            if not self._checked:
                self._checked = True
                try:
                    device = self._open()
                    if device.compiles:
                        self_check(device)
                    self.device = device
                except Exception as error:  # a driver may fail in any way; it is not offered then
                    self.problem = _one_line(error)
            return self.device

    def forked(self) -> None:
        """In the child of a process that had found it: drivers do not survive that, and hang."""
        self._lock = threading.Lock()
        if self.name != "host":
            self._checked, self.device = True, None
            self.problem = ("was found before this process was forked, and its driver works in the "
                            "parent only; start processes by spawn, as "
                            "multiprocessing.get_context('spawn') and joblib do")

    def found(self) -> DeviceInfo:
        device = self.check()
        if device is None:
            return DeviceInfo(self.name, self.description, "", 0, 0, self.problem)
        return DeviceInfo(self.name, device.description, device.driver, device.limits.compute_units,
                     device.limits.memory_bytes, None)


_lock = threading.Lock()
_candidates: list[_DeviceProbe] | None = None


def devices() -> list[DeviceInfo]:
    """Every device of this machine in the order of preference, the unusable ones with the
    reason. Builds and runs a one-line kernel on each, once a process."""
    return [candidate.found() for candidate in _all()]


def find(name: str | None = None) -> Device:
    """The device of that name (host, opencl:0, cuda:1; a name without index means index 0), or
    the best one: CUDA, else an OpenCL GPU, else the host. The same instance every time.

    Raises DeviceError when there is no such device or it cannot be used. Warns when a GPU that
    is there is passed over because it does not work.
    """
    if name is None:
        return _best()
    wanted = name.strip().lower()
    if wanted in ("cuda", "opencl"):
        wanted += ":0"
    for candidate in _all():
        if wanted in (candidate.name, f"{candidate.name}:0"):
            device = candidate.check()
            if device is None:
                raise DeviceError(f"device {candidate.name} cannot be used: {candidate.problem}")
            return device
    usable = ", ".join(found.name for found in devices() if found.problem is None)
    raise DeviceError(f"there is no device {name!r} here; usable devices: {usable}")


def find_or_best(name: str) -> Device:
    """The device of that name; the best one, with a warning, where it cannot be had here."""
    try:
        return find(name)
    except DeviceError as error:
        found = find()
        warnings.warn(f"{error}; {found.name} takes its place", GossamerWarning, stacklevel=2)
        return found


def _best() -> Device:
    for candidate in _all():
        if not candidate.preferred:
            continue
        device = candidate.check()
        if device is not None:
            return device
        warnings.warn(f"{candidate.name} ({candidate.description}) cannot be used: "
                      f"{candidate.problem}", GossamerWarning, stacklevel=3)
    raise DeviceError("no device works here, not even the host")


def _all() -> list[_DeviceProbe]:
    global _candidates
    with _lock:
        if _candidates is None:
            _candidates = [
                *_cuda(),
                *_opencl(),
                _DeviceProbe("host", "NumPy", HostDevice, True),
            ]
        return _candidates


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for candidate in _candidates or ():
        candidate.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _opencl() -> Iterator[_DeviceProbe]:
    try:
        from gossamer.device import opencl
    except ImportError:
        yield _missing("opencl", "any OpenCL device",
                       "PyOpenCL is not installed: pip install 'gossamer[opencl]'")
        return
    found = opencl.handles()
    if not found:
        yield _missing("opencl", "any OpenCL device", _no_opencl(opencl.drivers()))
    for index, handle in enumerate(found):
        yield _DeviceProbe(
            f"opencl:{index}", opencl.describe(handle),
            lambda handle=handle, index=index: opencl.OpenCLDevice(handle, index),  # type: ignore[misc]
            opencl.is_gpu(handle),
        )


def _no_opencl(drivers: Sequence[str]) -> str:
    if not drivers:
        return "no OpenCL driver found; on Debian: apt-get install pocl-opencl-icd"
    told = f"the OpenCL driver offers no device: {', '.join(drivers)}"
    if "Portable Computing Language" in drivers:
        told += "; it needs a folder that it can write: set XDG_CACHE_HOME to one of yours"
    return told


def _cuda() -> Iterator[_DeviceProbe]:
    try:
        from gossamer.device.cuda import device as cuda
    except ImportError:
        yield _missing("cuda", "any NVIDIA GPU",
                       "cuda.core is not installed: pip install 'gossamer[cuda]'")
        return
    try:
        found = cuda.count()
    except DeviceError as error:
        yield _missing("cuda", "any NVIDIA GPU", str(error))
        return
    for index in range(found):
        yield _DeviceProbe(f"cuda:{index}", "NVIDIA GPU",
                         lambda index=index: cuda.CudaDevice(index), True)  # type: ignore[misc]


def _missing(name: str, description: str, problem: str) -> _DeviceProbe:
    def fail() -> Device:
        raise DeviceError(problem)

    return _DeviceProbe(name, description, fail, False)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, GossamerError) else f"{type(error).__name__}: {text}"
