"""Checks candidates and times them, one after another.

Every candidate gets one sample of its time. Candidates near the best known time for a layer get as
many samples as the effort says.
"""

from __future__ import annotations

import gc
from concurrent.futures import Future
from functools import partial

from gossamer.errors import CompilerEndedError, DeviceLostError, OutOfMemoryError
from gossamer.io.process_pool import ProcessEndedError
from gossamer.measure import Task, Timing, Work, repeated, sampled
from gossamer.ops.algorithm import State
from gossamer.plan.candidate import BuildCost, Measurement
from gossamer.plan.tune.build import BuiltCandidate, CandidateBuilds
from gossamer.plan.tune.candidates import BuiltCheck, CandidateSet
from gossamer.plan.tune.rows import Row

_SAMPLE_US, _BUDGET_US = 200.0, 2.5e5
"""Microseconds of one sample, and the most microseconds of all samples of a candidate."""
_NEAR = 1.15
"""Ratio to the best known time up to which a candidate is sampled more than once."""
_HOPELESS = 4.0
"""Multiple of the best known time beyond which one execution is enough."""
_LAUNCH_US, _GRAPH_US = 50.0, 5.0
"""Microseconds that the launch may add to the time of one execution: without a graph, and with a
graph, in which events measure the time."""


class Sampler:
    """Checks and times the candidates that are built on one device.

    builds: the candidates.
    samples: number of samples for candidates near the best.
    timings: a list to which the samples of each candidate that is near the best are added.
    """

    def __init__(self, builds: CandidateBuilds, samples: int, timings: list[Timing]) -> None:
        self._builds = builds
        self._samples = samples
        self._timings = timings

    def time(self, row: Row, built: Future[BuiltCandidate]) -> None:
        """Check a candidate, and set its time or the reason why it has none."""
        candidates = self._builds.set_of(row.group.layer)
        try:
            try:
                row.measured = self._measured(row, candidates, *built.result())
            except (OutOfMemoryError, MemoryError):
                # reference cycles hold the frames of the error, which keep device memory
                self._builds.memory.release()
                gc.collect()
                row.measured = self._measured(row, candidates, *self._builds.build(row))
        except Exception as failure:  # a candidate may fail in any way; its failure is reported
            row.measured = candidates.failed(row.algorithm, row.variant, failure)
            row.may_differ = isinstance(failure, (OutOfMemoryError, MemoryError, ProcessEndedError,
                                                  CompilerEndedError))
            if isinstance(failure, DeviceLostError):
                # the failure is stored, so that the next process does not try the candidate
                raise DeviceLostError(f"{failure}; {row.algorithm.name} was tried for layer "
                                      f"{row.group.layer.name!r}") from failure
        row.group.update()

    def _measured(self, row: Row, candidates: CandidateSet, state: State, cost: BuildCost,
                  check: BuiltCheck) -> Measurement:
        work, error = candidates.checked(row.algorithm, row.variant, state, check)
        # samples is the number that was asked for, though a slow candidate has fewer
        return Measurement.of(row.algorithm, row.variant, self._sampled(row, work), cost,
                              error=error, weights=candidates.digest, samples=self._samples)

    def _sampled(self, row: Row, work: Work) -> Timing:
        """Return the time of a candidate. A hopeless candidate has the shorter of two executions as
        its sample: the work of another process may have delayed the first one."""
        device, limit_us = self._builds.device, row.group.limit_us(row)
        execute = (device.timed_graph(work, 1) if device.limits.graph
                   else partial(device.time, work))
        launch_us = _GRAPH_US if device.limits.graph else _LAUNCH_US
        most_us = _HOPELESS * (limit_us + launch_us)
        once = execute()
        if once > most_us and (once := min(once, execute())) > most_us:
            return Timing.of([once])
        task = repeated(Task(device, work, as_in_plan=True), _SAMPLE_US, once)
        (timing,) = sampled([task], 1, _BUDGET_US)
        if isinstance(timing, Timing) and timing.median_us <= _NEAR * limit_us:
            (timing,) = sampled([task], self._samples, _BUDGET_US)
            if isinstance(timing, Timing):
                self._timings.append(timing)
        if isinstance(timing, Exception):
            raise timing
        return timing
