"""Takes all times: samples of device work, and the contention for processors meanwhile."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gossamer.device.base import Device
from gossamer.errors import DeviceError, DeviceLostError

Work = Callable[[Any], None]
"""A function that queues device work on the stream that it is called with."""

_THREADS = Path("/proc/self/task")
_STATISTICS = Path("/proc/stat")
_CONTENDED = 0.1
"""Waiting time as a share of the elapsed time from which on contention matters; on an idle machine
it is below a third of this."""
_WAITED = 5e-3
"""Seconds of waiting below which nothing is spoilt; now and then the system itself takes a
processor for as long."""
_TAKEN = 0.9
"""Share of the machine's processors from which on they are too few, where one of them is counted
for this process and the rest is what other programs had. Processors of virtual machines are
often two of one core, and cores share their memory's bandwidth: a thread that never waits then
takes twice as long."""
JUDGED_S = 0.25
"""Seconds of watching that tell how many processors other programs had; the system counts their
time in hundredths of a second."""
_TRIES = 3
"""How often times are taken where contention spoils them."""

_Times = TypeVar("_Times")

SLACK = 0.02
"""The relative difference up to which two times count as equal."""


@dataclass(frozen=True)
class Timing:
    """Microseconds of one execution: the median and the quartiles of `repeats` samples."""

    median_us: float
    p25_us: float
    p75_us: float
    repeats: int

    @staticmethod
    def of(samples: Sequence[float]) -> Timing:
        """Returns the timing of at least one sample, each in microseconds."""
        if len(samples) == 1:
            return Timing(samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return Timing(median, low, high, len(samples))


class CpuContention:
    """Detects whether other programs occupied the processors while times were taken on them.

    A matrix product whose threads work together waits for the thread that has no processor. It can
    take fifty times as long, while a single thread loses nothing.

    Threads of this process wait for one another too, where they are more than there are processors.
    Therefore waiting counts only up to the time in which other programs had a processor.

    A thread that does not wait is slowed too where other programs have all other processors, but
    evenly: what is compared under that load may be trusted, how long it takes may not.

    seconds: seconds of watching. waited_s: seconds in that time, summed over all threads of this
    process, in which a thread was ready to run and another program had its processor. spoilt:
    number of stretches of watching in which threads waited so long that times that were taken there
    cannot be trusted. others: processors that other programs had on average in the last JUDGED_S or
    more seconds of watching, where they left too few; else 0. crowded_s: seconds of watching in
    which they left too few.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waited_s = 0.0
        self.spoilt = 0
        self.others = 0.0
        self.crowded_s = 0.0
        self._crowded_others_s = 0.0
        self._recent_s, self._recent_others_s = 0.0, 0.0

    @contextmanager
    def watched(self, device: Device) -> Iterator[None]:
        """Watches one stretch, in which the body of the context takes times; only devices on
        processors count."""
        before, start = waits() if device.on_processors else None, time.monotonic()
        yield
        if before is not None and (after := waits()) is not None:
            seconds = time.monotonic() - start
            between = after - before
            self.seconds += seconds
            self.waited_s += between.caused_by_others
            if between.others_s < math.inf:
                self._note_others(seconds, between.others_s)
            self.spoilt += between.caused_by_others > max(_CONTENDED * seconds, _WAITED)

    def _note_others(self, seconds: float, others_s: float) -> None:
        self._recent_s += seconds
        self._recent_others_s += others_s
        if self._recent_s >= JUDGED_S:
            others = self._recent_others_s / self._recent_s
            self.others = others if lack_of_processors(others) else 0.0
            if self.others:
                self.crowded_s += self._recent_s
                self._crowded_others_s += self._recent_others_s
            self._recent_s, self._recent_others_s = 0.0, 0.0

    def undisturbed(self, device: Device, take: Callable[[], _Times]) -> tuple[_Times, bool]:
        """Returns what `take` returns, which takes times, and whether contention spoilt them. It is
        called again where it did, a few times at most, as most other programs need a processor for
        a moment only. Only a last call that was spoilt counts in `spoilt`."""
        for _ in range(_TRIES):
            spoilt_before = self.spoilt
            with self.watched(device):
                times = take()
            if self.spoilt == spoilt_before:
                return times, False
            self.spoilt = spoilt_before
        self.spoilt += 1
        return times, True

    @property
    def notice(self) -> str:
        """The beginning of a notice on times that were spoilt, or are too long; empty where none
        were."""
        if self.spoilt:
            return (f"the processors were wanted elsewhere: in {self.seconds:.1f} s of sampling, "
                    f"threads waited {self.waited_s:.1f} s for one; the times are too long, of "
                    "some layers many times")
        if not self.crowded_s:
            return ""
        others = self._crowded_others_s / self.crowded_s
        return (f"other programs had {others:.1f} of {os.cpu_count()} processors in "
                f"{self.crowded_s:.1f} of {self.seconds:.1f} s of sampling: times that were taken "
                "then are too long, up to twice")


def lack_of_processors(others: float) -> bool:
    """Returns whether other programs, which have that many processors on average, leave one thread
    of this process without a processor of its own, or with a neighbour that slows it."""
    return max(_TAKEN * (os.cpu_count() or 1) - 1, 0.5) <= others < math.inf


@dataclass(frozen=True)
class Waits:
    """Seconds in which threads of this process waited for a processor, and processor seconds that
    other programs had, so far or in a stretch of time."""

    waited_s: float
    others_s: float

    def __sub__(self, before: Waits) -> Waits:
        # the waiting time of threads that ended is missing from the later sum
        return Waits(max(self.waited_s - before.waited_s, 0.0),
                     max(self.others_s - before.others_s, 0.0) if self.others_s < math.inf
                     else math.inf)

    def __add__(self, other: Waits) -> Waits:
        return Waits(self.waited_s + other.waited_s, self.others_s + other.others_s)

    @property
    def caused_by_others(self) -> float:
        """Seconds of waiting that other programs can have caused."""
        return min(self.waited_s, self.others_s)


def waits() -> Waits | None:
    """Returns the waits of this process so far; None where the system does not report them. What
    other programs had is infinite where only that is not reported."""
    waited, others = waited_s(), others_s()
    return None if waited is None else Waits(waited, math.inf if others is None else others)


def others_s() -> float | None:
    """Returns the processor seconds that other programs had so far; None where the system does not
    report them (Linux does)."""
    try:
        ticks = _STATISTICS.read_text().partition("\n")[0].split()[1:9]
        user, nice, system, _, _, interrupts, soft_interrupts, stolen = map(int, ticks)
        per_second = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    busy = user + nice + system + interrupts + soft_interrupts + stolen
    return busy / per_second - time.process_time()


def waited_s() -> float | None:
    """Returns the seconds in which threads of this process were ready to run and had no processor,
    summed over all live threads; None where the system does not report them (Linux does)."""
    waits = []
    try:
        for thread in os.listdir(_THREADS):
            waits.append(int((_THREADS / thread / "schedstat").read_text().split()[1]))
    except (OSError, ValueError, IndexError):
        return None
    return sum(waits) / 1e9


@dataclass(frozen=True)
class Task:
    """Work to be timed, and the device whose events time it.

    captured: whether repeats are captured as a graph. Otherwise each repeat is launched from
    Python, as is needed for work that is a graph already or cannot become one. as_in_plan: whether
    kernels of captured repeats begin early, as Device.timed_graph says.
    """

    device: Device
    work: Work
    captured: bool = True
    as_in_plan: bool = False


def measure(device: Device, works: Sequence[Work], *, repeats: int = 20,
            sample_us: float = 200.0, budget_us: float = 2e6) -> list[Timing]:
    """Returns the times of each work on one device, in the order of `works`; see `interleave`."""
    return interleave([Task(device, work) for work in works], repeats=repeats,
                      sample_us=sample_us, budget_us=budget_us)


def interleave(tasks: Sequence[Task], *, repeats: int = 20, sample_us: float = 200.0,
               budget_us: float = 2e6) -> list[Timing]:
    """Returns the times of each task, whose samples are interleaved after a warm-up.

    A sample repeats short work until it lasts about `sample_us` microseconds, within one captured
    graph where the device has graphs, so that neither the resolution of events nor the launch from
    Python matters. Caches are warm. Sampling stops after `repeats` rounds, or after three or more
    once `budget_us` microseconds are spent. What the work raises passes through.
    """
    results = sampled([prepared(task, sample_us) for task in tasks], repeats, budget_us)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if isinstance(result, Timing)]


@dataclass(frozen=True)
class PreparedTask:
    """A task after its warm-up. `sample` executes its work `count` times and returns the time of
    all together in microseconds.

    once_us: microseconds of one execution in the warm-up.
    """

    sample: Callable[[], float]
    count: int
    once_us: float


def prepared(task: Task, sample_us: float) -> PreparedTask:
    """Returns the task after its warm-up, captured as a graph where possible. What its work raises
    passes through."""
    device, work = task.device, task.work
    in_graph = device.limits.graph and task.captured
    once = device.timed_graph(work, 1) if in_graph else partial(device.time, work)
    once()
    return repeated(task, sample_us, once())


def repeated(task: Task, sample_us: float, once_us: float) -> PreparedTask:
    """Returns a task whose samples last about so long. once_us: microseconds of an execution, after
    one or more that warmed up."""
    device, work = task.device, task.work
    count = max(1, min(100, round(sample_us / max(once_us, 0.1))))
    if device.limits.graph and task.captured:
        sample = device.timed_graph(work, count, as_in_plan=task.as_in_plan)
        sample()
        return PreparedTask(sample, count, once_us)

    def repeat(stream: Any) -> None:
        for _ in range(count):
            work(stream)

    return PreparedTask(partial(device.time, repeat), count, once_us)


def sampled(tasks: Sequence[PreparedTask], repeats: int, budget_us: float,
            hopeless: float = math.inf) -> list[Timing | Exception]:
    """Returns the times of each task, or the exception that it raised. Samples are interleaved.

    An exception ends the sampling of its task only. A negative time is dropped, and a task without
    any other time has a DeviceError. A task has only one sample where it took more than `hopeless`
    times as long as the fastest, both in its warm-up and in its first sample. Raises
    DeviceLostError.
    """
    samples: list[list[float]] = [[] for _ in tasks]
    failures: dict[int, Exception] = {}
    dropped: set[int] = set()
    spent = 0.0
    for sampled_rounds in range(repeats):
        if sampled_rounds == 1:
            first = {index: times[0] for index, times in enumerate(samples) if times}
            all_times = [*first.values(), *(task.once_us for task in tasks if task.once_us >= 0)]
            slowest = hopeless * min(all_times, default=math.inf)
            dropped = {index for index, time_us in first.items()
                       if min(time_us, tasks[index].once_us) > slowest}
        for index, task in enumerate(tasks):
            if index in failures or index in dropped:
                continue
            try:
                elapsed = task.sample()
            except DeviceLostError:
                raise
            except Exception as failure:
                failures[index] = failure
                continue
            spent += abs(elapsed)
            if elapsed >= 0:
                samples[index].append(elapsed / task.count)
        if spent > budget_us and sampled_rounds >= 2:
            break
    backwards = DeviceError("the device's clock ran backwards: no time is known")
    return [failures.get(index) or (Timing.of(times) if times else backwards)
            for index, times in enumerate(samples)]
