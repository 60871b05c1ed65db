"""Checks and timing of one candidate.

Every candidate gets one sample of its time. A candidate near the best known time for a layer gets
as many samples as the effort specifies.
"""

from __future__ import annotations

import gc
from concurrent.futures import Future
from functools import partial

from gossamer.errors import CompilerEndedError, DeviceLostError, OutOfMemoryError
from gossamer.io.process_pool import ProcessEndedError
from gossamer.measure import Task, Timing, Work, repeated, sampled, wait_for_rest
from gossamer.ops.algorithm import State
from gossamer.plan.candidate import Measurement
from gossamer.plan.fusion import WHOLE
from gossamer.plan.tune.build import BuiltCandidate, CandidateBuilds
from gossamer.plan.tune.candidate_checks import BuiltCheck
from gossamer.plan.tune.rows import Row

_SAMPLE_US, _BUDGET_US = 200.0, 2.5e5
"""Duration of one sample, and maximum duration of all samples of a candidate, in microseconds."""
_NEAR = 1.15
"""More samples are taken if a candidate's first sample is at most this factor times the limit_us()
of the candidate's group."""


def measure_row(row: Row, built: Future[BuiltCandidate], builds: CandidateBuilds,
            samples: int) -> None:
    """Check a candidate, and set its time or failure.

    samples: number of samples of a candidate near the best time.
    If the device is lost, the failure is set before DeviceLostError is raised.
    """
    try:
        try:
            row.measured = _measured(row, builds, samples, *built.result())
        except (OutOfMemoryError, MemoryError):
            # the frames of the error's traceback refer to device memory, and are in reference
            # cycles
            builds.memory.release()
            gc.collect()
            row.measured = _measured(row, builds, samples, *builds.build(
                row.group.layer, row.algorithm, row.variant))
    except Exception as failure:  # a candidate may fail in any way; its failure is reported
        row.measured = builds.checks_of(row.group.layer).failed(row.algorithm, row.variant, failure)
        row.may_differ = isinstance(failure, (OutOfMemoryError, MemoryError, ProcessEndedError,
                                              CompilerEndedError))
        if isinstance(failure, DeviceLostError):
            # the failure is stored, so that the next process does not try the candidate
            raise DeviceLostError(f"{failure}; {row.algorithm.name} was tried for layer "
                                  f"{row.group.layer.name!r}") from failure
    row.group.update()
    if row.group.layer.name == WHOLE:
        # the threads of a library for whole networks may spin, and slow down the next candidate
        wait_for_rest()


def _measured(row: Row, builds: CandidateBuilds, samples: int, state: State,
              check: BuiltCheck) -> Measurement:
    checks = builds.checks_of(row.group.layer)
    work, error = checks.checked(row.algorithm, row.variant, state, check)
    row.timing = _sampled(row, work, samples)
    return Measurement.of(row.algorithm, row.variant, row.timing, error=error,
                          weights=checks.digest, samples=samples)


def _sampled(row: Row, work: Work, samples: int) -> Timing:
    device = row.group.device
    execute = (device.timed_graph(work, 1) if device.limits.graph
               else partial(device.time, work))
    task = repeated(Task(device, work, as_in_plan=True), _SAMPLE_US, execute())
    (timing,) = sampled([task], 1, _BUDGET_US)
    if isinstance(timing, Timing) and timing.median_us <= _NEAR * row.group.limit_us(row):
        (timing,) = sampled([task], samples, _BUDGET_US)
    if isinstance(timing, Exception):
        raise timing
    return timing
