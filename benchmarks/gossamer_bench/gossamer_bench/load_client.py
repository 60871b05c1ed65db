"""A client that sends requests to a server: at random times with a given mean rate, or one after
another on several connections. The client is a process of its own, so that it takes no time from
the server's process.

    python -m gossamer_bench.load_client < request.json

The client reads a `Request` as JSON, with the bodies in base 64, and prints an `Outcome` as JSON.
The client needs only Python's standard library.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

_DRAIN_S = 30.0
"""The most seconds for which a client that sends at random times waits for answers after its last
request."""


@dataclass(frozen=True)
class Request:
    """The requests that a client sends.

    host, port, path: address to which the requests are sent.
    headers: headers of each request.
    bodies: bodies of the requests; the requests use the bodies in turn.
    rate: mean number of requests per second, at random times (a Poisson process); None where each
    connection sends its next request as soon as its last request was answered.
    seconds: time during which requests are sent.
    connections: the most connections that are in use at once.
    check: whether the distinct answers to each body are kept.
    """

    host: str
    port: int
    path: str
    headers: Mapping[str, str]
    bodies: Sequence[bytes]
    rate: float | None
    seconds: float
    connections: int = 64
    check: bool = False


@dataclass
class Outcome:
    """The answers that came back.

    latencies_s: seconds between the moment at which a request was due and its answer, for each
    successful request.
    statuses: number of answers by HTTP status; "failed" counts the requests without an answer.
    seconds: time from the first request to the last answer.
    answers: distinct answers to each body, in base 64. The key is the index of the body, as text.
    """

    latencies_s: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    answers: dict[str, list[str]] = field(default_factory=dict)

    def percentile_s(self, percent: float) -> float:
        """Returns a percentile of the latencies of successful requests, in seconds; infinite where
        no request was successful. percent: which percentile, from 0 to 100."""
        ordered = sorted(self.latencies_s)
        if not ordered:
            return float("inf")
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    @property
    def rate(self) -> float:
        """Number of successful answers per second."""
        return len(self.latencies_s) / self.seconds if self.seconds else 0.0


def run(request: Request) -> Outcome:
    """Sends requests from a process of its own, and returns their outcome."""
    plain = asdict(request) | {"bodies": [base64.b64encode(body).decode()
                                          for body in request.bodies]}
    done = subprocess.run([sys.executable, "-m", __name__], input=json.dumps(plain),
                          capture_output=True, text=True, check=True)
    return Outcome(**json.loads(done.stdout))


_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _ClosedUnanswered(ConnectionError):
    """The server closed a connection before it answered."""


class _Client:
    """The client's connections, and the answers that came back on them."""

    def __init__(self, request: Request) -> None:
        self._request = request
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        self._messages = [
            f"POST {request.path} HTTP/1.1\r\nHost: {request.host}\r\n{head}"
            f"Content-Length: {len(body)}\r\n\r\n".encode() + body for body in request.bodies]
        self._idle: list[_Connection] = []
        self._places = asyncio.Semaphore(request.connections)
        self._statuses: Counter[str] = Counter()
        self._answers: dict[str, set[bytes]] = {}
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        """Sends all requests, and waits for their answers."""
        start = time.monotonic()
        if self._request.rate is None:
            await asyncio.gather(*(self._one_after_another(index, start + self._request.seconds)
                                   for index in range(self._request.connections)))
        else:
            await self._at_random_times(start, self._request.rate)
        self.outcome.seconds = time.monotonic() - start
        self.outcome.statuses = dict(self._statuses)
        self.outcome.answers = {name: [base64.b64encode(answer).decode() for answer in answers]
                                for name, answers in self._answers.items()}
        return self.outcome

    async def _one_after_another(self, index: int, end: float) -> None:
        while time.monotonic() < end:
            await self._send(index, time.monotonic())
            index += self._request.connections

    async def _at_random_times(self, start: float, rate: float) -> None:
        numbers = random.Random(0)
        tasks: set[asyncio.Task[None]] = set()
        due, index = start, 0
        while due < start + self._request.seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self._send(index, due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due += numbers.expovariate(rate)
            index += 1
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_DRAIN_S)
            self._statuses["failed"] += len(late)

    async def _send(self, index: int, due: float) -> None:
        async with self._places:
            try:
                connection, status, answer, is_kept = await self._exchange(index)
            except (OSError, EOFError, ValueError):
                self._statuses["failed"] += 1
                return
        if is_kept:
            self._idle.append(connection)
        else:
            connection[1].close()
        self._statuses[status] += 1
        if status == "200":
            self.outcome.latencies_s.append(time.monotonic() - due)
            if self._request.check:
                name = str(index % len(self._messages))
                self._answers.setdefault(name, set()).add(answer)

    async def _exchange(self, index: int) -> tuple[_Connection, str, bytes, bool]:
        """Sends a request on an idle connection or a new one. Returns the connection, followed by
        the values that `_answer` returns. A server may close a connection that is idle for too
        long; the request then goes to the next connection, as with other HTTP clients."""
        while self._idle:
            connection = self._idle.pop()
            with contextlib.suppress(_ClosedUnanswered):
                return connection, *await self._answer(*connection, index)
        connection = await asyncio.open_connection(self._request.host, self._request.port)
        return connection, *await self._answer(*connection, index)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
                      index: int) -> tuple[str, bytes, bool]:
        """Sends a request; returns the status, the body, and whether the connection is kept.
        Raises _ClosedUnanswered where the connection ends before the first byte of the answer."""
        try:
            writer.write(self._messages[index % len(self._messages)])
            await writer.drain()
            first = await reader.read(1)
        except ConnectionError as error:
            raise _ClosedUnanswered from error
        if not first:
            raise _ClosedUnanswered
        rest = await reader.readuntil(b"\r\n\r\n")
        head = (first + rest).decode("latin-1").lower()
        length = int(head.partition("\r\ncontent-length:")[2].partition("\r\n")[0])
        body = await reader.readexactly(length)
        return head.split(" ", 2)[1], body, "connection: close" not in head


def _main() -> None:
    plain = json.load(sys.stdin)
    bodies = [base64.b64decode(body) for body in plain.pop("bodies")]
    outcome = asyncio.run(_Client(Request(bodies=bodies, **plain)).run())
    json.dump(asdict(outcome), sys.stdout)


if __name__ == "__main__":
    _main()
