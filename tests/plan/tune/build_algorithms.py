"""A device that has processes compile, and work for these processes."""

from __future__ import annotations

import os

from gossamer.device import kernel_cache
from gossamer.device.base import Device
from gossamer.device.host import HostDevice
from gossamer.errors import CompileError


class CompilingHost(HostDevice):
    """The host as a device that has other processes compile."""

    compiles_in_processes = True


def no_compiler() -> None:
    """Fails as on a machine without a compiler."""
    raise CompileError("no compiler is installed")


def fail(device: Device) -> None:
    """Fails as a compiler does."""
    raise CompileError("register 7 is missing")


def die(device: Device) -> None:
    """Ends the process as a library does whose memory is spoilt."""
    os.write(2, b"malloc(): out of luck\n")
    os.kill(os.getpid(), 9)


AHEAD = ("what remember() keeps",)
"""The key under which `remember` keeps the name of a device."""


def remember(device: Device) -> None:
    """Keeps the name of a device, as a library's answer is kept."""
    print("a library may print")
    kernel_cache.cached(AHEAD, device.name.encode)
