"""Processes that parse JSON, write JSON and decode pictures for a server.

Parsing holds Python's lock. In any thread of the server's own process, parsing a large body would
delay all other requests.
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
"""How many large tasks may run at the same time, since each takes some hundred MB."""
_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
"""Environment variables with which glibc gives freed blocks of 1 MiB and more back to the system.
"""
_NICENESS = 5
"""By how much the niceness of the processes is above the server's, which goes on answering."""


class Workers:
    """The processes of a server. They start with the first task, or with start()."""

    def __init__(self) -> None:
        count = min(processors(), _MOST_PROCESSES)
        self._pool: ProcessPool | None = None
        self._threads = ThreadPoolExecutor(count, "gossamer-serve")
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._count = count

    def start(self) -> ProcessPool:
        """Return the pool of the processes, which are started if they do not run."""
        if self._pool is None:
            self._pool = ProcessPool(self._count, "process that reads and writes requests", _begin,
                                     variables=_VARIABLES)
        return self._pool

    async def call(self, function: Callable[..., Any], *arguments: Any, what: str,
                   is_large: bool = False) -> Any:
        """Call a function in another process, and return its result or raise its error.

        what: words for the work, such as "parsed JSON", for the error of a process that ended.
        is_large: whether the task may take much memory, so that it waits for other such tasks.
        """
        async with self._large if is_large else contextlib.nullcontext():
            pool = self.start()
            try:
                return await asyncio.wrap_future(pool.submit(function, *arguments, what=what))
            except NoProcessError:
                # too many processes of this pool have ended, perhaps because memory ran out: the
                # task goes to a new pool
                if self._pool is pool:
                    self._pool = None
                    pool.end()
                return await asyncio.wrap_future(
                    self.start().submit(function, *arguments, what=what))

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that releases Python's lock, in another thread of this process."""
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
