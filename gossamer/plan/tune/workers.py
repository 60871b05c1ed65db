"""Processes that build candidates while this one times others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future

from gossamer.device import kernel_cache
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.io.process_pool import NoProcessError as BuildHereError
from gossamer.io.process_pool import ProcessEndedError as BuildProcessError
from gossamer.io.process_pool import ProcessPool
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.weights import Weights
from gossamer.plan.prepare import BuiltElsewhere
from gossamer.plan.tune import build_tasks

__all__ = ["BuildHereError", "BuildProcessError", "BuildWorkers"]

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")
"""Limits of libraries for linear algebra: each process computes on one processor."""


class BuildWorkers:
    """Processes that pack weights and compile kernels for a device that only this process uses; see
    ProcessPool. Kernels come back by the kernel cache, and packed forms with the results.

    device: the device for which candidates are built.
    count: number of processes.
    on_device: whether the processes open the device itself, for the libraries of vendors; where
    they do not, the device has `build_only`.
    """

    def __init__(self, device: Device, count: int, *, on_device: bool = False) -> None:
        self._device = device
        self._on_device = on_device
        self.count = count
        make_device = functools.partial(find, device.name) if on_device else device.build_only
        assert make_device is not None
        self._pool = ProcessPool(count, "process that builds candidates",
                                 functools.partial(build_tasks.start, make_device),
                                 variables=_ONE_THREAD)

    def submit(self, algorithm: Algorithm, problem: Problem, variant: Variant,
               weights: Weights) -> Future[BuiltElsewhere]:
        """Returns the future of what a process builds for a candidate; give that to
        `gossamer.plan.prepare.build`, which then has little left to do.

        Candidates are built in the order in which they are submitted. The future of one that waits
        can be cancelled. Its exception is BuildHereError where no process builds the candidate, so
        that the caller builds it; BuildProcessError where the process ended while it built; or the
        error by which building failed.
        """
        candidate = f"{algorithm.name} {variant.config_text} for layer {weights.layer}"
        if algorithm.vendor or self._on_device:
            work = algorithm.work_ahead(problem, variant, self._device) if self._on_device else None
            if work is not None:
                return self.do(work, candidate)
            refused: Future[BuiltElsewhere] = Future()
            refused.set_exception(BuildHereError(
                f"{algorithm.name} needs {algorithm.vendor} on the device itself"))
            return refused
        return self._pool.submit(
            build_tasks.build, algorithm, problem, variant, weights.layer, weights.digest,
            what=f"built {candidate}", on_demand=weights.arrays, then=_received)

    def do(self, work: Callable[[Device], object], what: str) -> Future[BuiltElsewhere]:
        """Returns the future of work that processes which open the device do, such as
        Algorithm.work_ahead returns. what: words for it.

        Its exception is BuildProcessError where the process ended meanwhile, and BuildHereError
        where no process does the work or the work fails.
        """
        assert self._on_device
        return self._pool.submit(build_tasks.work, work, what=f"was asked for {what}",
                                 then=_received)

    def end(self) -> None:
        """Cancels what waits and ends the processes, and returns before they have ended. What they
        were building fails with BuildHereError."""
        self._pool.end()

    def close(self) -> None:
        """Does what end() does, and returns when the processes have ended."""
        self._pool.close()

    def __enter__(self) -> BuildWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _received(built: BuiltElsewhere) -> BuiltElsewhere:
    """Takes over the kernels that a process has built."""
    kernel_cache.adopt(built.kernels)
    return built
