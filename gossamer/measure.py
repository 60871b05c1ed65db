"""The only place where times are taken and judged."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import DeviceError

Work = Callable[[Any], None]
"""Queues device work on the stream it is given."""


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
class Prepared:
    """A task that ran and is ready to be sampled; `run` executes its work `count` times."""

    device: Device
    run: Work
    count: int


def prepared(task: Task, sample_us: float) -> Prepared:
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
        return Prepared(device, several, count)
    graph = device.capture(several)
    assert graph is not None

    def replay(stream: Any) -> None:
        graph(stream)  # type: ignore[call-arg]

    device.time(replay)
    return Prepared(device, replay, count)


def sampled(tasks: Sequence[Prepared], repeats: int,
            budget_us: float) -> list[Timing | Exception]:
    """Of each task, its times, samples interleaved; or what it raised meanwhile, which ends its
    part only. A time below zero does not count; a task that has no other has a DeviceError."""
    samples: list[list[float]] = [[] for _ in tasks]
    failures: dict[int, Exception] = {}
    spent = 0.0
    for done in range(repeats):
        for index, task in enumerate(tasks):
            if index in failures:
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
