"""Worker processes that compile while this process times candidates."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.device.host import processors
from gossamer.device.registry import find
from gossamer.errors import first_line
from gossamer.io.process_pool import NoProcessError, ProcessPool

_MOST_ON_DEVICE, _MEMORY_EACH = 5, 2**33
"""Maximum number of processes that open the device, and device memory in bytes for each."""
_MOST = 32
"""Maximum number of processes that compile without the device. With this many processes, compiling
keeps up with one device on which candidates are timed. Each process takes a few hundred megabytes
of host memory."""
_NICE = 5
"""Niceness added to processes that compile without the device. They must not delay this process,
which times candidates meanwhile."""
_devices: list[Device] = []
"""In a worker process that has opened the device: the device."""


class Compilers:
    """The processes that compile for a device.

    Compiled kernels are returned through the kernel cache on disk, or as bytes. There are two pools
    of processes. The processes of one pool, which is stored in `device.compilers`, compile sources
    and do not open the device. The processes of the other pool open the device, because vendors'
    libraries need it to compile.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pools: dict[bool, ProcessPool] = {}

    def start(self, *, on_device: bool = False) -> None:
        """Start the processes of one pool.

        These are the processes that compile sources or, with `on_device`, those that open the
        device. Nothing is started if these processes are running already, or if the device or
        machine has no use for them.
        """
        device = self._device
        count = min(processors() - 1, _MOST if not on_device else min(
            _MOST_ON_DEVICE, device.limits.memory_bytes // _MEMORY_EACH))
        if on_device in self._pools or not device.compiles_in_processes or count < 1:
            return
        self._pools[on_device] = ProcessPool(
            count, "process that compiles for candidates",
            functools.partial(begin, device.name if on_device else None),
            variables=blas.variables(1))
        if not on_device:
            device.compilers = self._pools[on_device]

    def ask(self, work: Callable[[Device], object], what: str) -> Future[object]:
        """Submit a call of a vendor's library; return its future.

        work: the call, such as the result of Algorithm.work_ahead. what: description of the call.

        The future's exception is ProcessEndedError if the process ended meanwhile, and
        NoProcessError if no process has opened the device or the work fails.
        """
        if True not in self._pools:
            nobody: Future[object] = Future()
            nobody.set_exception(NoProcessError("no process has opened the device"))
            return nobody
        return self._pools[True].submit(do_work, work, what=f"was asked for {what}")

    def close(self) -> None:
        """End the processes and wait for them. Afterwards this process compiles kernels itself."""
        if self._device.compilers is self._pools.get(False):
            self._device.compilers = None
        # end both pools before waiting, so that an interrupt during the wait leaves no processes
        # running
        for pool in self._pools.values():
            pool.end()
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()


def begin(device: str | None) -> None:
    """Prepare a worker process. device: name of the device that it opens."""
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    if device is None:
        os.nice(_NICE)
    else:
        _devices[:] = [find(device)]


def do_work(function: Callable[[Device], object]) -> None:
    """Call a function with the device. Raises NoProcessError if it fails."""
    try:
        function(*_devices)
    except Exception as error:
        raise NoProcessError(f"a process that compiles failed: {first_line(error)}") from None
