"""The process of a server: its connections, signals and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator

import uvicorn

from gossamer.serve.app import Server, make_app
from gossamer.serve.connection import IDLE_S, Connection

logger = logging.getLogger("gossamer.serve")

_END_S = 60
"""Seconds that a server waits for requests in progress when it shuts down."""
_LAST_REQUEST_S = 0.5
"""Seconds for which open connections may still send a request during a shutdown."""
_M_MMAP_THRESHOLD = -3
"""The constant of this name in glibc's malloc.h."""
_LARGE_BLOCK = 2**22
"""Smallest size, in bytes, of memory blocks that glibc returns to the system when they are freed.
"""
_CONNECTIONS = 2**16
"""Largest number of open connections, if the system allows as many."""
_NEW_OBJECTS = 20_000
"""Number of new objects after which Python collects garbage. The value is a rule of thumb: each
request leaves only two or three objects in reference cycles, but a few requests in progress create
more new objects than Python's default threshold of 700."""


def serve(server: Server, listener: socket.socket, *, grace: float = 1.0,
          logs_requests: bool = False,
          ready: Callable[[], None] = lambda: None) -> None:
    """Serve requests until SIGTERM or SIGINT; SIGHUP reloads changed networks.

    grace: seconds for which the server still accepts requests during a shutdown. Meanwhile
    /v2/health/ready returns 503, so that clients use other servers.
    logs_requests: whether to log each request.
    ready: function that is called when the server is about to accept requests.
    """
    _allow_connections()
    _return_memory()
    # the garbage collector ignores frozen objects: traversing all objects of the networks would
    # delay responses by 0.1 s
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    config = uvicorn.Config(make_app(server), http=Connection, ws="none", lifespan="off",
                            log_config=None, access_log=logs_requests, backlog=2048,
                            timeout_keep_alive=int(IDLE_S), timeout_graceful_shutdown=_END_S,
                            server_header=False)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(_Uvicorn(config), server, listener, grace, ready))


async def _serve(http: _Uvicorn, server: Server, listener: socket.socket, grace: float,
                 ready: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    renewing: set[asyncio.Task[None]] = set()
    one_at_a_time = asyncio.Lock()

    def end() -> None:
        """Shut down after the grace period; a second signal skips it."""
        if server.is_ending:
            http.should_exit = http.force_exit = True
        else:
            logger.info("shutting down")
        server.is_ending = True
        loop.call_later(grace, setattr, http, "should_exit", True)

    async def renew() -> None:
        async with one_at_a_time:
            try:
                await server.renew()
            except Exception:
                logger.exception("changed networks could not be reloaded")

    def begin_renewal() -> None:
        task = loop.create_task(renew())
        renewing.add(task)
        task.add_done_callback(renewing.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, begin_renewal)
    # files may have changed while the networks were loaded: a SIGHUP before this point was ignored
    begin_renewal()
    server.workers.start()
    loop.call_soon(ready)
    await http.serve([listener])
    await loop.run_in_executor(None, server.close)


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no further connections, wait, and shut down.

        For up to _LAST_REQUEST_S seconds, open connections may still send a request.
        """
        for server in self.servers:
            server.close()
        end = time.monotonic() + _LAST_REQUEST_S
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(_LAST_REQUEST_S / 20)
        await super().shutdown(sockets)


def _return_memory() -> None:
    """Make glibc return large freed blocks to the system."""
    # other C libraries have no mallopt
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


def _allow_connections() -> None:
    """Raise the limit of open connections, at most to _CONNECTIONS."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, _CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
