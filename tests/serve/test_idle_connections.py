"""Connections that do not send the head of a request in time, on a clock that the tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

for needed in ("fastapi", "httptools", "prometheus_client", "uvicorn"):
    pytest.importorskip(needed)

from gossamer.serve import run  # noqa: E402

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
        self.protocol = run._Protocol(config, ServerState(), {}, self.loop)
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
    assert not closes_after(run._IDLE_S - 1, before)
    assert closes_after(run._IDLE_S, before)


def test_single_bytes_of_a_head_give_no_more_time() -> None:
    single = [bytes([byte]) for byte in REQUEST[:10]]
    assert not closes_after(run._IDLE_S - len(single) - 1, [], then=single)
    assert closes_after(run._IDLE_S - len(single), [], then=single)


@pytest.mark.parametrize("before", [[REQUEST], [REQUEST, b"bo"], [HALF, REQUEST[20:]],
                                    [REQUEST + b"body"]])
def test_a_request_that_is_being_answered_has_time(before: list[bytes]) -> None:
    assert not closes_after(1000 * run._IDLE_S, before)


@pytest.mark.parametrize("count", [1, 2])
def test_the_head_of_the_next_request_has_to_come_in_time(count: int) -> None:
    before = [REQUEST + b"body"] * count
    assert not closes_after(run._IDLE_S - 1, before, count, [HALF])
    assert closes_after(run._IDLE_S, before, count, [HALF])
    assert not closes_after(1000 * run._IDLE_S, before, count, [HALF, REQUEST[20:]])


@pytest.mark.parametrize("before", [[], [HALF], [REQUEST]])
def test_a_connection_that_is_lost_waits_for_nothing(before: list[bytes]) -> None:
    async def lose() -> None:
        connection = _Connection()
        await connection.get(*before)
        connection.protocol.connection_lost(OSError("reset"))
        connection.loop.pass_time(1000 * run._IDLE_S)
        assert not connection.transport.is_closed

    asyncio.run(lose())
