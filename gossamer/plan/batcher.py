"""Computation of the requests of many callers in batches.

The plan's measured times determine the sizes of the batches.
"""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from numbers import Real
from typing import Any

from gossamer import debug
from gossamer.errors import DeadlineError, GossamerError, InputError, QueueFullError
from gossamer.io.text import duration_text
from gossamer.model.infer.resolve import mixing_node
from gossamer.plan.plan import Plan
from gossamer.plan.plan_group import PlanGroup
from gossamer.plan.run.device_workers import (
    CLOSED_AT_EXIT,
    Closable,
    Member,
    Members,
    SharedWork,
    failed,
    host_arrays,
)
from gossamer.plan.run.requests import Request, WaitingRequests, measured_times

_DEPTH = 2
"""Maximum number of batches in flight on a device: one is copied while another is computed."""


class Batcher(Closable):
    """Dynamic batching of requests from threads and asyncio tasks.

    The plan's times at batch sizes 1, 2, 4, ... are measured when the batcher is made. When a
    device is idle, the next batch is chosen by these times, and by the times at which the results
    of the waiting requests are due. No request waits while a device is idle. Each request is
    computed by itself if an input has a fixed batch size, or if the outputs for an image depend on
    the other images of its batch.

    Parameters
    ----------
    plan : Plan or PlanGroup
        The network, on one device or several.
    latency : float, optional
        Seconds within which results are wanted, such as 0.005. Batch sizes for which the plan takes
        longer are not used. By default the batcher only maximises the images per second.
    most : int, default 64
        Maximum number of images in a batch.
    queue : int, default 1024
        Maximum number of images that may wait. A request that does not fit into the queue is
        refused.

    Attributes
    ----------
    times : dict of int to float
        Seconds per batch on the slowest device, for each batch size that is used; empty if each
        request is computed by itself.

    Raises
    ------
    InputError
        If an argument is invalid, or if the plan is closed or cannot be streamed.
    """

    def __init__(self, plan: Plan | PlanGroup, latency: float | None = None, *, most: int = 64,
                 queue: int = 1024) -> None:
        if latency is not None and not (isinstance(latency, Real) and 0 < latency < math.inf):
            raise InputError(f"latency {latency!r}: expected seconds above 0, such as 0.005")
        for name, number in (("most", most), ("queue", queue)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InputError(f"{name} {number!r}: expected a whole number of 1 or more")
        members = plan.members if isinstance(plan, PlanGroup) else Members(
            [Member(plan.calls("be batched"))])
        self._calls = members.all[0].calls
        self._latency = math.inf if latency is None else latency
        self._plan = plan
        self._queue = queue
        network = self._calls.network
        self._is_together = all(info.shape[:1] == (None,) for info in network.inputs) and (
            mixing_node(network, 1) is None)
        sizes = [2**power for power in range(most.bit_length())]
        times = _times(members, sizes, self._latency) if self._is_together else {
            member: {} for member in members.usable}
        self.times = {size: max(each[size] for each in times.values())
                      for size in sorted(set.intersection(*map(set, times.values())))}
        self._waiting = WaitingRequests(times)
        self._work = SharedWork(members, self._waiting.next_task, _DEPTH, len(sizes))
        self._is_closed = False
        self._work.start()
        weakref.finalize(self, _give_up, self._work, self._waiting)
        CLOSED_AT_EXIT.add(self._work)

    def __repr__(self) -> str:
        """Return the plan, batch sizes and waiting images."""
        sizes = (f"batches of {', '.join(map(str, self.times))}" if self.times else
                 "each request alone")
        return f"<Batcher of {self._plan!r}: {sizes}; {self.waiting} waiting>"

    @property
    def waiting(self) -> int:
        """Number of images that wait now."""
        return self._waiting.rows

    @property
    def batches(self) -> dict[int, int]:
        """Number of batches of each size that were begun."""
        return dict(self._waiting.batches)

    def submit(self, *inputs: Any, deadline: float | None = None, **named: Any) -> Future[Any]:
        """Submit a request, and return at once.

        Parameters
        ----------
        *inputs : array
            One array in host memory for each input of the network, of one or several images, as for
            `plan(x)`. The arrays must not be changed before the result is available.
        deadline : float, optional
            Seconds after which the result is no longer needed. A request that still waits then is
            not computed.
        **named : array
            The inputs by name, instead of `inputs`.

        Returns
        -------
        concurrent.futures.Future
            The future's `result()` is what `plan(x)` returns, and its `cancel()` cancels a request
            that is not being computed yet.

        Raises
        ------
        InputError
            If the inputs do not fit the network or contain more images than the queue can hold, or
            if the batcher is closed.
        QueueFullError
            If there is no room in the queue.
        DeadlineError
            If the deadline is not in the future. If the deadline passes later, the result raises
            this error.
        """
        request = self._request(inputs, named, deadline)
        with self._work.changed:
            error = self._add(request)
            self._work.changed.notify()
        if error is not None:
            raise error
        return request.result

    def submit_all(self, requests: Iterable[tuple[Mapping[str, Any], float | None]]
                   ) -> list[Future[Any]]:
        """Submit several requests, and return at once.

        One call of `submit_all` is faster than many calls of `submit`, and its requests can be
        computed in one batch.

        Parameters
        ----------
        requests : iterable of (mapping of str to array, float or None)
            The inputs by name and the deadline of each request, as for `submit`.

        Returns
        -------
        list of concurrent.futures.Future
            For each request the future that `submit` would return. If `submit` would raise an
            error, the future has this error.
        """
        made: list[Request | Exception] = []
        for named, deadline in requests:
            try:
                made.append(self._request((), named, deadline))
            except Exception as problem:
                # only this request fails; its error is kept without its traceback, because a frame
                # of the traceback refers to `made`, and `made` and the error would form a cycle
                made.append(problem.with_traceback(None))
        with self._work.changed:
            for request in made:
                if isinstance(request, Request) and (error := self._add(request)):
                    request.fail(error)
            self._work.changed.notify(len(made))
        return [request.result if isinstance(request, Request) else failed(request)
                for request in made]

    def _request(self, inputs: tuple[Any, ...], named: Mapping[str, Any],
                 deadline: float | None) -> Request:
        """Return the request for these inputs; raise submit()'s errors if they do not fit."""
        arrays, rows = host_arrays(self._calls.graph, self._calls.in_order(inputs, named))
        if rows > self._queue:
            raise InputError(f"the request has {rows} images, but the queue holds at most "
                             f"{self._queue}; split it into several requests")
        if deadline is not None and not isinstance(deadline, Real):
            raise InputError(f"deadline {deadline!r}: expected seconds above 0, such as 0.05")
        if deadline is not None and not deadline > 0:
            raise DeadlineError(f"deadline {deadline}: expected seconds above 0")
        now = time.monotonic()
        until = now + (math.inf if deadline is None else deadline)
        request = Request(arrays, rows, min(now + self._latency, until), until)
        if any(array.size == 0 for array in arrays) or not arrays:
            request.result.set_result(self._plan(*arrays))
        return request

    def _add(self, request: Request) -> GossamerError | None:
        """Add a request to the queue, unless it is done.

        The caller holds the lock `changed`. Returns an error if the request cannot be accepted now,
        else None.
        """
        if self._is_closed:
            return InputError(f"{self._calls.graph.name}: the batcher is closed; make another one")
        if self._waiting.rows + request.rows > self._queue:
            self._waiting.drop_unwanted()
        if self._waiting.rows + request.rows > self._queue:
            return QueueFullError(f"the queue is full: {self._waiting.rows} of at most "
                                  f"{self._queue} images are waiting; try again later")
        if not request.result.done():
            self._waiting.add(request)
        return None

    def __call__(self, *inputs: Any, deadline: float | None = None, **named: Any) -> Any:
        """Submit a request, and wait for its result.

        Parameters
        ----------
        *inputs : array
            One array for each input of the network, as for `submit`.
        deadline : float, optional
            Seconds after which the result is no longer needed.
        **named : array
            The inputs by name, instead of `inputs`.

        Returns
        -------
        array or tuple of array
            What `plan(x)` returns.

        Raises
        ------
        InputError, QueueFullError, DeadlineError, DeviceError
            As `submit` does, or if the request fails later.
        """
        return self.submit(*inputs, deadline=deadline, **named).result()

    async def run_async(self, *inputs: Any, deadline: float | None = None, **named: Any) -> Any:
        """Compute a request without blocking the event loop.

        Cancelling the task cancels a request that is not being computed yet.

        Parameters
        ----------
        *inputs : array
            One array for each input of the network, as for `submit`.
        deadline : float, optional
            Seconds after which the result is no longer needed.
        **named : array
            The inputs by name, instead of `inputs`.

        Returns
        -------
        array or tuple of array
            What `plan(x)` returns.

        Raises
        ------
        InputError, QueueFullError, DeadlineError, DeviceError
            As `submit` does, or if the request fails later.
        """
        return await asyncio.wrap_future(self.submit(*inputs, deadline=deadline, **named))

    def close(self) -> None:
        """Refuse new requests, finish the waiting ones, and end.

        The plan stays open.
        """
        with self._work.changed:
            self._is_closed = True
        self._work.close()


def _give_up(work: SharedWork, waiting: WaitingRequests) -> None:
    """End a dropped batcher's threads, and fail its requests."""
    with work.changed:
        waiting.fail_all(InputError("the batcher was dropped; keep a reference to it until the "
                                    "results are available"))
    work.end()


def _times(members: Members, sizes: list[int],
           most_s: float) -> Mapping[Member, dict[int, float]]:
    """Return the seconds that a batch of each size takes on each device.

    The times are measured once for each kind of device.
    """
    times: dict[tuple[str, str, int], dict[int, float]] = {}
    for member in members.usable:
        kind = member.calls.device.kind
        if kind not in times:
            times[kind] = measured_times(partial(_seconds, member), sizes, most_s)
    return {member: times[member.calls.device.kind] for member in members.usable}


def _seconds(member: Member, size: int) -> float:
    """Return the seconds of a batch of zeros on a device, including copies."""
    seconds = member.seconds(size)
    debug.logger.info("%s on %s: a batch of %d takes %s", member.calls.graph.name,
                      member.calls.device.name, size, duration_text(1e6 * seconds))
    return seconds
