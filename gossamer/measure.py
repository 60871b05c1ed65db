"""Timing of device work and of Python calls, by medians and quartiles of samples."""

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
"""A function that queues device work on the stream passed to it."""

SCATTERED = 1.25
"""The ratio of upper to lower quartile above which scatter_notice() returns a notice.

On an idle GPU the ratio is below 1.05.
"""
SLACK = 0.02
"""The relative difference up to which two times count as equal."""
_PAUSE_S = 20e-3
_MOST_PAUSES = 10
"""The length of a pause in `wait_for_rest` in seconds, and the maximum number of pauses.

Threads of OpenBLAS and ONNX Runtime spin for up to 50 ms after their last work. Some operating
systems count CPU time in ticks of up to 10 ms, so a spinning thread looks idle during a pause
shorter than a tick.
"""
_AT_REST = 0.1
"""A process counts as idle if its CPU time is less than this fraction of a pause."""


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
    """Return a notice if most timings scatter, otherwise "".

    Samples scatter when another program uses the device.
    """
    spreads = [timing.p75_us / max(timing.p25_us, 1e-3) for timing in timings]
    if not spreads or statistics.median(spreads) <= SCATTERED:
        return ""
    # the text is the same for all plans on a device, so that the notice is printed only once
    return (f"the quartiles of the times on {device.name} differ by more than "
            f"{SCATTERED - 1:.0%}, so the times may be too long: another program, or another "
            "thread of this one, may be using the device; measure again when the device is idle, "
            "and run `gossamer cache clear` first if times are cached")


@dataclass(frozen=True)
class Task:
    """Work to be timed.

    device: the device whose events time the work.
    work: the function that queues the work.
    captured: whether executions are captured as a graph. If False, Python launches each execution;
    this is necessary for work that is already a graph or cannot be captured.
    as_in_plan: whether kernels of captured executions may begin before the previous execution has
    ended; see Device.timed_graph.
    around: function that returns a context manager for each sample on the CPU. It is used only with
    the option `isolated` of `interleave`.
    """

    device: Device
    work: Work
    captured: bool = True
    as_in_plan: bool = False
    around: Callable[[], AbstractContextManager[None]] = nullcontext


def called(call: Callable[[], object], *, repeats: int = 50, budget_us: float = 1e5) -> Timing:
    """Return the wall-clock time of a synchronous call.

    The call is made at least twice, and at most `repeats` times.

    budget_us: total microseconds after which no further call is made.
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
    """Return the timing of each work on one device; see `interleave`."""
    return interleave([Task(device, work) for work in works], repeats=repeats,
                      sample_us=sample_us, budget_us=budget_us)


def interleave(tasks: Sequence[Task], *, repeats: int = 20, sample_us: float = 200.0,
               budget_us: float = 2e6, isolated: bool = False) -> list[Timing]:
    """Return the timing of each task, after a warm-up.

    The tasks are sampled in turn. A sample repeats short work until it lasts about `sample_us`
    microseconds, in one captured graph if the device supports graphs. The repetitions make the
    resolution of events and the cost of launches from Python negligible, and keep caches warm.
    Sampling stops after `repeats` rounds, or once `budget_us` microseconds are spent and at least
    three rounds are done.
    Exceptions raised by the work propagate.

    isolated: whether to keep tasks that run on the CPU from disturbing each other. Each sample of
    such a task then waits until the threads of this process are idle, and starts with an untimed
    execution that wakes the task's own threads.
    """
    prepare = _prepared_isolated if isolated else prepared
    results = sampled([prepare(task, sample_us) for task in tasks], repeats, budget_us)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if isinstance(result, Timing)]


@dataclass(frozen=True)
class PreparedTask:
    """A task after its warm-up.

    sample: function that executes the work `count` times and returns the total microseconds.
    count: number of executions in a sample.
    """

    sample: Callable[[], float]
    count: int


def prepared(task: Task, sample_us: float) -> PreparedTask:
    """Return the task after its warm-up, captured as a graph where possible.

    Exceptions raised by the work propagate.
    """
    device, work = task.device, task.work
    in_graph = device.limits.graph and task.captured
    once = device.timed_graph(work, 1) if in_graph else partial(device.time, work)
    once()
    return repeated(task, sample_us, once())


def _prepared_isolated(task: Task, sample_us: float) -> PreparedTask:
    """Return the task after its warm-up, for the option `isolated` of `interleave`."""
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
    """Wait at most 0.2 s until the threads of this process are idle."""
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
    """Return the timing of each task, or the exception that the task raised.

    The tasks are sampled in turn. An exception ends only the sampling of the task that raised it.
    DeviceLostError, however, ends all sampling and is raised to the caller. Negative times are
    dropped; a task with only negative times yields a DeviceError.
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
