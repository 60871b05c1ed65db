"""Checks candidates and times them, one after another.

Every candidate gets one sample of its time. Candidates near the best known time for a layer get as
many samples as the effort says, interleaved with one another.
"""

from __future__ import annotations

import gc
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from gossamer.device.base import Device
from gossamer.errors import CompilerEndedError, DeviceLostError, OutOfMemoryError
from gossamer.io.process_pool import ProcessEndedError
from gossamer.measure import PreparedTask, Task, Timing, Work, repeated, sampled
from gossamer.ops.algorithm import State
from gossamer.plan.candidate import BuildCost, Measurement
from gossamer.plan.tune.build import BuiltCandidate, CandidateBuilds
from gossamer.plan.tune.candidates import BuiltCheck, CandidateSet
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import CHECKING, TIMING, TuningProfile
from gossamer.plan.tune.rows import NEAR, Group, Row

_SAMPLE_US, _BUDGET_US = 200.0, 2.5e5
"""Microseconds of one sample, and the most microseconds of all samples of a group's candidates."""
_BEST = 1.03
"""Ratio to the best known time up to which the time with cold caches is measured too."""
_HOPELESS = 4.0
"""Multiple of the best known time beyond which one execution is enough."""
_LAUNCH_US, _GRAPH_US = 50.0, 5.0
"""Microseconds that the launch may add to the time of one execution: without a graph, and with a
graph, in which events measure the time."""
_LONG_US = 1000.0
"""If one execution takes more microseconds than this, it is a sample by itself: the time of its
launch does not matter."""


@dataclass(eq=False)
class _Ready:
    """A candidate that was timed once.

    work: runs the candidate.
    task: the candidate as a task that can be timed again.
    error: the normalised error of the candidate's outputs.
    build: the cost of building the candidate.
    first_us: the time of the first sample in microseconds.
    """

    row: Row
    work: Work
    task: PreparedTask
    error: float
    build: BuildCost
    first_us: float


class Sampler:
    """Checks and times the candidates that are built on one device.

    samples: number of samples for candidates near the best.
    builds: where the candidates are built.
    timings: a list to which the samples of each candidate that is near the best are added.
    """

    def __init__(self, device: Device, memory: CandidateMemory, builds: CandidateBuilds,
                 samples: int, profile: TuningProfile, timings: list[Timing]) -> None:
        self._device = device
        self._memory = memory
        self._builds = builds
        self._samples = samples
        self._profile = profile
        self._timings = timings
        self._ready: dict[Group, list[_Ready]] = {}

    def sample_left(self) -> None:
        """Take all samples of the candidates that are near the best."""
        for group in list(self._ready):
            self._sample(group)

    def try_(self, row: Row, built: Future[BuiltCandidate]) -> None:
        """Check a candidate and take the first sample of its time."""
        candidates = self._builds.set_of(row.group.layer)
        try:
            try:
                ready = self._timed_once(row, candidates, *built.result())
            except (OutOfMemoryError, MemoryError):
                # candidates that wait to be timed again are timed now, and their memory is freed
                self._sample_all()
                ready = self._timed_once(row, candidates, *self._builds.build(row))
        except Exception as failure:  # a candidate may fail in any way; its failure is reported
            self._fail(row, candidates, failure)
            return
        once = Timing(ready.first_us, ready.first_us, ready.first_us, 1)
        is_near = ready.first_us <= NEAR * row.group.limit_us(row)
        # a candidate near the best counts as sampled once: an interrupt may come before its other
        # samples
        row.measured = _measured(ready, once, candidates, 1 if is_near else self._samples)
        row.group.update()
        if is_near:
            self._ready.setdefault(row.group, []).append(ready)

    def _timed_once(self, row: Row, candidates: CandidateSet, state: State,
                    cost: BuildCost, check: BuiltCheck) -> _Ready:
        with self._profile.stage(CHECKING):
            work, error = candidates.checked(row.algorithm, row.variant, state, check)
        with self._profile.stage(TIMING):
            task, first_us = self._first_sample(row, work)
        return _Ready(row, work, task, error, cost, first_us)

    def _first_sample(self, row: Row, work: Work) -> tuple[PreparedTask, float]:
        """Return a candidate as a task, with the microseconds of its first sample. A candidate
        that takes long has the shorter of two executions as its sample: the work of another process
        may have delayed the first one."""
        device = self._device
        execute = (device.timed_graph(work, 1) if device.limits.graph
                   else partial(device.time, work))
        once = execute()
        launch_us = _GRAPH_US if device.limits.graph else _LAUNCH_US
        most_us = min(_HOPELESS * (row.group.limit_us(row) + launch_us), _LONG_US)
        if once > most_us and (once := min(once, execute())) > most_us:
            return PreparedTask(execute, 1), once
        task = repeated(Task(device, work, as_in_plan=True), _SAMPLE_US, once)
        (timing,) = sampled([task], 1, _BUDGET_US)
        if isinstance(timing, Exception):
            raise timing
        return task, timing.median_us

    def _fail(self, row: Row, candidates: CandidateSet, failure: Exception) -> None:
        row.measured = candidates.failed(row.algorithm, row.variant, failure)
        row.may_differ = isinstance(
            failure, (OutOfMemoryError, MemoryError, ProcessEndedError, CompilerEndedError))
        row.group.update()
        if isinstance(failure, DeviceLostError):
            # the failure is stored, so that the next process does not try the candidate
            raise DeviceLostError(f"{failure}; {row.algorithm.name} was tried for layer "
                                  f"{row.group.layer.name!r}") from failure

    def _sample_all(self) -> None:
        """Take all samples of the candidates that are kept, and free their memory."""
        self.sample_left()
        self._memory.release()
        gc.collect()

    def _sample(self, group: Group) -> None:
        """Take the samples of a group's candidates that are near the best known times."""
        candidates = self._builds.set_of(group.layer)
        near = []
        for ready in self._ready.pop(group):
            if ready.first_us <= NEAR * ready.row.group.limit_us(ready.row):
                near.append(ready)
            elif ready.row.measured is not None:
                ready.row.measured = replace(ready.row.measured, samples=self._samples)
        with self._profile.stage(TIMING):
            timings = sampled([ready.task for ready in near], self._samples, _BUDGET_US)
            for ready, timing in zip(near, timings, strict=True):
                self._keep_samples(candidates, ready, timing)
            # the layers' best times are computed again, because the first sample of a candidate may
            # have been shorter than the median of its samples
            group.update()
            for ready in near:
                self._measure_cold(candidates, ready)

    def _keep_samples(self, candidates: CandidateSet, ready: _Ready,
                      timing: Timing | Exception) -> None:
        """Keep the samples of a candidate as its measurement, or the failure with which its
        sampling ended.
        """
        if isinstance(timing, Exception):
            self._fail(ready.row, candidates, timing)
            return
        self._timings.append(timing)
        ready.row.measured = _measured(ready, timing, candidates, self._samples)

    def _measure_cold(self, candidates: CandidateSet, ready: _Ready) -> None:
        """Add the time with cold caches to the measurement of a candidate that is about as fast as
        the best candidate, if memory to fill the caches is free."""
        row = ready.row
        if (row.measured is None or row.time_us is None
                or row.time_us > _BEST * row.group.limit_us(row)):
            return
        try:
            cold_us = candidates.cold(ready.work)
        except OutOfMemoryError:
            return
        except Exception as failure:
            self._fail(row, candidates, failure)
            return
        row.measured = replace(row.measured, cold_us=cold_us)


def _measured(ready: _Ready, timing: Timing, candidates: CandidateSet,
              samples: int) -> Measurement:
    # samples is the number that was asked for, though a slow candidate has fewer
    return Measurement.of(ready.row.algorithm, ready.row.variant, timing, ready.build,
                          error=ready.error, weights=candidates.digest, samples=samples)
