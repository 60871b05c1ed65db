"""Checks, before memory is allocated, that there is enough memory for networks. A system that
overcommits memory would allow the allocation, and kill the process when it uses the memory."""

from __future__ import annotations

from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.train.loop.settings import Settings

_MEMINFO = Path("/proc/meminfo")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"),
           Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Linux's file on the machine's memory, and the files with the memory limit of a container (cgroup
versions 2 and 1)."""
_COPIES, _DEVICE_COPIES = 2, 3
"""Numbers of copies of the parameters that exist at the same time: on the host, and on the device
that trains. The device holds the parameters after the last epoch, and the parameters from before
each of the last two epochs."""


def check(settings: Settings, device: Device, networks: int = 1) -> None:
    """Raises InputError where the parameters of the networks, with the optimiser's numbers and
    copies, exceed the host's memory. A device with its own memory raises its own error when it
    allocates."""
    count = settings.problem(0, 0).parameter_count * networks
    copies = _COPIES + (_DEVICE_COPIES if device.on_processors else 0)
    needed, free = 4 * count * copies, available()
    if free is not None and needed > free:
        raise InputError(f"sizes {settings.sizes}: {count} parameters take {needed} bytes to train "
                         f"({copies} copies), {free} bytes of memory are available: expected "
                         "fewer units")


def available() -> int | None:
    """Returns the bytes of memory that are free on the machine, or all of the machine's bytes where
    the free ones are not known, or the container's memory limit where it is lower; None where the
    machine's memory is not known."""
    limits = [int(text) for path in _LIMITS if (text := _text(path).strip()).isdigit()]
    lines = [line.split() for line in _text(_MEMINFO).splitlines()]
    free = [1024 * int(words[1]) for words in lines if words[:1] == ["MemAvailable:"]]
    return min([*limits, *(free or [find("host").limits.memory_bytes])]) or None


def _text(path: Path) -> str:
    """Returns the text of a file; "" where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
