"""The only place where times are taken and judged."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.device.base import Device

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
    runs = [_repeated(task, sample_us) for task in tasks]
    samples: list[list[float]] = [[] for _ in tasks]
    spent = 0.0
    for done in range(repeats):
        for task, own, (run, count) in zip(tasks, samples, runs, strict=True):
            elapsed = task.device.time(run)
            spent += elapsed
            own.append(elapsed / count)
        if spent > budget_us and done >= 2:
            break
    return [Timing.of(own) for own in samples]


def _repeated(task: Task, sample_us: float) -> tuple[Work, int]:
    device, work = task.device, task.work
    device.time(work)
    once = device.time(work)
    count = max(1, min(100, round(sample_us / max(once, 0.1))))

    def several(stream: Any) -> None:
        for _ in range(count):
            work(stream)

    if not (device.limits.graph and task.captured):
        return several, count
    graph = device.capture(several)
    assert graph is not None

    def replay(stream: Any) -> None:
        graph(stream)  # type: ignore[call-arg]

    device.time(replay)
    return replay, count
