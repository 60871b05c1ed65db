"""Processes that parse and write JSON, and decode pictures.

Parsing holds the GIL: if a thread of the server's own process parsed a large body, all other
requests would be delayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gossamer.device.host import processors
from gossamer.io.process_pool import NoProcessError, ProcessPool

_MOST_PROCESSES = 8
_LARGE_AT_ONCE = 2
"""Largest number of large tasks at the same time: each needs several hundred MB."""
_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
"""Environment variables that make glibc return freed blocks of at least 1 MiB to the system."""
_NICENESS = 5
"""Increase of the processes' niceness over the server's, so that the server stays responsive."""


class Workers:
    """The processes of a server. They start with the first task, or with start()."""

    def __init__(self) -> None:
        count = min(processors(), _MOST_PROCESSES)
        self._pool: ProcessPool | None = None
        self._threads = ThreadPoolExecutor(count, "gossamer-serve")
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._count = count

    def start(self) -> ProcessPool:
        """Return the pool of processes, started if necessary."""
        if self._pool is None:
            self._pool = ProcessPool(self._count, "process that reads and writes requests", _begin,
                                     variables=_VARIABLES)
        return self._pool

    async def call(self, function: Callable[..., Any], *arguments: Any, what: str,
                   is_large: bool = False) -> Any:
        """Call a function in another process.

        Returns its result, or raises its error.

        what: description of the task, such as "parsed JSON", for the error if the process ends.
        is_large: whether the task may need much memory; at most _LARGE_AT_ONCE such tasks run at
        the same time.
        """
        async with self._large if is_large else contextlib.nullcontext():
            pool = self.start()
            try:
                return await asyncio.wrap_future(pool.submit(function, *arguments, what=what))
            except NoProcessError:
                # too many processes of this pool have ended, perhaps for lack of memory: start a
                # new pool for the task
                if self._pool is pool:
                    self._pool = None
                    pool.end()
                return await asyncio.wrap_future(
                    self.start().submit(function, *arguments, what=what))

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in another thread; the function should release the GIL."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, function, *arguments)

    def close(self) -> None:
        """End the processes and the threads."""
        if self._pool is not None:
            self._pool.close()
        self._threads.shutdown()


def _begin() -> None:
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
