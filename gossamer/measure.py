"""The only place where times are taken and judged."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import DeviceError

Work = Callable[[Any], None]
"""Queues device work on the stream it is given."""

_THREADS = Path("/proc/self/task")
_CONTENDED = 0.1
"""Waiting as a share of the time; on a quiet machine it is below a third of this."""
_WAITED = 0.05
"""Seconds of waiting that are worth a word."""


@dataclass(frozen=True)
class Timing:
    """Microseconds of one execution: median and quartiles over `repeats` samples."""

    median_us: float
    p25_us: float
    p75_us: float
    repeats: int

    @staticmethod
    def of(samples: Sequence[float]) -> Timing:
        if len(samples) == 1:
            return Timing(samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return Timing(median, low, high, len(samples))


class CpuContention:
    """Whether other programs held the processors while times were taken on them.

    A product whose threads work together then waits for the one that has no processor: some take
    fifty times as long, where one thread alone loses nothing.

    seconds: of watching. waited_s: of all threads of this process together in that time, how long
    they could have run and had no processor.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waited_s = 0.0

    @contextmanager
    def watched(self, device: Device) -> Iterator[None]:
        """While the body takes times on a device, of which those on processors count."""
        before, start = waited_s() if device.on_processors else None, time.monotonic()
        yield
        if before is not None and (after := waited_s()) is not None:
            self.seconds += time.monotonic() - start
            # threads that ended took their share along
            self.waited_s += max(after - before, 0.0)

    @property
    def matters(self) -> bool:
        """Whether the times are too long for it."""
        return self.waited_s > max(_CONTENDED * self.seconds, _WAITED)


def waited_s() -> float | None:
    """Seconds that the threads of this process were ready to run and had no processor, since each
    began; None where the system does not tell (Linux does)."""
    waits = []
    try:
        for thread in os.listdir(_THREADS):
            waits.append(int((_THREADS / thread / "schedstat").read_text().split()[1]))
    except (OSError, ValueError, IndexError):
        return None
    return sum(waits) / 1e9


@dataclass(frozen=True)
class Task:
    """Work, and the device whose events time it. Not captured: each repeat is launched from
    Python, as for work that is a graph already or cannot become one."""

    device: Device
    work: Work
    captured: bool = True


def measure(device: Device, works: Sequence[Work], *, repeats: int = 20,
            sample_us: float = 200.0, budget_us: float = 2e6) -> list[Timing]:
    """Times of each work by the device's own events; see `interleave`."""
    return interleave([Task(device, work) for work in works], repeats=repeats,
                      sample_us=sample_us, budget_us=budget_us)


def interleave(tasks: Sequence[Task], *, repeats: int = 20, sample_us: float = 200.0,
               budget_us: float = 2e6) -> list[Timing]:
    """Times of each task, samples interleaved, after a warm-up.

    A sample repeats a short work until it lasts about `sample_us`, within one captured graph
    where the device has graphs, so that neither the event's grain nor the launch from Python
    counts. Caches are warm. Sampling stops after `repeats` rounds, or three when `budget_us`
    microseconds are spent.
    """
    results = sampled([prepared(task, sample_us) for task in tasks], repeats, budget_us)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if isinstance(result, Timing)]


@dataclass(frozen=True)
class PreparedTask:
    """A task that ran and is ready to be sampled; `run` executes its work `count` times. once_us:
    of one execution in its warm-up."""

    device: Device
    run: Work
    count: int
    once_us: float


def prepared(task: Task, sample_us: float) -> PreparedTask:
    """The task after its warm-up, recorded as a graph where it can be. What its work raises
    passes through."""
    device, work = task.device, task.work
    device.time(work)
    once = device.time(work)
    count = max(1, min(100, round(sample_us / max(once, 0.1))))

    def several(stream: Any) -> None:
        for _ in range(count):
            work(stream)

    if not (device.limits.graph and task.captured):
        return PreparedTask(device, several, count, once)
    graph = device.capture(several)
    assert graph is not None

    def replay(stream: Any) -> None:
        graph(stream)  # type: ignore[call-arg]

    device.time(replay)
    return PreparedTask(device, replay, count, once)


def sampled(tasks: Sequence[PreparedTask], repeats: int, budget_us: float,
            hopeless: float = math.inf) -> list[Timing | Exception]:
    """Of each task, its times, samples interleaved; or what it raised meanwhile, which ends its
    part only. A time below zero does not count; a task that has no other has a DeviceError. What
    takes more than `hopeless` times as long as the fastest, both in its warm-up and in its first
    sample, has no second one."""
    samples: list[list[float]] = [[] for _ in tasks]
    failures: dict[int, Exception] = {}
    left: set[int] = set()
    spent = 0.0
    for done in range(repeats):
        if done == 1:
            first = {index: own[0] for index, own in enumerate(samples) if own}
            known = [*first.values(), *(task.once_us for task in tasks if task.once_us >= 0)]
            most = hopeless * min(known, default=math.inf)
            left = {index for index, time_us in first.items()
                    if min(time_us, tasks[index].once_us) > most}
        for index, task in enumerate(tasks):
            if index in failures or index in left:
                continue
            try:
                elapsed = task.device.time(task.run)
            except Exception as failure:
                failures[index] = failure
                continue
            spent += abs(elapsed)
            if elapsed >= 0:
                samples[index].append(elapsed / task.count)
        if spent > budget_us and done >= 2:
            break
    backwards = DeviceError("the device's clock ran backwards: no time is known")
    return [failures.get(index) or (Timing.of(own) if own else backwards)
            for index, own in enumerate(samples)]
