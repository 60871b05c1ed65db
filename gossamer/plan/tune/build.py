"""Builds candidates ahead of their measurement, side by side where the device allows that."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.device.host import processors
from gossamer.io.process_pool import NoProcessError
from gossamer.ops.algorithm import Problem, State
from gossamer.plan.candidate import BuildCost
from gossamer.plan.program import Layer, build
from gossamer.plan.tune.candidates import BuiltCheck, CandidateSet
from gossamer.plan.tune.layer_times import Attempt
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import BUILDING, REFERENCE, WAITING, TuningProfile
from gossamer.plan.tune.workers import BuildWorkers

_AT_ONCE, _AHEAD = 1.5, 3.0
"""For each processor, the most candidates that are being built, and the most that are being built
or wait to be measured. A build mostly waits for compilers, which are other processes. With larger
numbers, more candidates would be begun that later turn out to be of no use."""
_REFERENCES = 2
"""The most references that are computed at the same time. Each reference takes many short steps in
Python's interpreter, so that with more threads all references together take longer, and the thread
that times candidates has to wait for the interpreter."""

_Result = TypeVar("_Result")

BuiltCandidate = tuple[State, BuildCost, BuiltCheck]
"""A candidate that is ready to run, the cost of building it, and its check."""


class CandidateBuilds:
    """The candidates that are built ahead on one device.

    workers: processes that build candidates. Processes under the key True build candidates of
    vendors' libraries, and processes under the key False build candidates that skip zeros. Building
    these candidates keeps Python's interpreter busy for long. This process builds all other
    candidates.
    """

    def __init__(self, device: Device, memory: CandidateMemory, profile: TuningProfile,
                 workers: Mapping[bool, BuildWorkers] | None = None) -> None:
        self._device = device
        self._memory = memory
        self._profile = profile
        self._workers = {} if workers is None else workers
        self._sets: dict[tuple[str, Problem | None], Future[CandidateSet]] = {}
        self._references = threading.Semaphore(_REFERENCES)
        self._building: dict[Future[BuiltCandidate], Attempt] = {}
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def started(self) -> Iterator[None]:
        """Within a `with` block, candidates are built side by side where the device allows that."""
        if not self._device.builds_side_by_side:
            yield
            return
        # one thread more than candidates are built at once: call() need not wait for a build
        self._pool = ThreadPoolExecutor(math.ceil(_AT_ONCE * processors()) + 1)
        try:
            # references are computed side by side, each by one thread of BLAS
            with blas.limited(1):
                yield
        finally:
            # after an interrupt nobody needs the builds that are not done
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    @property
    def attempts(self) -> Collection[Attempt]:
        """The attempts whose candidates are being built, or wait to be measured."""
        return self._building.values()

    @property
    def has_room(self) -> bool:
        """Whether it is of use to begin another candidate now."""
        if self._pool is None:
            return not self._building
        return (len(self._building) < _AHEAD * processors() and sum(
            not future.done() for future in self._building) < _AT_ONCE * processors())

    def begin(self, attempt: Attempt) -> None:
        """Begin to build a candidate, or build it now where the device does not build side by
        side."""
        self._building[self.call(self.build, attempt)] = attempt

    def call(self, function: Callable[..., _Result], *arguments: Any) -> Future[_Result]:
        """Return the future of a call by another thread; the call is made now where the device
        does not build side by side."""
        if self._pool is not None:
            return self._pool.submit(function, *arguments)
        future: Future[_Result] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # as in a pool, the caller of result() gets any error
            future.set_exception(error)
        return future

    def give_up_optional(self) -> list[Attempt]:
        """Give up the builds that a plan can do without, and return their attempts."""
        optional = [future for future, attempt in self._building.items()
                    if not attempt.is_required]
        for future in optional:
            future.cancel()
        return [self._building.pop(future) for future in optional]

    def next_built(self, other: Future[Any] | None = None
                   ) -> tuple[Attempt, Future[BuiltCandidate]] | None:
        """Wait until a build has ended, or until another future is done. Return the attempt whose
        build has ended, with the future of its candidate; None where no build has ended."""
        futures = [*self._building, *([] if other is None else [other])]
        if not any(future.done() for future in futures):
            with self._profile.stage(WAITING):
                wait(futures, return_when=FIRST_COMPLETED)
        built = next((future for future in self._building if future.done()), None)
        return None if built is None else (self._building.pop(built), built)

    def set_of(self, layer: Layer) -> CandidateSet:
        """Return the inputs and expected outputs of a layer, which the first caller makes. The
        inputs and outputs are stored under the layer's name and problem, because conversions of one
        value to the same format have the same name, whatever format they convert from."""
        made: Future[CandidateSet] = Future()
        known = self._sets.setdefault((layer.name, layer.problem), made)
        if known is made:
            try:
                with self._references, self._profile.stage(REFERENCE):
                    made.set_result(CandidateSet(layer, self._device, self._memory))
            except BaseException as error:
                made.set_exception(error)
        return known.result()

    def build(self, attempt: Attempt) -> BuiltCandidate:
        """Return an attempt's candidate ready to run, the cost of building it, and its check."""
        built = None
        layer, is_vendor = attempt.group.layer, bool(attempt.algorithm.vendor)
        # builds share packed forms of the weights as long as one of them holds the weights
        weights = layer.weights_on(self._device)
        workers = self._workers.get(is_vendor)
        if workers is not None and (is_vendor or not attempt.algorithm.dense):
            with suppress(NoProcessError):
                built = workers.build(attempt.algorithm, attempt.group.problem, attempt.variant,
                                      weights).result()
        try:
            # a build mostly waits for compilers, while another thread may compute the reference
            # that set_of() returns below
            with self._profile.stage(BUILDING):
                prepared = build(attempt.algorithm, weights, layer.problem, attempt.variant,
                                 self._device, built)
        finally:
            # the thread that times candidates needs the set even where the build failed
            candidates = self.set_of(layer)
        with self._profile.stage(BUILDING):
            return *prepared, candidates.build_check(attempt.algorithm, attempt.variant)
