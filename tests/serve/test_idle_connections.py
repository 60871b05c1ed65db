"""Connections that send too little, too much, or read nothing, on a clock that the tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

for needed in ("fastapi", "httptools", "prometheus_client", "uvicorn"):
    pytest.importorskip(needed)

from gossamer.serve import connection as limits  # noqa: E402

REQUEST = b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
HALF = REQUEST[:20]


class _Timer:
    def __init__(self, end: float, work: Callable[[], None]) -> None:
        self.end, self.work, self.is_cancelled = end, work, False

    def cancel(self) -> None:
        self.is_cancelled = True


class _Loop:
    """Stands in for an event loop whose clock only pass_time() moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[_Timer] = []

    def call_later(self, delay: float, work: Callable[[], None]) -> _Timer:
        timer = _Timer(self.now + delay, work)
        self._timers.append(timer)
        return timer

    def create_task(self, work: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work, **options)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for timer in list(self._timers):
            if timer.end <= self.now and not timer.is_cancelled:
                timer.cancel()
                timer.work()


class _Transport:
    """A transport that keeps what is written, and whether it was closed."""

    def __init__(self) -> None:
        self.written, self.is_closed = b"", False
        self.abort = self.close

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str) -> None:
        return None

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class _Connection:
    """A connection to an application that answers a request when the test lets it."""

    def __init__(self) -> None:
        import uvicorn
        from uvicorn.server import ServerState

        self.may_answer = asyncio.Event()
        self.loop, self.transport = _Loop(), _Transport()
        config = uvicorn.Config(self._answer, interface="asgi3", ws="none", lifespan="off",
                                log_level="error", access_log=False, timeout_keep_alive=10**6)
        self.protocol = limits.Connection(config, ServerState(), {}, self.loop)
        self.protocol.connection_made(self.transport)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def get(self, *parts: bytes) -> None:
        """Receives bytes, and lets the application go on as far as it can."""
        for part in parts:
            self.protocol.data_received(part)
        for _ in range(10):
            await asyncio.sleep(0)

    async def answered(self) -> None:
        """Lets the application answer the requests that have come."""
        self.may_answer.set()
        await self.get()
        self.may_answer.clear()


def closes_after(seconds: float, before: Sequence[bytes], answers: int = 0,
                 then: Sequence[bytes] = ()) -> bool:
    """Returns whether a connection is closed some seconds after the last bytes that come.

    before: bytes that come at the connection's beginning.
    answers: the number of answers that are written to them.
    then: bytes that come after the answers, a second apart.
    """
    async def connect() -> bool:
        connection = _Connection()
        await connection.get(*before)
        if answers:
            await connection.answered()
        assert connection.transport.written.count(b"204") == answers
        for part in then:
            connection.loop.pass_time(1)
            await connection.get(part)
        assert not connection.transport.is_closed
        connection.loop.pass_time(seconds)
        return connection.transport.is_closed

    return asyncio.run(connect())


@pytest.mark.parametrize("before", [[], [HALF], [HALF, REQUEST[20:-2]], [b"P", b"O", b"S"]])
def test_a_head_has_to_come_in_time(before: list[bytes]) -> None:
    assert not closes_after(limits.IDLE_S - 1, before)
    assert closes_after(limits.IDLE_S, before)


def test_single_bytes_of_a_head_give_no_more_time() -> None:
    single = [bytes([byte]) for byte in REQUEST[:10]]
    assert not closes_after(limits.IDLE_S - len(single) - 1, [], then=single)
    assert closes_after(limits.IDLE_S - len(single), [], then=single)


@pytest.mark.parametrize("before", [[REQUEST], [REQUEST, b"bo"], [HALF, REQUEST[20:]],
                                    [REQUEST + b"body"]])
def test_a_request_that_is_being_answered_has_time(before: list[bytes]) -> None:
    assert not closes_after(1000 * limits.IDLE_S, before)


@pytest.mark.parametrize("count", [1, 2])
def test_the_head_of_the_next_request_has_to_come_in_time(count: int) -> None:
    before = [REQUEST + b"body"] * count
    assert not closes_after(limits.IDLE_S - 1, before, count, [HALF])
    assert closes_after(limits.IDLE_S, before, count, [HALF])
    assert not closes_after(1000 * limits.IDLE_S, before, count, [HALF, REQUEST[20:]])


@pytest.mark.parametrize("before", [[], [HALF], [REQUEST]])
def test_a_connection_that_is_lost_waits_for_nothing(before: list[bytes]) -> None:
    async def lose() -> None:
        connection = _Connection()
        await connection.get(*before)
        connection.protocol.connection_lost(OSError("reset"))
        connection.loop.pass_time(1000 * limits.IDLE_S)
        assert not connection.transport.is_closed

    asyncio.run(lose())


CHUNKED = REQUEST.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked") + b"1\r\n{\r\n0\r\n"
START = b"GET / HTTP/1.1\r\nHost: x\r\n"
PART = b"a" * 2**14


@pytest.mark.parametrize(("parts", "status"), [
    # what has no end
    ([b"GET /", *[PART] * 5], 431), ([START, b"X: ", *[PART] * 5], 431), ([b"\r\n" * 2**16], 431),
    ([START + b"X: " + PART * 4], 431), ([b"GET /" + PART * 4], 431),
    ([START, *[b"X: y\r\n"] * 101], 431), ([CHUNKED, b"X: ", *[PART] * 5], 431),
    ([CHUNKED, *[b"X: y\r\n"] * 100], 431), ([CHUNKED[:-5], b"\r\n1;", *[PART] * 5], 431),
    # what is complete
    ([START + b"X: " + b"a" * 2**16 + b"\r\n\r\n"], 431),
    ([START + b"X: y\r\n" * 98 + b"\r\n"], 204), ([CHUNKED + b"X: y\r\n" * 50 + b"\r\n"], 204),
    ([START + b"X: " + b"a" * 65000 + b"\r\n\r\n"], 204),
    ([b"CONNECT /v2 HTTP/1.1\r\nHost: x\r\n\r\n"], 400), ([b"\x16\x03\x01"], 400),
    ([(START + b"\r\n") * 17], 204), ([(START + b"\r\n") * 18, b"a" * 8], 204),
    ([START + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + START + b"\r\n"], 204),
])
def test_heads_that_are_too_long(parts: list[bytes], status: int) -> None:
    async def connect() -> None:
        connection = _Connection()
        await connection.get(*parts)
        connection.may_answer.set()
        for _ in range(17):
            await connection.get()
        written = connection.transport.written
        assert written.startswith(b"HTTP/1.1 %d " % status)
        if status == 431:
            assert b"at most 65536 bytes in 100 fields" in written
        connection.loop.pass_time(limits._LINGER_S)
        # a connection with a refusal is closed, and one with answers is kept
        assert connection.transport.is_closed == (status != 204 or len(parts) == 2)
        if status == 204:
            assert written.count(b"HTTP/1.1 204") == min(b"".join(parts).count(b"HTTP/1.1\r"), 17)

    asyncio.run(connect())


@pytest.mark.parametrize(("seconds", "reads"), [(29, False), (30, False), (30, True)])
def test_answers_that_nobody_reads(seconds: float, reads: bool) -> None:
    async def connect() -> bool:
        connection = _Connection()
        await connection.get(REQUEST)
        connection.protocol.pause_writing()
        if reads:
            connection.protocol.resume_writing()
        connection.loop.pass_time(seconds)
        is_closed = connection.transport.is_closed
        # the application would wait for ever
        connection.protocol.connection_lost(OSError("aborted"))
        return is_closed

    assert asyncio.run(connect()) == (not reads and seconds == 30)
