"""Processes that parse JSON, write JSON and decode pictures for a server.

Parsers keep Python's lock as long as they run: in the server's own process, a large body would
delay the requests of all others, whichever thread parsed it.
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
"""How many large tasks may be done at the same time, each of which takes some hundred MB."""
_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
"""Has glibc give large blocks back to the system when a task is done."""
_NICENESS = 5
"""By how much the processes are nicer than the server, which must answer in the meantime."""


class Workers:
    """The processes of a server. They start with the first task, or with start()."""

    def __init__(self) -> None:
        count = min(processors(), _MOST_PROCESSES)
        self._pool: ProcessPool | None = None
        self._threads = ThreadPoolExecutor(count, "gossamer-serve")
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._count = count

    def start(self) -> ProcessPool:
        """Start the processes where they do not run, and return their pool."""
        if self._pool is None:
            self._pool = ProcessPool(self._count, "process that reads and writes requests", _begin,
                                     variables=_VARIABLES)
        return self._pool

    async def call(self, function: Callable[..., Any], *arguments: Any, what: str,
                   is_large: bool = False) -> Any:
        """Return what a function gives in another process, and raise what it raises there.

        what: words for the work, such as "parsed JSON", for the error of a process that ended.
        is_large: whether the task may take much memory, and waits for other such tasks.
        """
        async with self._large if is_large else contextlib.nullcontext():
            pool = self.start()
            try:
                return await asyncio.wrap_future(pool.submit(function, *arguments, what=what))
            except NoProcessError:
                # too many processes of this pool have ended, for example for want of memory
                if self._pool is pool:
                    self._pool = None
                    pool.end()
                return await asyncio.wrap_future(
                    self.start().submit(function, *arguments, what=what))

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function gives in another thread, which suits functions that release
        Python's lock."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, function, *arguments)

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.close()
        self._threads.shutdown()


def _begin() -> None:
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
