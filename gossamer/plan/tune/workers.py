"""Processes that build candidates while this one times others."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.weights import PackedArray, Weights
from gossamer.plan.prepare import BuiltForms
from gossamer.plan.tune.build_process import BuildHereError, BuildProcess, BuildProcessError

__all__ = ["BuildHereError", "BuildProcessError", "BuildWorkers"]

MOST_DEATHS = 3
"""How many processes may end in the middle of building, for each that runs at once, before no other
takes their place."""


@dataclass(eq=False)
class _Job:
    """A candidate whose weights wait to be packed and whose kernels wait to be compiled."""

    algorithm: Algorithm
    problem: Problem
    variant: Variant
    weights: Weights
    future: Future[BuiltForms] = field(default_factory=Future)


@dataclass(eq=False)
class _Task:
    """Work of a vendor's library that waits for a process which opens the device. what: words for
    it."""

    work: Callable[[Device], object]
    what: str
    future: Future[BuiltForms] = field(default_factory=Future)


class BuildWorkers:
    """Processes that pack weights and compile kernels for a device that only this process uses.

    They start at once, each served by a thread of its own, and end with `close`, with the end of a
    `with` block, or with this process, however that ends. Kernels come back by the kernel cache,
    and packed forms with the results.

    device: the device for which candidates are built; one without `build_only` has no processes.
    count: number of processes. on_device: whether the processes open the device itself, for the
    libraries of vendors.
    """

    def __init__(self, device: Device, count: int, *, on_device: bool = False) -> None:
        self._device = device
        self._on_device = on_device
        self._make_device: Callable[[], Device] | None = (
            functools.partial(find, device.name) if on_device else device.build_only)
        self._condition = threading.Condition()
        self._waiting: deque[_Job | _Task] = deque()
        self._processes: set[BuildProcess] = set()
        self._problem = ""
        self._closed = False
        self._forms = _ReceivedForms()
        self._threads = [threading.Thread(target=self._serve, daemon=True,
                                          name=f"gossamer build worker {number}")
                         for number in range(count)]
        self._serving = len(self._threads)
        if self._make_device is None:
            self._threads, self._serving = [], 0
            self._problem = f"no other process can build for {device.name}"
        for thread in self._threads:
            thread.start()

    @property
    def problem(self) -> str:
        """Why nothing is built by other processes any more; empty as long as something is."""
        with self._condition:
            return "" if self._serving and not self._closed else (
                self._problem or "no process builds candidates")

    def submit(self, algorithm: Algorithm, problem: Problem, variant: Variant,
               weights: Weights) -> Future[BuiltForms]:
        """Returns the future of what a process builds for a candidate; give that to
        `gossamer.plan.prepare.build`, which then has little left to do.

        Candidates are built in the order in which they are submitted. The future of one that waits
        can be cancelled. Its exception is BuildHereError where no process builds the candidate, so
        that the caller builds it; BuildProcessError where the process ended while it built; or the
        error by which building failed.
        """
        if not algorithm.vendor and not self._on_device:
            return self._queued(_Job(algorithm, problem, variant, weights))
        work = algorithm.work_ahead(problem, variant, self._device) if self._on_device else None
        if work is None:
            refused: Future[BuiltForms] = Future()
            refused.set_exception(BuildHereError(
                f"{algorithm.name} needs {algorithm.vendor} on the device itself"))
            return refused
        return self.do(work, f"{algorithm.name} {variant.config_text} for layer {weights.layer}")

    def do(self, work: Callable[[Device], object], what: str) -> Future[BuiltForms]:
        """Returns the future of work that processes which open the device do, such as
        Algorithm.work_ahead returns. what: words for it.

        Its exception is BuildProcessError where the process ended meanwhile, and BuildHereError
        where no process does the work or the work fails.
        """
        assert self._on_device
        return self._queued(_Task(work, what))

    @property
    def count(self) -> int:
        """Number of processes that there are at most at the same time."""
        return len(self._threads)

    def _queued(self, job: _Job | _Task) -> Future[BuiltForms]:
        with self._condition:
            if self._serving and not self._closed:
                self._waiting.append(job)
                self._condition.notify()
                return job.future
        job.future.set_exception(BuildHereError(self.problem))
        return job.future

    def end(self) -> None:
        """Cancels what waits and ends the processes, and returns before they have ended. What they
        were building fails with BuildHereError."""
        with self._condition:
            self._problem = "the processes that build candidates were closed"
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
            for process in self._processes:
                process.end()
            self._condition.notify_all()
        for job in waiting:
            job.future.cancel()

    def close(self) -> None:
        """Does what end() does, and returns when the processes have ended."""
        self.end()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> BuildWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        """Builds what waits in a process, and in another where that ends, until this is closed."""
        problem = ""
        try:
            assert self._make_device is not None
            for _ in range(1 + MOST_DEATHS):
                with closing(BuildProcess(self._make_device)) as process:
                    self._serve_by(process)
                if self._closed:
                    return
            problem = f"{1 + MOST_DEATHS} processes that built candidates have ended"
        except BuildHereError as error:
            problem = str(error)
        finally:
            self._stop_serving(problem)

    def _serve_by(self, process: BuildProcess) -> None:
        """Builds what waits until this is closed or the process ends."""
        with self._condition:
            self._processes.add(process)
        try:
            while not process.has_ended:
                with self._condition:
                    while not self._waiting and not self._closed:
                        self._condition.wait()
                    if self._closed:
                        return
                    if process.has_ended:
                        # it ended while it had nothing to do
                        return
                    job = self._waiting.popleft()
                self._build(process, job)
                # a thread that waits must not keep the constants of the layer
                del job
        finally:
            with self._condition:
                self._processes.discard(process)

    def _build(self, process: BuildProcess, job: _Job | _Task) -> None:
        future = job.future
        if not future.set_running_or_notify_cancel():
            return
        try:
            if isinstance(job, _Task):
                future.set_result(process.work(job.work, job.what))
                return
            digest = job.weights.digest
            built = process.build(job.algorithm, job.problem, job.variant, job.weights,
                                  self._forms.of(digest))
            self._forms.add(digest, built.forms)
        except BuildProcessError as error:
            future.set_exception(BuildHereError(self._problem) if self._closed else error)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(built)

    def _stop_serving(self, problem: str) -> None:
        """Notes that a thread ends; after the last one nothing is left to build what waits."""
        with self._condition:
            self._serving -= 1
            self._problem = self._problem or problem
            if self._serving:
                return
            waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(BuildHereError(self.problem))


class _ReceivedForms:
    """Packed forms that came back and are still in use, each of which needs to come only once."""

    def __init__(self) -> None:
        self._forms: weakref.WeakValueDictionary[tuple[str, str], PackedArray] = (
            weakref.WeakValueDictionary())
        self._lock = threading.Lock()

    def of(self, digest: str) -> dict[str, PackedArray]:
        """Returns the forms of the constants with a hash."""
        with self._lock:
            return {key: form for (whose, key), form in self._forms.items() if whose == digest}

    def add(self, digest: str, forms: Mapping[str, PackedArray]) -> None:
        """Adds forms of the constants with a hash."""
        with self._lock:
            for key, form in forms.items():
                self._forms[digest, key] = form
