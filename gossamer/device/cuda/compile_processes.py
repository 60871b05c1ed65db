"""Compiles kernels by NVRTC in other processes, for this process.

Within a process NVRTC parses only one kernel at a time, and parsing takes about 20 of the 150
milliseconds in which a kernel is compiled. If sixteen threads of one process compile kernels, they
spend more than half of their time waiting for one another.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import CancelledError

from gossamer.device.cuda import nvrtc
from gossamer.device.source import KernelSource
from gossamer.errors import CompilerEndedError
from gossamer.io.process_pool import NoProcessError, ProcessEndedError, ProcessPool

_MOST, _HERE = 48, 3
"""The most processes that compile, and the most kernels that this process itself compiles at the
same time. Both are rules of thumb: each process takes about 50 MB of the host's memory that it does
not share with other processes."""
_NICE = 5
"""The number that is added to the niceness of the processes, so that they do not delay this
process, which times candidates at the same time."""


def process_count(processors: int) -> int:
    """Returns the number of other processes to start where kernels may be compiled on `processors`
    processors."""
    return min(_MOST, processors - _HERE) if processors >= 2 * _HERE else 0


class CompileProcesses:
    """Processes that compile one kernel at a time. They start in the background when the first
    kernel is compiled. They end when `end` is called, or when this process ends or is killed. This
    process itself compiles some kernels while all processes are busy, and all kernels where no
    process is left.

    processors: number of processors that may compile; process_count(processors) is not 0.
    """

    def __init__(self, processors: int) -> None:
        self._count = process_count(processors)
        self._here = threading.Semaphore(_HERE)
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None

    def compile(self, source: KernelSource, architecture: str) -> tuple[bytes, float]:
        """Returns the cubin of a kernel as nvrtc.compile_cubin does, and the processor seconds that
        another process took to compile it; the seconds are 0 where this process compiled it. Raises
        CompileError, and CompilerEndedError where the other process ended meanwhile."""
        pool = self._begun(self._count)
        if not pool.has_idle and self._here.acquire(blocking=False):
            try:
                return nvrtc.compile_cubin(source, architecture)[0], 0.0
            finally:
                self._here.release()
        try:
            built: tuple[bytes, float] = pool.submit(
                _compiled, source, architecture,
                what=f"compiled {source.function} of {source.path.name}").result()
            return built
        except ProcessEndedError as ended:
            raise CompilerEndedError(ended) from None
        except (NoProcessError, CancelledError):
            return nvrtc.compile_cubin(source, architecture)[0], 0.0

    def end(self) -> None:
        """Ends the processes. Kernels that they were compiling are compiled in this process
        instead."""
        self._begun(0).end()

    def _begun(self, count: int) -> ProcessPool:
        """Returns the pool of processes; at the first call `count` of them start."""
        with self._lock:
            if self._pool is None:
                self._pool = ProcessPool(count, "process that compiles", _start)
            return self._pool


def _start() -> None:
    """Prepares a process that compiles. NVRTC is loaded there by the import of this module."""
    os.nice(_NICE)


def _compiled(source: KernelSource, architecture: str) -> tuple[bytes, float]:
    """Returns the cubin of a kernel and the processor seconds that compiling it took."""
    start = time.thread_time()
    cubin, _ = nvrtc.compile_cubin(source, architecture)
    return cubin, time.thread_time() - start
