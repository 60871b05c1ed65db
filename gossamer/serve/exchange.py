"""Exchanges requests and results between an event loop and the threads of batchers.

A thread that hands something to another thread releases Python's lock and waits until it has the
lock again, which takes longer than most steps of a request. So the loop first reads all requests
that have arrived, and hands them over together. The loop is woken once for all results that came
meanwhile.
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
        """Returns the future of a request's outputs, which a batcher computes. Cancelling the
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
        """Hands all requests over, or looks again after the loop's next round.

        before: number of requests that had come at the last look.
        until: the loop's time after which requests are handed over in any case.
        """
        if self._count > before and loop.time() < until:
            loop.call_soon(self._gather, loop, self._count, until)
        else:
            self.hand_over()

    def hand_over(self) -> None:
        """Hands all requests to their batchers now, for example before a batcher is closed."""
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
