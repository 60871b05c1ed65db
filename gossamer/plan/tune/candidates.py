"""The candidates of one layer on one device: checked against the reference, then timed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gossamer.accuracy import LARGEST_ERROR
from gossamer.device.base import Buffer, Device
from gossamer.errors import OutOfMemoryError, first_line
from gossamer.measure import CpuContention, Task, prepared, sampled
from gossamer.ops import lru_cache
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import Measurement
from gossamer.plan.tune.check import GUARD, error_of
from gossamer.plan.tune.examples import Examples
from gossamer.plan.tune.prepare import Build, Made, build, side_by_side
from gossamer.tensor import TensorSpec

WRONG = "wrong numbers"
"""How the failure of a candidate begins that may be right with other weights."""

_CHECKED_IMAGES = 3
_CHECKED = 2**22
"""Numbers and operations of the images that are compared, where three have no more."""
_SAMPLE_US, _BUDGET_US = 200.0, 5e5
_COLD_SAMPLES = 5
_HOPELESS = 4.0
"""Times the fastest's, beyond which no layout that a candidate saves others makes up for it."""
_DIGITS = 16
_FILLED_AT_ONCE = 2**24
"""Bytes."""

Work = Callable[[Any], None]

_QUIET = np.errstate(all="ignore")
"""Weights may be huge, or not finite: the comparison tells."""


@dataclass
class _CheckedCandidate:
    """A candidate that computes the right numbers."""

    index: int
    work: Work
    error: float
    build: Build


class CandidateSet:
    """The candidates of a layer over the same inputs and the layer's own constants."""

    def __init__(self, layer: Layer, device: Device, contention: CpuContention | None = None,
                 examples: Examples | None = None) -> None:
        assert layer.problem is not None
        self.problem = layer.problem
        self._contention = CpuContention() if contention is None else contention
        self.device = device
        self._weights = Weights(layer.weights, device, layer.name)
        self.digest = self._weights.digest[:_DIGITS]
        self._examples = Examples(device) if examples is None else examples
        self._arrays = self._examples.of(self.problem)
        self._images, self._expected = self._reference(layer.weights)
        self._sources: dict[TensorSpec, dict[int, Buffer]] = {}
        self._targets: dict[tuple[int, TensorSpec], Buffer] = {}
        self._clean: Buffer | None = None
        self._workspace: Buffer | None = None
        self._other: tuple[Buffer, Buffer] | None = None

    @_QUIET
    def run(self, pairs: Sequence[tuple[Algorithm, Variant]],
            samples: int) -> tuple[list[Measurement], set[int]]:
        """What came of each pair; and the indices of those whose failure, out of memory, may not
        come again."""
        results: dict[int, Measurement] = {}
        transient: set[int] = set()

        def fail(index: int, failure: Exception) -> None:
            results[index] = self._failed(*pairs[index], f"does not run: {first_line(failure)}")
            if isinstance(failure, (OutOfMemoryError, MemoryError)):
                transient.add(index)

        self._share_workspace([variant for _, variant in pairs])
        ready: list[_CheckedCandidate] = []
        tasks = []
        for index, ((algorithm, variant), built) in enumerate(
                zip(pairs, self._built(pairs), strict=True)):
            try:
                state, made = built()
                work, error = self._checked(algorithm, variant, state)
                if not error <= LARGEST_ERROR[variant.precision]:
                    results[index] = self._failed(algorithm, variant, _wrong(error))
                    continue
                tasks.append(prepared(Task(self.device, work), _SAMPLE_US))
                ready.append(_CheckedCandidate(index, work, error, made))
            except Exception as failure:  # a candidate may fail in any way; it is named and left
                fail(index, failure)
        with self._contention.watched(self.device):
            timings = sampled(tasks, samples, _BUDGET_US, _HOPELESS)
        for each, timing in zip(ready, timings, strict=True):
            try:
                if isinstance(timing, Exception):
                    raise timing
                found = Measurement.of(*pairs[each.index], timing, error=each.error,
                                    cold_us=self._cold(each.work), weights=self.digest,
                                    build=each.build)
                # of what was asked for: a slow candidate stops earlier
                results[each.index] = replace(found, samples=samples)
            except Exception as failure:
                fail(each.index, failure)
        return [results[index] for index in range(len(pairs))], transient

    @_QUIET
    def check(self, algorithm: Algorithm, variant: Variant) -> str | None:
        """Why a candidate may not be used with the layer's constants; None where it may."""
        try:
            self._share_workspace([variant])
            state, _ = build(algorithm, self._weights, self.problem, variant, self.device)
            _, error = self._checked(algorithm, variant, state)
        except Exception as failure:
            return f"does not run: {first_line(failure)}"
        return None if error <= LARGEST_ERROR[variant.precision] else _wrong(error)

    def _failed(self, algorithm: Algorithm, variant: Variant, failure: str) -> Measurement:
        return Measurement.of(algorithm, variant, failure=failure, weights=self.digest)

    @_QUIET
    def _reference(self, weights: Mapping[str, np.ndarray]
                   ) -> tuple[list[int] | None, list[np.ndarray]]:
        """Which images are compared, the first and the last among them, and the reference's
        outputs for them; None for all, where images are not apart."""
        one = self.problem.first_images(1)
        if one == self.problem:
            return None, OPS[one.op].reference(one, self._arrays, weights)
        work = one.flops + sum(spec.size for spec in one.outputs)
        few = self.problem.first_images(max(_CHECKED_IMAGES, _CHECKED // max(work, 1)))
        count, all_ = few.outputs[0].shape[0], self.problem.outputs[0].shape[0]
        images = [round(index * (all_ - 1) / max(count - 1, 1)) for index in range(count)]
        arrays = [array[images] if array.shape != spec.shape else array
                  for array, spec in zip(self._arrays, few.inputs, strict=True)]
        return images, OPS[few.op].reference(few, arrays, weights)

    def _share_workspace(self, variants: Sequence[Variant]) -> None:
        """Memory for as many candidates as there is room for; they run one after another."""
        for nbytes in sorted({variant.workspace for variant in variants}, reverse=True):
            if self._workspace is not None and self._workspace.nbytes >= nbytes:
                return
            if nbytes:
                try:
                    self._workspace = self._empty(nbytes, "a candidate's workspace")
                except OutOfMemoryError:
                    continue
                return

    def _empty(self, nbytes: int, purpose: str) -> Buffer:
        try:
            return self.device.empty(nbytes, purpose)
        except OutOfMemoryError:
            # inputs of other layers have to go
            self._examples.forget()
            return self.device.empty(nbytes, purpose)

    def _workspace_of(self, variant: Variant) -> Buffer | None:
        if not variant.workspace:
            return None
        if self._workspace is None or self._workspace.nbytes < variant.workspace:
            raise OutOfMemoryError(f"{self.device.name} has no room for {variant.workspace} bytes "
                                   "(a candidate's workspace)")
        return self._workspace

    def _built(self, pairs: Sequence[tuple[Algorithm, Variant]]
               ) -> Sequence[Callable[[], Made]]:
        """For each pair what makes it ready, or raises what came of that."""
        makers = [partial(_QUIET(build), algorithm, self._weights, self.problem, variant,
                          self.device) for algorithm, variant in pairs]
        return side_by_side(self.device, makers, [bool(algorithm.vendor) for algorithm, _ in pairs])

    def _checked(self, algorithm: Algorithm, variant: Variant,
                 state: State) -> tuple[Work, float]:
        """The candidate as work, and its error: infinite where it wrote round its output or left a
        part of it as it was."""
        device = self.device
        sources = [self._source(index, spec) for index, spec in enumerate(variant.inputs)]
        margin = device.alignment
        guarded = [self._guarded(index, spec) for index, spec in enumerate(variant.outputs)]
        targets = [buffer.view(margin, spec.nbytes)
                   for buffer, spec in zip(guarded, variant.outputs, strict=True)]
        workspace = self._workspace_of(variant)

        def work(stream: Any) -> None:
            algorithm.launch(state, sources, targets, workspace, stream)

        error = math.inf
        try:
            work(None)
            device.synchronize()
            error = max(error_of(*each, self._images) for each in
                        zip(guarded, variant.outputs, self._expected, strict=True))
        finally:
            if not error <= LARGEST_ERROR[variant.precision]:
                # it may have written over its inputs, too
                self._sources.clear()
                self._examples.forget()
        return work, error

    def _cold(self, work: Work) -> float | None:
        """The median time of single executions, each after the cache was filled with other data;
        None for processors, whose caches are not ours to fill."""
        if self.device.api != "cuda":
            return None
        nbytes = 2 * self.device.limits.cache_bytes
        if self._other is None:
            self._other = (self._empty(nbytes, "what fills the cache"),
                           self._empty(nbytes, "what fills the cache"))
        graph: Any = self.device.capture(work)
        samples = []
        for _ in range(_COLD_SAMPLES):
            self.device.copy(*self._other, nbytes)
            samples.append(self.device.time(lambda stream: graph(stream)))
        return statistics.median(samples)

    def _source(self, index: int, spec: TensorSpec) -> Buffer:
        buffers = self._sources.setdefault(spec, {})
        if index not in buffers:
            buffers[index] = self._examples.buffer(self.problem, index, self._arrays[index], spec)
        return buffers[index]

    def _guarded(self, index: int, spec: TensorSpec) -> Buffer:
        """Memory for an output between guards, shared by all candidates of that layout, and
        filled with what none of them writes."""
        key = (index, spec)
        if key not in self._targets:
            self._targets[key] = self._empty(spec.nbytes + 2 * self.device.alignment,
                                             "a candidate's output")
        target = self._targets[key]
        if self._clean is None or self._clean.nbytes < min(target.nbytes, _FILLED_AT_ONCE):
            self._clean = self.device.upload(
                np.full(min(target.nbytes, _FILLED_AT_ONCE), GUARD, np.uint8),
                "what a candidate writes over")
        for first in range(0, target.nbytes, _FILLED_AT_ONCE):
            nbytes = min(_FILLED_AT_ONCE, target.nbytes - first)
            self.device.copy(target.view(first, nbytes), self._clean, nbytes)
        return target


def digest(weights: Mapping[str, np.ndarray]) -> str:
    """Hexadecimal digits that tell a layer's constants from others of the same shapes."""
    return lru_cache.digest(weights)[:_DIGITS]


def _wrong(error: float) -> str:
    return f"{WRONG} (error {error:.1e})"
