"""Whether the memory suffices for networks: looked at before any is taken, as a system that
promises more than it has ends the process that uses it."""

from __future__ import annotations

from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.train.loop.settings import Settings

_MEMINFO = Path("/proc/meminfo")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"),
           Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_COPIES, _DEVICE_COPIES = 2, 3
"""Of the parameters that there are at once: on the host, and those after the last epoch and before
the last two where they are trained."""


def check(settings: Settings, device: Device, networks: int = 1) -> None:
    """Raises InputError where so many networks' parameters, with velocities and copies, exceed the
    host's memory. That of other devices says so itself."""
    count = settings.problem(0, 0).parameter_count * networks
    copies = _COPIES + (_DEVICE_COPIES if device.on_processors else 0)
    needed, there = 4 * count * copies, available()
    if there is not None and needed > there:
        raise InputError(f"sizes {settings.sizes}: {count} parameters take {needed} bytes to train "
                         f"({copies} copies), {there} bytes of memory are available: expected "
                         "fewer units")


def available() -> int | None:
    """Bytes of memory that this process may still take at most; None where that is not known."""
    found = [int(text) for path in _LIMITS if (text := _text(path).strip()).isdigit()]
    lines = [line.split() for line in _text(_MEMINFO).splitlines()]
    free = [1024 * int(words[1]) for words in lines if words[:1] == ["MemAvailable:"]]
    return min([*found, *(free or [find("host").limits.memory_bytes])]) or None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
