"""A connection of HTTP/1: what limits it in time and in bytes, in addition to uvicorn."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import httptools
import numpy as np
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gossamer.plan.batcher import Batcher

IDLE_S = 30.0
"""Seconds in which a connection has to send the head of its next request."""
UNREAD_S = 30.0
"""Seconds for which a client may leave the bytes of an answer unread that the system does not take.
"""
MOST_HEAD_BYTES = 2**16
"""The most bytes of a request's head, and of its trailers."""
MOST_FIELDS = 100
"""The most fields of a request's head and trailers together."""
_MOST_PIPELINED = 16
"""The most requests that may wait for the answer to an earlier one of the same connection."""
_LINGER_S = 2.0
"""Seconds for which a connection is still read after a refusal: closing it while bytes come would
make the client's system throw the refusal away."""
_OFFERS = (b"upgrade", b"http2-settings")
"""The fields in which a client offers another protocol."""


class _RefusedError(Exception):
    """A request that is refused before the application gets it: its HTTP status, and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Connection(HttpToolsProtocol):
    """A connection that is closed where the head of a request is not complete in time, even while
    single bytes of the head still come; where the head or the trailers are too long; and where the
    client does not read its answer. Offers of another protocol (Upgrade) are ignored."""

    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _refused: _RefusedError | None = None
    _is_head = True
    """Whether the parser is before the end of a request's head."""
    _fields = 0
    _head_bytes = 0
    """Bytes of the head and the trailers, as far as their fields are complete."""
    _pending_bytes = 0
    """Bytes since the parser last ended a request or found a part of a body. They are limited,
    since the parser collects an incomplete field in time that grows with the square of its
    length."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            return
        self._unset_keepalive_if_required()
        self._pending_bytes += len(data)
        try:
            self._feed(data)
            if self._pending_bytes > MOST_HEAD_BYTES:
                raise _too_long()
        except _RefusedError as refused:
            self._refuse(refused)
            return
        except httptools.HttpParserError:
            self._refuse(self._refused or _RefusedError(400, "this is no valid request of HTTP/1"))
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._waiting is None:
            self._wait()

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # the parser stops at the end of this head: it reads the head again without the
                # offer, and goes on
                method = self.parser.get_method()
                if method == b"CONNECT":
                    raise _RefusedError(400, "CONNECT is not offered") from None
                head = [b"%b %b HTTP/%b" % (method, self.url,
                                            self.parser.get_http_version().encode())]
                head += [b"%b: %b" % field for field in self.headers if field[0] not in _OFFERS]
                data = b"\r\n".join([*head, b"", data[upgrade.args[0]:]])
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _raise(self, refused: _RefusedError) -> None:
        # the parser replaces the errors of its callbacks by one of its own
        self._refused = refused
        raise refused

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_head = True
        self._fields = self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._head_bytes += len(name) + len(value) + len(b": \r\n")
        if self._fields > MOST_FIELDS or self._head_bytes > MOST_HEAD_BYTES:
            self._raise(_too_long())
        # trailers are read and dropped
        if self._is_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_head = False
        if self._head_bytes > MOST_HEAD_BYTES:
            self._raise(_too_long())
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._raise(_RefusedError(400, f"more than {_MOST_PIPELINED} requests wait for the "
                                           "answers to earlier ones"))
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        cycle: Any = self.cycle
        if not cycle.body:
            # a body of one part is not copied: b"" + part and bytes(part) are the part itself
            cycle.body = b""
        elif isinstance(cycle.body, bytes):
            # as bytes, a body of many parts would be copied once for each part
            cycle.body = bytearray(cycle.body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._pending_bytes = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _refuse(self, refused: _RefusedError) -> None:
        """Answers a request that is refused, and takes no further bytes of the connection."""
        self._refused = refused
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering and (self._is_head or cycle.response_started or self.pipeline):
            # the answers to earlier requests come first, and then the connection ends
            cycle.keep_alive = False
            return
        if is_answering:
            # the application learns that no further part of the body comes
            cycle.disconnected = True
            cycle.message_event.set()
        self._stop_waiting()
        body = json.dumps({"error": str(refused)}).encode()
        self.transport.write(b"%bcontent-type: application/json\r\ncontent-length: %d\r\n"
                             b"connection: close\r\n\r\n%b" % (
                                 STATUS_LINE[refused.status], len(body), body))
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()
        self._stop_unread()

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(IDLE_S, self._close_idle)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _close_idle(self) -> None:
        self._waiting = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def _too_long() -> _RefusedError:
    return _RefusedError(431, f"the head of a request, and its trailers, have at most "
                              f"{MOST_HEAD_BYTES} bytes in {MOST_FIELDS} fields")


_GATHER_S = 2e-3
"""The most seconds for which the loop reads requests before it hands them over. The loop hands them
over earlier after a round that brings no further request."""

_Entry = tuple[Mapping[str, np.ndarray], float | None, asyncio.Future[Any]]
"""A request: its inputs by name, the seconds until its deadline, and its future."""


class Exchange:
    """The requests and results of one event loop."""

    def __init__(self) -> None:
        self._given: dict[Batcher, list[_Entry]] = {}
        self._count = 0
        self._done: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._is_waking = False

    def submit(self, batcher: Batcher, arrays: Mapping[str, np.ndarray],
               deadline: float | None) -> asyncio.Future[Any]:
        """Return the future of a request's outputs, which a batcher computes. Cancelling the
        future gives up a request that is not being computed yet. deadline: seconds from now after
        which the outputs are of no use; None without a deadline."""
        loop = asyncio.get_running_loop()
        if not self._given:
            loop.call_soon(self._gather, loop, self._count, loop.time() + _GATHER_S)
        self._count += 1
        own: asyncio.Future[Any] = loop.create_future()
        self._given.setdefault(batcher, []).append((arrays, deadline, own))
        return own

    def _gather(self, loop: asyncio.AbstractEventLoop, before: int, until: float) -> None:
        """Hand all requests over, or looks again after the loop's next round.

        before: number of requests that had come at the last look.
        until: the loop's time after which requests are handed over in any case.
        """
        if self._count > before and loop.time() < until:
            loop.call_soon(self._gather, loop, self._count, until)
        else:
            self.hand_over()

    def hand_over(self) -> None:
        """Hand all requests to their batchers now, for example before a batcher is closed."""
        loop = asyncio.get_running_loop()
        given, self._given = self._given, {}
        for batcher, entries in given.items():
            futures = batcher.submit_all((arrays, deadline) for arrays, deadline, _ in entries)
            for (_, _, own), future in zip(entries, futures, strict=True):
                own.add_done_callback(partial(_cancel, future))
                future.add_done_callback(partial(self._came, loop, own))

    def _came(self, loop: asyncio.AbstractEventLoop, own: asyncio.Future[Any],
              future: Future[Any]) -> None:
        self._done.append((own, future))
        if not self._is_waking and not loop.is_closed():
            self._is_waking = True
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # a result that comes from now on wakes the loop again
        self._is_waking = False
        while self._done:
            own, future = self._done.popleft()
            if own.done():
                continue
            if future.cancelled():
                own.cancel()
            elif error := future.exception():
                own.set_exception(error)
            else:
                own.set_result(future.result())


def _cancel(future: Future[Any], own: asyncio.Future[Any]) -> None:
    if own.cancelled():
        future.cancel()
