"""Waiting requests, and the choice of the next batch.

The time of the plan at each batch size is known. Of the sizes at which a batch would end before the
first request is due, the one with the most images per second is chosen. If no batch would end in
time, the size with the most images per second is chosen, because it shortens the queue fastest.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from gossamer.errors import DeadlineError
from gossamer.plan.run.context import single
from gossamer.plan.run.device_workers import BatchTask, Begin, Collect, Lanes, Member

_GAIN = 1.05
"""A batch size is used only if its images per second exceed those of all smaller sizes by this
factor. The factor is a rule of thumb for the difference between repeated measurements of a plan."""


class Request:
    """A caller's request: the inputs for one or several images.

    arrays: the inputs.
    rows: number of images in the inputs.
    due: time at which the outputs are wanted, by the monotonic clock in seconds.
    deadline: time after which the outputs are not needed any more, by the same clock.
    result: future of the outputs.
    """

    def __init__(self, arrays: Sequence[np.ndarray], rows: int, due: float,
                 deadline: float) -> None:
        self.arrays = arrays
        self.rows = rows
        self.due = due
        self.deadline = deadline
        self.result: Future[Any] = Future()
        self._outputs: dict[int, Sequence[np.ndarray]] = {}
        self._computed = 0
        self._lock = threading.Lock()

    def begin(self) -> bool:
        """Mark the request as being computed; return whether its outputs are still wanted."""
        if not self.is_wanted():
            return False
        with self._lock:
            return self.result.running() or (
                not self.result.done() and self.result.set_running_or_notify_cancel())

    def is_wanted(self) -> bool:
        """Return whether the outputs are still wanted; fail the request after its deadline."""
        if time.monotonic() >= self.deadline:
            self.fail(DeadlineError("the deadline passed before the request was computed; allow "
                                    "more time, or send fewer requests"))
        return not self.result.done()

    def fail(self, error: BaseException) -> None:
        """Pass an error to the caller, unless the request has ended."""
        with self._lock:
            if not self.result.done() and (self.result.running()
                                           or self.result.set_running_or_notify_cancel()):
                self.result.set_exception(error)

    def add(self, start: int, rows: int, outputs: Sequence[np.ndarray]) -> None:
        """Add the outputs of some images.

        When the outputs of all images were added, the future receives them.
        """
        with self._lock:
            self._outputs[start] = outputs
            self._computed += rows
            if self._computed < self.rows or self.result.done():
                return
            parts = [self._outputs[start] for start in sorted(self._outputs)]
        results = parts[0] if len(parts) == 1 else tuple(
            np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        self.result.set_result(single(results))


class Part(NamedTuple):
    """Images of a request that go into one batch.

    A request larger than a batch has several parts.
    """

    request: Request
    start: int
    rows: int


def chosen_size(rows: Sequence[int], left_s: float, times: Mapping[int, float]) -> tuple[int, int]:
    """Return the next batch's size, and the number of parts that go into it.

    rows: number of images of each part, in the order in which parts are computed.
    left_s: seconds until the first part is due.
    times: seconds that a batch takes, by batch size.
    """
    images = list(accumulate(rows))
    # of two equally good sizes the smaller one is taken
    _, _, smaller, count = max((seconds <= left_s, images[count - 1] / seconds, -size, count)
                               for size, seconds in times.items()
                               if (count := bisect_right(images, size)))
    return -smaller, count


class WaitingRequests:
    """A batcher's waiting requests, in the order of due times.

    times: for each device, the seconds that a batch takes, by batch size; empty if each request is
    computed alone.
    batches: number of batches of each size that were begun.
    rows: number of images that wait now.
    """

    def __init__(self, times: Mapping[Member, Mapping[int, float]]) -> None:
        self._times = times
        self.batches: Counter[int] = Counter()
        self.rows = 0
        self._parts: list[Part] = []
        self._largest = min(max(sizes, default=0) for sizes in times.values())

    def add(self, request: Request) -> None:
        """Add a request; the caller has checked that the queue has room."""
        self.rows += request.rows
        step = self._largest or request.rows
        for start in range(0, request.rows, step):
            # parts that are due at the same time stay in the order in which they were added
            insort(self._parts, Part(request, start, min(step, request.rows - start)),
                   key=lambda part: part.request.due)

    def next_task(self, member: Member) -> BatchTask | None:
        """Return the batch that a device computes next; None if no request waits."""
        times = self._times[member]
        while self._parts:
            size, count = self._parts[0].rows, 1
            if self._largest:
                size, count = chosen_size([part.rows for part in self._parts[:max(times)]],
                                          self._parts[0].request.due - time.monotonic(), times)
            parts, self._parts[:count] = self._parts[:count], []
            self.rows -= sum(part.rows for part in parts)
            begun = [part for part in parts if part.request.begin()]
            if begun:
                self.batches[size] += 1
                result: Future[Sequence[np.ndarray]] = Future()
                result.add_done_callback(partial(_hand_out, begun, size))
                return BatchTask(joined(begun, size), result)
        return None

    def drop_unwanted(self) -> None:
        """Drop the requests whose outputs are not wanted any more."""
        self._parts = [part for part in self._parts if part.request.is_wanted()]
        self.rows = sum(part.rows for part in self._parts)

    def fail_all(self, error: Exception) -> None:
        """Fail all waiting requests with an error."""
        while self._parts:
            self._parts.pop().request.fail(error)
        self.rows = 0


def joined(parts: Sequence[Part], size: int) -> Begin:
    """Return the function that begins a batch of several parts."""

    def begin(lanes: Lanes) -> Collect:
        lane = lanes.take(size)
        if parts[0].request.rows == size:
            return lanes.begun(lane, parts[0].request.arrays)
        position = 0
        for part in parts:
            stop = part.start + part.rows
            for target, source in zip(lane.pinned, part.request.arrays, strict=True):
                target[position:position + part.rows] = source[part.start:stop]
            position += part.rows
        for target in lane.pinned:
            target[position:] = 0
        return lanes.begun(lane, lane.pinned)

    return begin


def _hand_out(parts: Sequence[Part], size: int,
              result: Future[Sequence[np.ndarray]]) -> None:
    """Give each part its rows of the outputs.

    If the batch failed, the request of each part fails with the same error.
    """
    if error := result.exception():
        for part in parts:
            part.request.fail(error)
        return
    outputs = result.result()
    start = 0
    for part in parts:
        stop = start + part.rows
        # an output may have several rows for each image
        part.request.add(part.start, part.rows, tuple(
            output if part.rows == size else
            output[len(output) // size * start:len(output) // size * stop] for output in outputs))
        start = stop


def measured_times(seconds_of: Callable[[int], float], sizes: Sequence[int],
                   most_s: float = math.inf) -> dict[int, float]:
    """Return the seconds that a batch takes, by batch size.

    The first of the increasing `sizes` is always included. A size is left out if it computes hardly
    more images per second than smaller sizes: it would only make requests wait longer. Measuring
    ends at the first size that takes longer than most_s; this size is left out. Measuring also ends
    when two sizes in a row are left out. After a single one it continues, because that measurement
    may have been disturbed.
    """
    times: dict[int, float] = {}
    best, left_out = 0.0, 0
    for size in sizes:
        seconds = seconds_of(size)
        if times and seconds > most_s:
            break
        if size / seconds >= _GAIN * best:
            times[size], best, left_out = seconds, size / seconds, 0
        elif (left_out := left_out + 1) == 2:
            break
    return times
