"""Worker processes that compile while this process times candidates."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import numpy as np

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.device.host import processors
from gossamer.device.registry import find
from gossamer.errors import first_line
from gossamer.io.process_pool import NoProcessError, ProcessPool

_MOST, _MEMORY_EACH = 32, 2**31
"""Maximum number of processes, and device memory in bytes for each, because each may open the
device. With 32 processes, compiling keeps up with one device on which candidates are timed. Each
process takes a few hundred megabytes of host memory."""
_NICE = 5
"""Niceness added to the processes. They must not delay this process, which times candidates
meanwhile."""


class Compilers:
    """The processes that compile for a device.

    Compiled kernels are returned through the kernel cache on disk, or as bytes. A process opens the
    device only for work of vendors' libraries, which need the device to compile.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pool: ProcessPool | None = None

    def start(self) -> None:
        """Start the processes as `device.compilers`.

        Nothing is started if they are running already, or if the device or machine has no use for
        them.
        """
        device = self._device
        count = min(processors() - 1, _MOST, device.limits.memory_bytes // _MEMORY_EACH)
        if self._pool is None and device.compiles_in_processes and count > 0:
            self._pool = device.compilers = ProcessPool(
                count, "process that compiles for candidates", begin,
                variables=blas.variables(1))

    def do(self, work: Callable[[Device], object], what: str) -> None:
        """Have a process call a vendor's library, and wait for it.

        work: the call, such as the result of Algorithm.work_ahead. what: description of the call.

        Raises ProcessEndedError if the process ended meanwhile, and NoProcessError if there are no
        processes or the work fails.
        """
        if self._pool is None:
            raise NoProcessError("no process compiles")
        self._pool.submit(do_work, work, self._device.name, what=f"was asked for {what}").result()

    def close(self) -> None:
        """End the processes and wait for them. Afterwards this process compiles kernels itself."""
        if self._pool is not None:
            if self._device.compilers is self._pool:
                self._device.compilers = None
            self._pool.close()
            self._pool = None


def begin() -> None:
    """Prepare a worker process."""
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    os.nice(_NICE)


def do_work(work: Callable[[Device], object], device: str) -> None:
    """Call a function with the named device. Raises NoProcessError if it fails."""
    try:
        work(find(device))
    except Exception as error:
        raise NoProcessError(f"a process that compiles failed: {first_line(error)}") from None
