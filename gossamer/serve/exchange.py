"""What an event loop and the threads of batchers give each other: requests and results.

Each exchange with another thread gives up Python's lock and waits for it again, which takes longer
than most of what is done for a request. So the loop hands requests over together, once it has read
all that are there, and is woken once for all results that came meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from gossamer.plan.batcher import Batcher

_GATHER_S = 2e-3
"""Seconds for which the loop goes on reading while each of its rounds brings another request."""

_Entry = tuple[Mapping[str, np.ndarray], float | None, asyncio.Future[Any]]


class Exchange:
    """The requests and results of one event loop."""

    def __init__(self) -> None:
        self._given: dict[Batcher, list[_Entry]] = {}
        self._count = 0
        self._done: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._is_waking = False

    def submit(self, batcher: Batcher, arrays: Mapping[str, np.ndarray],
               deadline: float | None) -> asyncio.Future[Any]:
        """Returns the future of what a batcher computes of a request. Cancelling it gives up a
        request that is not being computed yet."""
        loop = asyncio.get_running_loop()
        if not self._given:
            loop.call_soon(self._gather, loop, self._count, loop.time() + _GATHER_S)
        self._count += 1
        own: asyncio.Future[Any] = loop.create_future()
        self._given.setdefault(batcher, []).append((arrays, deadline, own))
        return own

    def _gather(self, loop: asyncio.AbstractEventLoop, before: int, until: float) -> None:
        """Hands all requests over, or looks again after the loop's next round.

        before: how many requests had come when this was last done. until: when it is done at last.
        """
        if self._count > before and loop.time() < until:
            loop.call_soon(self._gather, loop, self._count, until)
        else:
            self.hand_over()

    def hand_over(self) -> None:
        """Hands all requests to their batchers now, as before a batcher is closed."""
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
        # what comes from now on wakes the loop again
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
