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
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.registry import OPS
from gossamer.plan.prepare import BuildCost, Prepared, build, side_by_side
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import Measurement
from gossamer.plan.tune.bounds import Bounds, bounds
from gossamer.plan.tune.check import GUARD, error_of
from gossamer.plan.tune.discontinuity import MOST_DOUBTFUL, continuous_parts, has_jumps
from gossamer.plan.tune.examples import Examples
from gossamer.tensor import TensorSpec

_CHECKED_IMAGES = 3
_CHECKED = 2**22
"""Output values and operations up to which more than _CHECKED_IMAGES images are compared."""
_SAMPLE_US, _BUDGET_US = 200.0, 5e5
"""Microseconds of one sample, and of all samples of a layer's candidates."""
_COLD_SAMPLES = 5
_HOPELESS = 4.0
"""Multiple of the fastest candidate's time beyond which a candidate gets one sample only, as no
layout that it gives to other layers could make up for it."""
_DIGITS = 16
"""Number of hexadecimal digits of a digest of weights."""
_DRAWS = 8
"""How often inputs are drawn at most, where many results lie within rounding of a jump."""
_FILLED_AT_ONCE = 2**24
"""Bytes of an output that are filled with the guard byte by one copy."""

Work = Callable[[Any], None]

_QUIET = np.errstate(all="ignore")
"""Weights may be huge or not finite; the comparison of outputs shows what comes of that."""


@dataclass
class _CheckedCandidate:
    """A candidate that computed the right numbers. index: its position among the pairs."""

    index: int
    work: Work
    error: float
    build: BuildCost


@dataclass(frozen=True)
class _ContinuousPart:
    """A problem that decides a jump, and the reference's outputs for it."""

    problem: Problem
    expected: list[np.ndarray]


class CandidateSet:
    """The candidates of a layer, which run on the same inputs with the layer's own constants."""

    def __init__(self, layer: Layer, device: Device, contention: CpuContention | None = None,
                 examples: Examples | None = None) -> None:
        assert layer.problem is not None
        self.problem = layer.problem
        self._contention = CpuContention() if contention is None else contention
        self.device = device
        self._weights = layer.weights_on(device)
        self.digest = self._weights.digest[:_DIGITS]
        self._examples = Examples(device) if examples is None else examples
        self._constants = layer.weights
        self._few, self._images = self._compared()
        self._arrays, self._drawn = self._examples.of(self.problem), False
        self._parts: list[_ContinuousPart] = []
        self._bounds: dict[str, list[Bounds]] = {}
        self._jumps = has_jumps(self.problem)
        if self._jumps:
            self._draw_inputs()
            self._parts = [_ContinuousPart(part, self._reference(few)) for part, few in zip(
                continuous_parts(self.problem), continuous_parts(self._few), strict=True)]
        self._expected = self._reference(self._few)
        self._sources: dict[TensorSpec, dict[int, Buffer]] = {}
        self._targets: dict[tuple[int, TensorSpec], Buffer] = {}
        self._clean: Buffer | None = None
        self._workspace: Buffer | None = None
        self._cache_filler: tuple[Buffer, Buffer] | None = None

    @_QUIET
    def run(self, pairs: Sequence[tuple[Algorithm, Variant]],
            samples: int) -> tuple[list[Measurement], set[int]]:
        """Returns a measurement for each pair, and the indices of those that ran out of memory, a
        failure that may not occur again."""
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
                state, build_record = built()
                work, error = self._checked(algorithm, variant, state)
                if not error <= LARGEST_ERROR[variant.precision]:
                    results[index] = Measurement.of(
                        algorithm, variant, failure=_wrong(error), wrong_numbers=True,
                        weights=self.digest)
                    continue
                tasks.append(prepared(Task(self.device, work), _SAMPLE_US))
                ready.append(_CheckedCandidate(index, work, error, build_record))
            except Exception as failure:  # in any way: it is reported and the rest go on
                fail(index, failure)
        with self._contention.watched(self.device):
            timings = sampled(tasks, samples, _BUDGET_US, _HOPELESS)
        for candidate, timing in zip(ready, timings, strict=True):
            try:
                if isinstance(timing, Exception):
                    raise timing
                measured = Measurement.of(
                    *pairs[candidate.index], timing, error=candidate.error,
                    cold_us=self._cold(candidate.work), weights=self.digest,
                    build=candidate.build)
                # the number that was asked for, though a slow candidate stops earlier
                results[candidate.index] = replace(measured, samples=samples)
            except Exception as failure:
                fail(candidate.index, failure)
        return [results[index] for index in range(len(pairs))], transient

    @_QUIET
    def check(self, algorithm: Algorithm, variant: Variant) -> str | None:
        """Returns why a candidate may not be used with the layer's constants; None where it may."""
        try:
            self._share_workspace([variant])
            state, _ = build(algorithm, self._weights, self.problem, variant, self.device)
            _, error = self._checked(algorithm, variant, state)
        except Exception as failure:
            return f"does not run: {first_line(failure)}"
        return None if error <= LARGEST_ERROR[variant.precision] else _wrong(error)

    def _failed(self, algorithm: Algorithm, variant: Variant, failure: str) -> Measurement:
        return Measurement.of(algorithm, variant, failure=failure, weights=self.digest)

    def _compared(self) -> tuple[Problem, list[int] | None]:
        """Returns the problem of the images that are compared, and which these are, the first and
        the last among them; the whole problem and None where images are not apart."""
        one = self.problem.first_images(1)
        if one == self.problem:
            return one, None
        work = one.flops + sum(spec.size for spec in one.outputs)
        few = self.problem.first_images(max(_CHECKED_IMAGES, _CHECKED // max(work, 1)))
        count, total = few.outputs[0].shape[0], self.problem.outputs[0].shape[0]
        return few, [round(index * (total - 1) / max(count - 1, 1)) for index in range(count)]

    def _compared_arrays(self) -> list[np.ndarray]:
        """Returns the inputs of the images that are compared."""
        if self._images is None:
            return list(self._arrays)
        return [array[self._images] if array.shape != spec.shape else array
                for array, spec in zip(self._arrays, self._few.inputs, strict=True)]

    @_QUIET
    def _reference(self, few: Problem) -> list[np.ndarray]:
        """Returns the reference's outputs for the images that are compared."""
        return OPS[few.op].reference(few, self._compared_arrays(), self._constants)

    @_QUIET
    def _bounds_of(self, precision: str) -> list[Bounds]:
        """Returns where right candidates of a precision may differ from the reference."""
        if precision not in self._bounds:
            self._bounds[precision] = bounds(self._few, self._compared_arrays(), self._constants,
                                             precision)
        return self._bounds[precision]

    def _draw_inputs(self) -> None:
        """Draws inputs again where too many results lie within rounding of a jump, and keeps those
        with the fewest such results."""
        draws = [self._arrays]
        shares = [self._doubtful_share()]
        while shares[-1] > MOST_DOUBTFUL and len(draws) < _DRAWS:
            self._arrays = self.problem.example_inputs(np.random.default_rng(len(draws)))
            self._bounds.clear()
            draws.append(self._arrays)
            shares.append(self._doubtful_share())
        best = shares.index(min(shares))
        self._drawn = best > 0
        if best != len(draws) - 1:
            self._arrays = draws[best]
            self._bounds.clear()

    def _doubtful_share(self) -> float:
        """Returns the largest share of an output that float32 rounding may take over a jump."""
        return max(limit.share for limit in self._bounds_of("fp32"))

    def _share_workspace(self, variants: Sequence[Variant]) -> None:
        """Allocates the largest workspace of any candidate for which there is memory; all share
        it, as they run one after another."""
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
            # the inputs of other layers are freed to make room
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
               ) -> Sequence[Callable[[], Prepared]]:
        """Returns for each pair a function that returns its prepared state and the cost of that,
        or raises the error."""
        makers = [partial(_QUIET(build), algorithm, self._weights, self.problem, variant,
                          self.device) for algorithm, variant in pairs]
        return side_by_side(self.device, makers, [bool(algorithm.vendor) for algorithm, _ in pairs])

    def _checked(self, algorithm: Algorithm, variant: Variant,
                 state: State) -> tuple[Work, float]:
        """Runs a candidate once and returns it as work, with its error: infinite where it wrote
        outside its output or left a part of the output unwritten.

        A candidate whose results jump is also compared with the jumps left out, where the
        algorithm can compute that in the same variant.
        """
        limits = self._bounds_of(variant.precision) if self._jumps else None
        work, error = self._compared_work(algorithm, variant, state, self._expected, limits)
        for part in self._parts if error <= LARGEST_ERROR[variant.precision] else ():
            packed = any(spec.format.is_packed for spec in variant.outputs)
            if packed or algorithm.supports(part.problem, self.device) is not None:
                continue
            try:
                other, _ = build(algorithm, self._weights, part.problem, variant, self.device)
            except Exception:
                # a vendor's library may fuse the one epilogue and not the other
                if not algorithm.vendor:
                    raise
                continue
            _, off = self._compared_work(algorithm, variant, other, part.expected, None)
            error = max(error, off)
        return work, error

    def _compared_work(self, algorithm: Algorithm, variant: Variant, state: State,
                       expected: Sequence[np.ndarray],
                       limits: Sequence[Bounds] | None) -> tuple[Work, float]:
        """Returns a prepared problem as work, and its error against these outputs."""
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
            error = max(error_of(buffer, spec, right, self._images,
                                 None if limits is None else limits[index])
                        for index, (buffer, spec, right) in enumerate(
                            zip(guarded, variant.outputs, expected, strict=True)))
        finally:
            if not error <= LARGEST_ERROR[variant.precision]:
                # a wrong candidate may have written over its inputs, too
                self._sources.clear()
                self._examples.forget()
        return work, error

    def _cold(self, work: Work) -> float | None:
        """Returns the median time in microseconds of single executions, each after the cache was
        filled with other data; None where that is not done, as the device does not say how large
        its cache is or cannot replay such an execution as a graph."""
        if not (self.device.limits.graph and self.device.limits.cache_bytes):
            return None
        nbytes = 2 * self.device.limits.cache_bytes
        if self._cache_filler is None:
            self._cache_filler = (self._empty(nbytes, "what fills the cache"),
                                  self._empty(nbytes, "what fills the cache"))
        graph = self.device.capture(work)
        samples = []
        for _ in range(_COLD_SAMPLES):
            self.device.copy(*self._cache_filler, nbytes)
            samples.append(self.device.time(graph))
        return statistics.median(samples)

    def _source(self, index: int, spec: TensorSpec) -> Buffer:
        buffers = self._sources.setdefault(spec, {})
        if index not in buffers:
            array = self._arrays[index]
            buffers[index] = (self._examples.uploaded(array, spec) if self._drawn
                              else self._examples.buffer(self.problem, index, array, spec))
        return buffers[index]

    def _guarded(self, index: int, spec: TensorSpec) -> Buffer:
        """Returns memory for an output between guards, filled with the guard byte. All candidates
        of that layout share it."""
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
    """Returns hexadecimal digits that identify the values of a layer's constants."""
    return lru_cache.digest(weights)[:_DIGITS]


def _wrong(error: float) -> str:
    return f"wrong numbers (error {error:.1e})"
