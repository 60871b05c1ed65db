"""Processes that compile kernels by NVRTC for this one.

NVRTC parses one kernel at a time within a process, for about 20 of the 150 milliseconds that it
compiles a kernel. Sixteen threads of one process that compile spend more than half of their time
waiting for one another.
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
"""The most processes that compile, and kernels that this process compiles at the same time itself.
These are rules of thumb: each process takes about 50 MB of the host's memory that it does not share
with others."""
_NICE = 5
"""How much the processes stand back behind the one that asks, which times meanwhile."""


def process_count(processors: int) -> int:
    """Returns the number of other processes that are of use where `processors` processors
    compile."""
    return min(_MOST, processors - _HERE) if processors >= 2 * _HERE else 0


class CompileProcesses:
    """Processes that compile a kernel at a time, which start in the background when the first
    kernel is compiled, and end with `end` or with this process, however that ends. This process
    compiles some kernels itself where all are busy, and all kernels where no process is left.

    processors: number of processors that may compile; process_count of them is not 0.
    """

    def __init__(self, processors: int) -> None:
        self._count = process_count(processors)
        self._here = threading.Semaphore(_HERE)
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None

    def compile(self, source: KernelSource, architecture: str) -> tuple[bytes, float]:
        """Returns the cubin of a kernel as nvrtc.compile_cubin does, and the processor seconds that
        another process took for it, 0 where this process compiled it. Raises CompileError, and
        CompilerEndedError where the process ended meanwhile."""
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
        """Returns the processes: `count` of them start at the first call."""
        with self._lock:
            if self._pool is None:
                self._pool = ProcessPool(count, "process that compiles", _start)
            return self._pool


def _start() -> None:
    """Prepares a process that compiles, which has loaded NVRTC with this module."""
    os.nice(_NICE)


def _compiled(source: KernelSource, architecture: str) -> tuple[bytes, float]:
    """Returns the cubin of a kernel and the processor seconds that it took."""
    start = time.thread_time()
    cubin, _ = nvrtc.compile_cubin(source, architecture)
    return cubin, time.thread_time() - start
