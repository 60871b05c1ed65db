"""Processes that compile for this process while it times candidates."""

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
"""The most processes that open the device, and the bytes of device memory for each."""
_MOST = 32
"""The most processes that compile without the device. This many processes compile at least as fast
as one device times, and each process takes a few hundred megabytes of host memory."""
_NICE = 5
"""The number that is added to the niceness of processes that compile without the device, so that
they do not delay this process, which times candidates at the same time."""
_devices: list[Device] = []
"""A list with the device of this process, where it works for another process and has opened it."""


class Compilers:
    """The processes that compile for a device. What they make comes back through the kernel cache
    on disk, or as bytes.

    Processes of one pool, the device's `compilers`, compile sources and do not open the device.
    Those of the other pool open it, since a vendor's library needs it to compile.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pools: dict[bool, ProcessPool] = {}

    def start(self, *, on_device: bool = False) -> None:
        """Start the processes that compile sources, or those that open the device, unless they
        run. Nothing is started where no process can help."""
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
        """Return the future of work for which a process calls a vendor's library, such as the work
        that Algorithm.work_ahead returns. what: words for the work.

        The future's exception is ProcessEndedError where the process ended meanwhile, and
        NoProcessError where no process does the work or the work fails.
        """
        if True not in self._pools:
            nobody: Future[object] = Future()
            nobody.set_exception(NoProcessError("no process has opened the device"))
            return nobody
        return self._pools[True].submit(do_work, work, what=f"was asked for {what}")

    def close(self) -> None:
        """End the processes, and wait until they have ended. From now on this process compiles."""
        if self._device.compilers is self._pools.get(False):
            self._device.compilers = None
        # an interrupt that ends the wait must not leave processes of the other pool behind
        for pool in self._pools.values():
            pool.end()
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()


def begin(device: str | None) -> None:
    """Prepare this process for its work. device: the name of the device that it opens."""
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    if device is None:
        os.nice(_NICE)
    else:
        _devices[:] = [find(device)]


def do_work(function: Callable[[Device], object]) -> None:
    """Call a function with the device. Raises NoProcessError where the function fails."""
    try:
        function(*_devices)
    except Exception as error:
        raise NoProcessError(f"a process that compiles failed: {first_line(error)}") from None
