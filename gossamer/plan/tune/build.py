"""Candidates that are built ahead of their measurement, several at a time if the device allows it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.device.host import processors
from gossamer.io.process_pool import NoProcessError
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.plan.program import Layer, build, responsive
from gossamer.plan.tune.candidate_checks import BuiltCheck, CandidateChecks
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.rows import Row
from gossamer.plan.tune.workers import Compilers

_AHEAD = 2
"""Maximum number of candidates per processor that are being built or wait to be measured. It
exceeds 1 because a build mostly waits for a compiler, which is another process. It is small because
builds that are started early may turn out to be unnecessary."""
_REFERENCES = 2
"""Maximum number of references that are computed at the same time. A reference consists of many
short operations that need the GIL. More threads would take longer in total, and delay the thread
that times candidates."""

BuiltCandidate = tuple[State, BuiltCheck]
"""A candidate that is ready to run, and its check."""


class CandidateBuilds:
    """The candidates that are built ahead on one device.

    memory: the memory that these candidates share.
    compilers: the processes that compile these candidates.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.memory = CandidateMemory(device)
        self.compilers = Compilers(device)
        self._checks: dict[tuple[str, Problem], Future[CandidateChecks]] = {}
        self._checks_lock = threading.Lock()
        self._building: dict[Future[BuiltCandidate], Row] = {}
        self._ahead = _AHEAD * processors() if device.builds_side_by_side else 1

    @contextmanager
    def started(self) -> Iterator[None]:
        """Build candidates in other threads within a `with` block.

        Several are built at the same time if the device allows it.
        """
        device = self.device
        self._pool, self._references = map(ThreadPoolExecutor, (self._ahead, _REFERENCES))
        # within current(), calls need not ask the driver for the current CUDA context
        current = device.current() if device.runs_cuda_libraries else nullcontext()
        # references are computed concurrently, each with one BLAS thread
        limited = blas.limited(1) if device.builds_side_by_side else nullcontext()
        try:
            with responsive(), current, limited:
                yield
        finally:
            # after an interrupt, pending builds are not needed
            for pool in (self._pool, self._references):
                pool.shutdown(wait=False, cancel_futures=True)
            self._building.clear()
            self._checks.clear()

    @property
    def rows(self) -> Collection[Row]:
        """Rows whose candidates are being built, or are built and not yet taken by next_built()."""
        return self._building.values()

    @property
    def has_room(self) -> bool:
        """Whether another build may be started now."""
        return len(self._building) < self._ahead

    def begin(self, layer: Layer, algorithm: Algorithm, variant: Variant
              ) -> Future[BuiltCandidate]:
        """Start to build a candidate, and return its future."""
        return self._pool.submit(self.build, layer, algorithm, variant)

    def begin_row(self, row: Row) -> None:
        """Start to build a row's candidate for next_built()."""
        self._building[self.begin(row.group.layer, row.algorithm, row.variant)] = row

    def give_up(self) -> list[Row]:
        """Cancel all builds, and return their rows."""
        for future in self._building:
            future.cancel()
        rows = list(self._building.values())
        self._building.clear()
        return rows

    def next_built(self) -> tuple[Row, Future[BuiltCandidate]]:
        """Wait for a build; return its row and future."""
        if not any(future.done() for future in self._building):
            wait(self._building, return_when=FIRST_COMPLETED)
        built = next(future for future in self._building if future.done())
        return self._building.pop(built), built

    def checks_of(self, layer: Layer) -> CandidateChecks:
        """Return the checks of a layer's candidates.

        The checks are made once for each layer. Their key is the layer's name and problem, because
        the name alone is not unique: conversions of one value to the same format have the same
        name, whatever format they convert from.
        """
        key = layer.name, layer.problem
        with self._checks_lock:
            if key not in self._checks:
                self._checks[key] = self._references.submit(CandidateChecks, layer, self.device,
                                                            self.memory)
        return self._checks[key].result()

    def build(self, layer: Layer, algorithm: Algorithm, variant: Variant) -> BuiltCandidate:
        """Return a ready candidate and its check."""
        # packed weights are shared by builds as long as one of the builds holds a reference to them
        weights = layer.weights_on(self.device)
        work = algorithm.work_ahead(layer.problem, variant, self.device)
        if work is not None:
            with suppress(NoProcessError):
                self.compilers.do(
                    work, f"{algorithm.name} {variant.config_text} for layer {layer.name}")
        try:
            state = build(algorithm, weights, layer.problem, variant, self.device)
        finally:
            # the thread that times candidates needs the checks even if the build failed
            checks = self.checks_of(layer)
        return state, checks.build_check(algorithm, variant)
