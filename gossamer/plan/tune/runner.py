"""Runs attempts: candidates are built ahead, checked, and timed one after another.

Every candidate gets one sample of its time. Those that are near the best known time for a layer
get the samples that the effort asks for, interleaved with one another.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from gossamer.device.base import Device
from gossamer.errors import CompilerEndedError, DeviceLostError, OutOfMemoryError
from gossamer.measure import CpuContention, PreparedTask, Task, Timing, repeated, sampled
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.plan.measurement import Measurement
from gossamer.plan.prepare import BuildCost, Prepared, responsive
from gossamer.plan.program import Layer
from gossamer.plan.tune.candidate_builds import CandidateBuilds
from gossamer.plan.tune.candidates import CandidateSet, Work
from gossamer.plan.tune.estimates import Estimates
from gossamer.plan.tune.layer_times import NEAR, Attempt, CandidateGroup, LayerTimes
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import CHECKING, TIMING, TuningProfile
from gossamer.plan.tune.queue import AttemptQueue
from gossamer.plan.tune.workers import BuildProcessError, BuildWorkers

_SAMPLE_US, _BUDGET_US = 200.0, 2.5e5
"""Microseconds of one sample, and of all samples of a group's candidates."""
_BEST = 1.03
"""Ratio to the best known time up to which the time with cold caches is measured too."""
_HOPELESS = 4.0
"""Multiple of the best known time beyond which one execution is enough."""
_LAUNCH_US, _GRAPH_US = 50.0, 5.0
"""Microseconds that the launch may add to the time of one execution; and of one in a graph, which
records its own time."""
_LONG_US = 1000.0
"""Microseconds of one execution from which on its launch does not matter."""
_REPEATED_US = 20000.0
"""Microseconds up to which a slow execution is repeated on a device that other processes may use
while they build."""


@dataclass(eq=False)
class _Ready:
    """A candidate that was timed once. task: None where it is not timed again."""

    attempt: Attempt
    work: Work
    task: PreparedTask
    error: float
    build: BuildCost
    first_us: float


class AttemptRunner:
    """Runs the attempts of a queue on one device.

    samples: number of samples for candidates near the best. workers: processes that build
    candidates of vendors' libraries (under True) and those that skip zeros (under False), both of
    which keep Python's interpreter for long; this process builds what none of them does. progress:
    called after each attempt. is_over: returns whether the time that may be spent is over; attempts
    that were not begun by then are left. further: called before each attempt with all_begun,
    whether none is left to begin, and none_built, whether none is being built either; returns
    whether it has added some to the queue. spreads: a list to which the ratio of the quartiles of
    each candidate's samples is added.
    """

    def __init__(self, queue: AttemptQueue, device: Device, memory: CandidateMemory,
                 samples: int, *, workers: Mapping[bool, BuildWorkers] | None = None,
                 contention: CpuContention | None = None, profile: TuningProfile | None = None,
                 progress: Callable[[], None] = lambda: None,
                 is_over: Callable[[], bool] = lambda: False,
                 further: Callable[..., bool] = lambda *, all_begun, none_built: False,
                 spreads: list[float] | None = None) -> None:
        self._queue = queue
        self._device = device
        self._memory = memory
        self._samples = samples
        self._contention = CpuContention() if contention is None else contention
        self._profile = TuningProfile() if profile is None else profile
        self._builds = CandidateBuilds(queue, device, memory, self._profile, workers,
                                       is_over)
        self._progress = progress
        self._is_over = is_over
        self._further = further
        self._spreads = [] if spreads is None else spreads
        self._ready: dict[CandidateGroup, list[_Ready]] = {}
        self._fastest: dict[CandidateGroup, _Ready] = {}
        """The fastest candidates of groups of which all samples were taken, which are sampled again
        beside those that come later."""
        self._spoilt: set[CandidateGroup] = set()
        self.done: list[Attempt] = []
        """The attempts that were measured so far, those before an interrupt included."""

    def run(self) -> None:
        """Runs the attempts, whose results are in `measured` afterwards."""
        # the driver is not asked again at each call which context is current
        current = (self._device.current() if self._device.runs_cuda_libraries
                   else nullcontext())
        try:
            with responsive(), current, self._builds.started():
                for attempt, built in self._built_ahead():
                    # a kernel of checks that fails is no failure of a candidate
                    self._memory.compile_checks()
                    self._try(attempt, built)
                    self.done.append(attempt)
                    self._progress()
                for group in list(self._ready):
                    self._sample(group)
        finally:
            # where samples were spoilt, times of one sample and what was not tried for them are too
            for attempt in (*self.done, *self._queue.not_tried):
                attempt.is_transient |= attempt.group in self._spoilt

    def _built_ahead(self) -> Iterator[tuple[Attempt, Callable[[], Prepared]]]:
        """Yields the attempts of the queue, each with a function that returns what was built or
        raises the error. Where the device builds side by side, others are built meanwhile."""
        builds = self._builds
        self._memory.reserve_workspace(attempt.variant for attempt in self._queue)
        while True:
            if self._is_over():
                # nobody waits for builds that the plan can do without
                builds.give_up_optional()
            yield from builds.begin()
            is_more = self._further(all_begun=not self._queue, none_built=not builds.attempts)
            if is_more:
                self._memory.reserve_workspace(attempt.variant for attempt in self._queue)
            done = builds.done()
            if done is None:
                if is_more:
                    continue
                if not builds.attempts:
                    return
                if not self._sample_settled():
                    builds.wait()
                continue
            attempt, built = done
            # what was learnt since it was begun may have made it useless
            if self._queue.is_useless(attempt):
                self._queue.not_tried.append(attempt)
                self._progress()
            else:
                yield attempt, built

    def _sample_settled(self) -> bool:
        """Takes all samples of a group of whose candidates none is left, while others are built.
        Returns whether there is such a group."""
        begun = {attempt.group for attempt in self._builds.attempts}
        group = next((group for group in self._ready if group not in begun and (
            self._is_over() or not self._queue.has_of(group))), None)
        if group is not None:
            self._sample(group)
        return group is not None

    def _try(self, attempt: Attempt, built: Callable[[], Prepared]) -> None:
        """Checks a candidate and takes the first sample of its time."""
        candidates = self._builds.set_of(attempt.group.layer)
        try:
            ready = self._timed_once(attempt, candidates, *built())
        except (OutOfMemoryError, MemoryError):
            # candidates that are kept to be timed again make room
            self._sample_all()
            try:
                ready = self._timed_once(attempt, candidates, *self._builds.build(attempt))
            except Exception as failure:
                self._fail(attempt, candidates, failure)
                return
        except Exception as failure:  # it may fail in any way, which is reported
            self._fail(attempt, candidates, failure)
            return
        once = Timing(ready.first_us, ready.first_us, ready.first_us, 1)
        bound = self._queue.bound(attempt)
        is_near = ready.first_us <= NEAR * bound
        # an interrupt may come before the other samples of one that is near
        attempt.measured = _measured(ready, once, candidates, 1 if is_near else self._samples)
        self._queue.learn(attempt)
        if is_near:
            self._ready.setdefault(attempt.group, []).append(ready)

    def _timed_once(self, attempt: Attempt, candidates: CandidateSet, state: State,
                    cost: BuildCost) -> _Ready:
        with self._profile.stage(CHECKING):
            start = time.monotonic()
            work, error = candidates.checked(attempt.algorithm, attempt.variant, state)
            # some drivers compile at the first launch
            self._queue.costs.learn(attempt.kernels, cost.seconds + time.monotonic() - start)
        with self._profile.stage(TIMING):
            (task, first_us), is_spoilt = self._contention.undisturbed(
                self._device, lambda: self._first_sample(attempt, work))
        if is_spoilt:
            self._spoilt.add(attempt.group)
            # results are stored now and then before the end of the run
            attempt.is_transient = True
        return _Ready(attempt, work, task, error, cost, first_us)

    def _first_sample(self, attempt: Attempt, work: Work) -> tuple[PreparedTask, float]:
        """Returns a candidate as a task, with the microseconds of its first sample, which is one
        execution where that lasts long, the shorter of two where others may have disturbed it."""
        device = self._device
        execute = (device.timed_graph(work, 1) if device.limits.graph
                   else partial(device.time, work))
        once = execute()
        self._profile.device_us += once
        launch_us = _GRAPH_US if device.limits.graph else _LAUNCH_US
        most_us = min(_HOPELESS * (self._queue.bound(attempt) + launch_us), _LONG_US)
        if most_us < once <= (_REPEATED_US if device.builds_side_by_side else _LONG_US):
            # the work of another process may have fallen into the execution
            again = execute()
            self._profile.device_us += again
            once = min(once, again)
        if once > most_us:
            return PreparedTask(execute, 1, once), once
        task = repeated(Task(device, work, as_in_plan=True), _SAMPLE_US, once)
        (timing,) = sampled([task], 1, _BUDGET_US)
        if isinstance(timing, Exception):
            raise timing
        # one sample warms up
        self._profile.device_us += 2 * task.count * timing.median_us
        return task, timing.median_us

    def _fail(self, attempt: Attempt, candidates: CandidateSet, failure: Exception) -> None:
        attempt.measured = candidates.failed(attempt.algorithm, attempt.variant, failure)
        attempt.is_transient = isinstance(
            failure, (OutOfMemoryError, MemoryError, BuildProcessError, CompilerEndedError))
        self._queue.forget(attempt)
        if isinstance(failure, DeviceLostError):
            # the measurement that says so is kept: the next process does not try the candidate
            raise DeviceLostError(f"{failure}; {attempt.algorithm.name} was tried for layer "
                                  f"{attempt.group.layer.name!r}") from failure

    def _sample_all(self) -> None:
        """Takes all samples of the candidates that are kept, and frees their memory."""
        for group in list(self._ready):
            self._sample(group)
        self._fastest.clear()
        self._memory.release()
        gc.collect()

    def _sample(self, group: CandidateGroup) -> None:
        """Takes the samples of a group's candidates that are near the best known times."""
        candidates = self._builds.set_of(group.layer)
        near = []
        for ready in self._ready.pop(group):
            if ready.first_us <= NEAR * self._queue.bound(ready.attempt):
                near.append(ready)
            elif ready.attempt.measured is not None:
                ready.attempt.measured = replace(ready.attempt.measured, samples=self._samples)
        if near and group in self._fastest:
            near.append(self._fastest.pop(group))
        with self._profile.stage(TIMING):
            timings, is_spoilt = self._contention.undisturbed(self._device, lambda: sampled(
                [ready.task for ready in near], self._samples, _BUDGET_US))
            if is_spoilt:
                self._spoilt.add(group)
                for ready in near:
                    # results are stored now and then before the end of the run
                    ready.attempt.is_transient = True
            sampled_ready = [ready for ready, timing in zip(near, timings, strict=True)
                             if self._keep_samples(candidates, ready, timing)]
            # the least of single samples may be below all medians
            self._queue.renew(group, [ready.attempt for ready in sampled_ready])
            for ready in sampled_ready:
                self._measure_cold(candidates, ready)
        if sampled_ready:
            self._fastest[group] = min(
                sampled_ready, key=lambda ready: ready.attempt.time_us or math.inf)
        candidates.release()

    def _keep_samples(self, candidates: CandidateSet, ready: _Ready,
                      timing: Timing | Exception) -> bool:
        """Keeps the samples of a candidate as its measurement, or the failure that they ended with;
        returns whether there are samples."""
        if isinstance(timing, Exception):
            self._fail(ready.attempt, candidates, timing)
            return False
        self._profile.device_us += ready.task.count * timing.repeats * timing.median_us
        self._spreads.append(timing.p75_us / max(timing.p25_us, 1e-3))
        ready.attempt.measured = _measured(ready, timing, candidates, self._samples)
        return True

    def _measure_cold(self, candidates: CandidateSet, ready: _Ready) -> None:
        """Adds the time with cold caches to the measurement of a candidate that is about as fast as
        the best, if there is memory to fill the caches."""
        attempt = ready.attempt
        assert attempt.measured is not None and attempt.time_us is not None
        if attempt.time_us > _BEST * self._queue.bound(attempt):
            return
        try:
            cold_us = candidates.cold(ready.work)
        except OutOfMemoryError:
            return
        except Exception as failure:
            self._fail(attempt, candidates, failure)
            return
        attempt.measured = replace(attempt.measured, cold_us=cold_us)


def _measured(ready: _Ready, timing: Timing, candidates: CandidateSet,
              samples: int) -> Measurement:
    measured = Measurement.of(ready.attempt.algorithm, ready.attempt.variant, timing,
                              error=ready.error, weights=candidates.digest, build=ready.build)
    # the number that was asked for, though a slow candidate has fewer
    return replace(measured, samples=samples)


def attempts_of(group: CandidateGroup, pairs: Iterable[tuple[Algorithm, Variant]],
                estimates: Estimates) -> list[Attempt]:
    """Returns an attempt for each algorithm and variant."""
    attempts = []
    for algorithm, variant in pairs:
        attempt = Attempt(group, algorithm, variant,
                          estimates.model_us(algorithm, group.problem, variant),
                          kernels=algorithm.kernel_sources(group.problem, variant,
                                                           estimates.device))
        group.add(attempt)
        attempts.append(attempt)
    return attempts


def measure_alone(layer: Layer, device: Device, pairs: Sequence[tuple[Algorithm, Variant]],
                  samples: int, memory: CandidateMemory | None = None,
                  profile: TuningProfile | None = None) -> list[Attempt]:
    """Measures candidates of one layer, all of them, and returns their attempts in order."""
    assert layer.problem is not None
    estimates = Estimates(device)
    group = CandidateGroup(layer.problem, layer, [LayerTimes(layer.name)])
    attempts = attempts_of(group, pairs, estimates)
    queue = AttemptQueue(attempts, estimates, everything=True)
    AttemptRunner(queue, device, CandidateMemory(device) if memory is None else memory, samples,
                  profile=profile).run()
    return attempts
