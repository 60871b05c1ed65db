"""Builds candidates ahead of their measurement, side by side where the device allows that."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.device.host import processors
from gossamer.ops.algorithm import Problem
from gossamer.plan.prepare import Prepared
from gossamer.plan.program import Layer
from gossamer.plan.tune.candidates import CandidateSet, built_candidate
from gossamer.plan.tune.layer_times import Attempt
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import (
    BUILDING,
    BUILDING_CHECKS,
    REFERENCE,
    WAITING,
    WORKING,
    TuningProfile,
)
from gossamer.plan.tune.queue import AttemptQueue
from gossamer.plan.tune.workers import BuildHereError, BuildWorkers

_COMPILED_FIRST, _COMPILED = 2.0, 1.5
"""Candidates that are being built and compile kernels, for each processor: before anything is known
of their times, and after that, when one that begins later is chosen with more knowledge."""
_UNCOMPILED = 0.5
"""Candidates that are being built and compile nothing, for each processor."""
_AHEAD = 4
"""Candidates that are being built, or wait to be measured, for each processor."""
_REFERENCES = 2
"""References that are computed at the same time. Each takes many short steps, for which Python's
interpreter is wanted; more threads take longer for all of them together, and keep it from the
thread that times."""


class CandidateBuilds:
    """The candidates of a queue that are built ahead on one device.

    workers: processes that build candidates of vendors' libraries (under True) and those that skip
    zeros (under False), both of which keep Python's interpreter for long; this process builds what
    none of them does. is_over: returns whether only required candidates are begun any more.
    """

    def __init__(self, queue: AttemptQueue, device: Device, memory: CandidateMemory,
                 profile: TuningProfile, workers: Mapping[bool, BuildWorkers] | None,
                 is_over: Callable[[], bool]) -> None:
        self._queue = queue
        self._device = device
        self._memory = memory
        self._profile = profile
        self._workers = workers
        self._is_over = is_over
        self._sets: dict[tuple[str, Problem | None], Future[CandidateSet]] = {}
        self._references = threading.Semaphore(_REFERENCES)
        self._building: dict[Future[Prepared], Attempt] = {}
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def started(self) -> Iterator[None]:
        """Builds side by side in the body, where the device allows that."""
        threads: AbstractContextManager[None] = nullcontext()
        if self._device.builds_side_by_side:
            # references are computed side by side, each by one thread of BLAS
            threads = blas.limited(1)
            self._pool = ThreadPoolExecutor(
                math.ceil(processors() * (_COMPILED_FIRST + _UNCOMPILED)))
        try:
            with threads:
                yield
        except BaseException:
            if self._pool is not None:
                # after an interrupt nobody needs the builds that are not done
                self._pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=False)
                self._pool = None

    @property
    def attempts(self) -> Collection[Attempt]:
        """The attempts whose candidates are being built, or wait to be measured."""
        return self._building.values()

    def begin(self) -> Iterator[tuple[Attempt, Callable[[], Prepared]]]:
        """Begins to build as many candidates as is of use. Where they are not built side by side,
        yields each attempt with the function that builds it, instead."""
        while (attempt := self._next()) is not None:
            if self._pool is None:
                self._queue.end(attempt)
                yield attempt, partial(self.build, attempt)
            else:
                self._building[self._pool.submit(self.build, attempt)] = attempt

    def _next(self) -> Attempt | None:
        """Returns the attempt whose candidate is built next; None where enough are being built, or
        none is left."""
        if self._pool is None:
            return self._queue.pop_required() if self._is_over() else self._queue.pop()
        if len(self._building) >= _AHEAD * processors():
            return None
        compiling = Counter(attempt.compiles for future, attempt in self._building.items()
                            if not future.done())
        most = (_COMPILED if self._queue.has_times else _COMPILED_FIRST) * processors()
        if self._is_over():
            return self._queue.pop_required() if compiling.total() < most else None
        # neither the processors wait for what needs no compiler, nor the device for what does
        attempt = self._queue.pop(compiles=True) if compiling[True] < most else None
        if attempt is None and compiling[False] < _UNCOMPILED * processors():
            attempt = self._queue.pop(compiles=False)
        if attempt is None and compiling[True] < processors():
            attempt = self._queue.pop(compiles=True, is_idle=True)
        if attempt is None and not compiling[False]:
            attempt = self._queue.pop(compiles=False, is_idle=True)
        return attempt

    def give_up_optional(self) -> None:
        """Gives up the builds that a plan can do without."""
        for future in [future for future, attempt in self._building.items()
                       if not attempt.is_required]:
            future.cancel()
            self._queue.end(self._building.pop(future))

    def done(self) -> tuple[Attempt, Callable[[], Prepared]] | None:
        """Returns an attempt whose candidate is built, with a function that returns that or raises
        the error; None where none is done."""
        future = next((future for future in self._building if future.done()), None)
        if future is None:
            return None
        attempt = self._building.pop(future)
        self._queue.end(attempt)
        return attempt, future.result

    def wait(self) -> None:
        """Waits until a candidate is built."""
        with self._profile.stage(WAITING):
            wait(self._building, return_when=FIRST_COMPLETED)

    def set_of(self, layer: Layer) -> CandidateSet:
        """Returns the inputs and expected outputs of a layer, which the first caller makes. Changes
        of a value into one format have one name, from whatever format they are."""
        made: Future[CandidateSet] = Future()
        known = self._sets.setdefault((layer.name, layer.problem), made)
        if known is made:
            try:
                with self._references, self._profile.stage(REFERENCE):
                    made.set_result(CandidateSet(layer, self._device, self._memory))
            except BaseException as error:
                made.set_exception(error)
        return known.result()

    def build(self, attempt: Attempt) -> Prepared:
        """Returns an attempt's candidate ready to run, and the cost of that."""
        built = None
        layer, is_vendor = attempt.group.layer, bool(attempt.algorithm.vendor)
        # packed forms are shared as long as somebody holds the weights
        weights = layer.weights_on(self._device)
        workers = None if self._workers is None else self._workers.get(is_vendor)
        if workers is not None and (is_vendor or not attempt.algorithm.dense):
            with self._profile.stage(WORKING), suppress(BuildHereError):
                built = workers.submit(attempt.algorithm, attempt.group.problem, attempt.variant,
                                       weights).result()
                self._queue.costs.learn_elsewhere(attempt.algorithm.name,
                                                  built.seconds / workers.count)
        try:
            # compilers are waited for most, so that they begin before the reference is computed
            with self._profile.stage(BUILDING):
                prepared = built_candidate(layer, weights, attempt.algorithm, attempt.variant,
                                           self._device, built)
        finally:
            # the thread that times needs it for what fails, too
            candidates = self.set_of(layer)
        with self._profile.stage(BUILDING_CHECKS):
            candidates.build_check(attempt.algorithm, attempt.variant, prepared[0])
        return prepared
