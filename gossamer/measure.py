"""The times of device work and of calls, as medians and quartiles of samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import DeviceError, DeviceLostError

Work = Callable[[Any], None]
"""A function that queues device work on the stream that it is called with."""

SCATTERED = 1.25
"""The ratio of the upper to the lower quartile above which a notice says that times scatter. On an
idle GPU it is below 1.05."""
SLACK = 0.02
"""The relative difference up to which two times count as equal."""
_PAUSE_S = 2e-3
_MOST_PAUSES = 100
"""The seconds of a pause in `wait_for_rest`, and the most pauses. Threads of OpenBLAS and ONNX
Runtime spin for up to 50 ms after their last work."""
_AT_REST = 0.1
"""The share of a pause below which the processor time of this process means that its threads are at
rest."""


@dataclass(frozen=True)
class Timing:
    """Microseconds of one execution: the median and the quartiles of `repeats` samples."""

    median_us: float
    p25_us: float
    p75_us: float
    repeats: int

    @staticmethod
    def of(samples: Sequence[float]) -> Timing:
        """Return the timing of at least one sample, each in microseconds."""
        if len(samples) == 1:
            return Timing(samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return Timing(median, low, high, len(samples))


def scatter_notice(timings: Iterable[Timing], device: Device) -> str:
    """Return a notice if the samples of most timings scatter, as they do where another program
    uses the device; otherwise ""."""
    spreads = [timing.p75_us / max(timing.p25_us, 1e-3) for timing in timings]
    if not spreads or statistics.median(spreads) <= SCATTERED:
        return ""
    # the text is the same for all plans on a device, so that it is printed only once
    return (f"the times on {device.name} scatter by more than {SCATTERED - 1:.0%} from quartile to "
            "quartile, and may be too long: another program, or other threads of this one, may use "
            "the device; measure again when it is idle, after `gossamer cache clear` where times "
            "are kept")


@dataclass(frozen=True)
class Task:
    """Work to be timed.

    device: the device whose events time the work.
    work: the function that queues the work.
    captured: whether executions are captured as a graph. Otherwise Python launches each of them,
    which is the way for work that is a graph already, or cannot become one.
    as_in_plan: whether kernels of captured executions may begin before the previous execution has
    ended; see Device.timed_graph.
    around: makes a context manager within which each sample is taken on processors, where
    `interleave` has its option `apart`.
    """

    device: Device
    work: Work
    captured: bool = True
    as_in_plan: bool = False
    around: Callable[[], AbstractContextManager[None]] = nullcontext


def called(call: Callable[[], object], *, repeats: int = 50, budget_us: float = 1e5) -> Timing:
    """Return the wall-clock time of a call that returns when its result is complete.

    The call is made at least twice, and at most `repeats` times.

    budget_us: microseconds after which no further call is made.
    """
    samples: list[float] = []
    begin = before = time.perf_counter()
    while len(samples) < 2 or (len(samples) < repeats and 1e6 * (before - begin) < budget_us):
        call()
        after = time.perf_counter()
        samples.append(1e6 * (after - before))
        before = after
    return Timing.of(samples)


def measure(device: Device, works: Sequence[Work], *, repeats: int = 20,
            sample_us: float = 200.0, budget_us: float = 2e6) -> list[Timing]:
    """Return the times of each work on one device, in the order of `works`; see `interleave`."""
    return interleave([Task(device, work) for work in works], repeats=repeats,
                      sample_us=sample_us, budget_us=budget_us)


def interleave(tasks: Sequence[Task], *, repeats: int = 20, sample_us: float = 200.0,
               budget_us: float = 2e6, apart: bool = False) -> list[Timing]:
    """Return the times of each task. Their samples are taken in turn, after a warm-up.

    A sample executes short work so often that it lasts about `sample_us` microseconds, within one
    captured graph where the device has graphs. Neither the resolution of events nor the launch
    from Python then matters, and caches are warm. Sampling stops after `repeats` rounds, or when at
    least three rounds are done and `budget_us` microseconds are spent. Exceptions of the work pass
    through.

    apart: whether to keep tasks on processors from disturbing each other. Before a sample of such a
    task, the threads of this process come to rest, and an execution that is not timed wakes the
    task's own threads.
    """
    prepare = _prepared_apart if apart else prepared
    results = sampled([prepare(task, sample_us) for task in tasks], repeats, budget_us)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if isinstance(result, Timing)]


@dataclass(frozen=True)
class PreparedTask:
    """A task after its warm-up.

    sample: function that executes the work `count` times and returns the microseconds of all
    executions together.
    count: number of executions in a sample.
    """

    sample: Callable[[], float]
    count: int


def prepared(task: Task, sample_us: float) -> PreparedTask:
    """Return the task after its warm-up, captured as a graph where possible. Exceptions of its
    work pass through."""
    device, work = task.device, task.work
    in_graph = device.limits.graph and task.captured
    once = device.timed_graph(work, 1) if in_graph else partial(device.time, work)
    once()
    return repeated(task, sample_us, once())


def _prepared_apart(task: Task, sample_us: float) -> PreparedTask:
    """Return the task after its warm-up. On processors its samples begin as `interleave` says of
    `apart`."""
    if not task.device.on_processors:
        return prepared(task, sample_us)
    with task.around():
        ready = prepared(task, sample_us)

    def sample() -> float:
        wait_for_rest()
        with task.around():
            task.device.time(task.work)
            return ready.sample()

    return replace(ready, sample=sample)


def wait_for_rest() -> None:
    """Wait until the threads of this process are at rest, at most 0.2 s."""
    for _ in range(_MOST_PAUSES):
        computed, started = time.process_time(), time.perf_counter()
        time.sleep(_PAUSE_S)
        if time.process_time() - computed < _AT_REST * (time.perf_counter() - started):
            return


def repeated(task: Task, sample_us: float, once_us: float) -> PreparedTask:
    """Return a task with samples of about `sample_us` microseconds.

    once_us: microseconds of one execution after the warm-up.
    """
    device, work = task.device, task.work
    count = max(1, min(100, round(sample_us / max(once_us, 0.1))))
    if device.limits.graph and task.captured:
        sample = device.timed_graph(work, count, as_in_plan=task.as_in_plan)
        sample()
        return PreparedTask(sample, count)

    def repeat(stream: Any) -> None:
        for _ in range(count):
            work(stream)

    return PreparedTask(partial(device.time, repeat), count)


def sampled(tasks: Sequence[PreparedTask], repeats: int,
            budget_us: float) -> list[Timing | Exception]:
    """Return the times of each task, or the exception that it raised. Samples are taken in turn.

    An exception ends only the sampling of its task; but DeviceLostError is raised. Negative times
    are dropped, and a task that has no others gets a DeviceError.
    """
    samples: list[list[float]] = [[] for _ in tasks]
    failures: dict[int, Exception] = {}
    spent = 0.0
    for sampled_rounds in range(repeats):
        for index, task in enumerate(tasks):
            if index in failures:
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
