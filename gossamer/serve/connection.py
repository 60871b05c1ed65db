"""HTTP/1 connections, and the exchange of requests with batchers.

Connections have limits of time and bytes that uvicorn lacks. The exchange passes requests from the
event loop to batchers, and results back.
"""

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
from gossamer.serve.checks import Refusal

IDLE_S = 30.0
"""Time limit in seconds for the head of a client's next request."""
UNREAD_S = 30.0
"""Time limit in seconds for a client that does not read while a response fills the connection's
send buffers."""
MOST_HEAD_BYTES = 2**16
"""Largest number of bytes in a request's head, and in its trailers."""
MOST_FIELDS = 100
"""Largest number of fields in a request's head and trailers together."""
_MOST_PIPELINED = 16
"""Largest number of pipelined requests of a connection: requests that wait for the response to an
earlier request."""
_LINGER_S = 2.0
"""Seconds for which a connection stays open after an error response; bytes that arrive are ignored.
If the connection were closed while bytes arrive, the client's system would discard the response."""
_OFFERS = (b"upgrade", b"http2-settings")
"""Fields of a head by which a client offers another protocol."""


class Connection(HttpToolsProtocol):
    """A connection with limits of time and bytes.

    The connection is closed if the head of a request is not complete in time (even if bytes still
    arrive), if the head or the trailers are too long, or if the client does not read its response.
    Offers of another protocol (Upgrade) are ignored.
    """

    _idle_timer: asyncio.TimerHandle | None = None
    """Timer that closes the connection while it waits for the head of a request."""
    _unread_timer: asyncio.TimerHandle | None = None
    """Timer that closes the connection while the client does not read."""
    _refused: Refusal | None = None
    _is_head = True
    """Whether the head of the current request is incomplete."""
    _fields = 0
    _head_bytes = 0
    """Bytes of the complete fields of the head and the trailers."""
    _pending_bytes = 0
    """Number of bytes received since the parser last completed a request or found a part of a body.
    A limit on this number bounds the length of an incomplete header field, which the parser
    processes in quadratic time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_idle_timer()

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            return
        self._unset_keepalive_if_required()
        self._pending_bytes += len(data)
        try:
            self._feed(data)
            if self._pending_bytes > MOST_HEAD_BYTES:
                raise _too_long()
        except Refusal as refused:
            self._refuse(refused)
            return
        except httptools.HttpParserError:
            self._refuse(self._refused or Refusal(400, "this is not a valid HTTP/1 request"))
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_idle_timer()
        elif self._idle_timer is None:
            self._start_idle_timer()

    def _feed(self, data: bytes) -> None:
        """Pass bytes to the parser, and remove header fields that offer another protocol."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # the parser has stopped at the end of this head: a new parser reads the head again
                # without the offer, and then the bytes after the head
                method = self.parser.get_method()
                if method == b"CONNECT":
                    raise Refusal(400, "CONNECT is not supported") from None
                head = [b"%b %b HTTP/%b" % (method, self.url,
                                            self.parser.get_http_version().encode())]
                head += [b"%b: %b" % field for field in self.headers if field[0] not in _OFFERS]
                data = b"\r\n".join([*head, b"", data[upgrade.args[0]:]])
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _raise(self, refused: Refusal) -> None:
        """Reject the request from within a callback of the parser.

        The error is also stored, because the parser replaces errors from its callbacks by its own.
        """
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
        # fields of trailers are ignored
        if self._is_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_head = False
        if self._head_bytes > MOST_HEAD_BYTES:
            self._raise(_too_long())
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._raise(Refusal(400, f"more than {_MOST_PIPELINED} pipelined requests; wait "
                                           "for the responses to earlier ones"))
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        cycle: Any = self.cycle
        if not cycle.body:
            # the base class appends the part to the body: b"" + part does not copy the part
            cycle.body = b""
        elif isinstance(cycle.body, bytes):
            # appending to bytes would copy the body each time
            cycle.body = bytearray(cycle.body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._pending_bytes = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _refuse(self, refused: Refusal) -> None:
        """Respond to a rejected request, and ignore further bytes."""
        self._refused = refused
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering and (self._is_head or cycle.response_started or self.pipeline):
            # an earlier request is still in progress: close the connection after its response
            cycle.keep_alive = False
            return
        if is_answering:
            # tells the application that no further part of the body will arrive
            cycle.disconnected = True
            cycle.message_event.set()
        self._stop_idle_timer()
        body = json.dumps({"error": str(refused)}).encode()
        self.transport.write(b"%bcontent-type: application/json\r\ncontent-length: %d\r\n"
                             b"connection: close\r\n\r\n%b" % (
                                 STATUS_LINE[refused.status], len(body), body))
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_idle_timer()
        self._stop_unread_timer()

    def _start_idle_timer(self) -> None:
        self._idle_timer = self.loop.call_later(IDLE_S, self._close_idle)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _close_idle(self) -> None:
        self._idle_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def _too_long() -> Refusal:
    return Refusal(431, f"the header and trailer of a request are too large: expected at "
                              f"most {MOST_HEAD_BYTES} bytes in {MOST_FIELDS} fields")


_GATHER_S = 2e-3
"""Maximum number of seconds for which requests are collected before they are passed to batchers.
They are passed earlier if an iteration of the event loop brings no further request."""

_Entry = tuple[Mapping[str, np.ndarray], float | None, asyncio.Future[Any]]
"""A request: its inputs by name, the seconds until its deadline (None without one), and its
future."""


class Exchange:
    """Passes requests and results between an event loop and batchers.

    Batchers receive several requests at once, and wake the loop once for several results, because
    each call across threads costs time on both sides.
    """

    def __init__(self) -> None:
        self._gathered: dict[Batcher, list[_Entry]] = {}
        self._count = 0
        self._done: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._is_waking = False

    def submit(self, batcher: Batcher, arrays: Mapping[str, np.ndarray],
               deadline: float | None) -> asyncio.Future[Any]:
        """Submit a request and return the future of its outputs.

        Cancelling the future withdraws the request, unless its computation has begun.

        deadline: seconds from now after which the outputs are no longer needed; None without a
        deadline.
        """
        loop = asyncio.get_running_loop()
        if not self._gathered:
            loop.call_soon(self._gather, loop, self._count, loop.time() + _GATHER_S)
        self._count += 1
        own: asyncio.Future[Any] = loop.create_future()
        self._gathered.setdefault(batcher, []).append((arrays, deadline, own))
        return own

    def _gather(self, loop: asyncio.AbstractEventLoop, before: int, until: float) -> None:
        """Hand requests to batchers once an iteration of the loop brings no further request.

        before: number of requests before the last iteration.
        until: the loop's time at which requests are handed over in any case.
        """
        if self._count > before and loop.time() < until:
            loop.call_soon(self._gather, loop, self._count, until)
        else:
            self.hand_over()

    def hand_over(self) -> None:
        """Hand all requests to their batchers immediately."""
        loop = asyncio.get_running_loop()
        gathered, self._gathered = self._gathered, {}
        for batcher, entries in gathered.items():
            futures = batcher.submit_all((arrays, deadline) for arrays, deadline, _ in entries)
            for (_, _, own), future in zip(entries, futures, strict=True):
                own.add_done_callback(partial(_cancel, future))
                future.add_done_callback(partial(self._note_done, loop, own))

    def _note_done(self, loop: asyncio.AbstractEventLoop, own: asyncio.Future[Any],
                   future: Future[Any]) -> None:
        """Queue a result from a batcher's thread, and wake the loop."""
        self._done.append((own, future))
        if not self._is_waking and not loop.is_closed():
            self._is_waking = True
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # set first, so that a result that arrives during the loop below wakes the event loop again
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
