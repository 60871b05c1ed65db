"""Candidates of a layer: checked against the reference, then timed; or read from the cache."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.errors import GossamerError, OutOfMemoryError
from gossamer.measure import Task, Timing, interleave
from gossamer.ops import OPS
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem, State, Variant, Weights
from gossamer.plan.program import Layer
from gossamer.plan.tuning_cache import Candidate, Measured, TuningCache, candidate
from gossamer.tensor import TensorSpec, from_memory, to_memory

EFFORTS: dict[str, tuple[int | None, int]] = {"quick": (2, 5), "normal": (6, 10), "max": (None, 20)}
"""By name: configs that are tried of each algorithm (None: all), and samples of each time."""

LARGEST_ERROR = {"fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3}
"""Normalised error beyond which a candidate of a precision computes wrong numbers."""

_CHECKED_IMAGES = 2
_COLD_SAMPLES = 5
_GUARD = 0xFF


@dataclass(frozen=True)
class Trial:
    """A candidate and what is known of it."""

    algorithm: Algorithm
    variant: Variant
    measured: Measured

    @property
    def cost(self) -> float:
        """Microseconds; infinite where it is excluded."""
        time = self.measured.median_us
        return math.inf if self.measured.failure or time is None else time

    def excluded(self, reason: str) -> Trial:
        """The same, which may not be taken."""
        return replace(self, measured=replace(self.measured, failure=reason))

    def reason(self, taken: Trial) -> str:
        """Why the taken one was taken instead."""
        if self.measured.failure:
            return self.measured.failure
        told = f"{self.cost:.1f} us against {taken.cost:.1f} us"
        if self.cost >= taken.cost:
            return told
        if (self.variant.inputs, self.variant.outputs) == (taken.variant.inputs,
                                                           taken.variant.outputs):
            return f"{told}: plans within 2% count as equal, and the first in order is taken"
        return f"{told}, but its layouts cost more elsewhere"


class Tuner:
    """Measures candidates on one device, or on the host for layers that fall back to it.

    effort: "quick", "normal" or "max". precision: the least precise of PRECISIONS that is
    allowed. note: told of each layer that is measured.
    """

    def __init__(self, device: Device, effort: str = "normal", *, precision: str = "fp32",
                 cache: TuningCache | None = None,
                 note: Callable[[str], None] = lambda line: None) -> None:
        self.device = device
        self.configs, self.samples = EFFORTS[effort]
        self.precision = precision
        self.precisions = PRECISIONS[:PRECISIONS.index(precision) + 1]
        self.cache = TuningCache(device) if cache is None else cache
        self._caches = {device.name: self.cache}
        self.measured = 0
        """Candidates measured so far, those from the cache apart."""
        self.reused = 0
        """Candidates whose measurements came from the cache."""
        self._note = note
        self._known: dict[tuple[Problem, str, tuple[str, ...]], list[Trial]] = {}

    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                place: Device) -> list[Trial]:
        """Every candidate of the algorithms, in their order of preference. At least one can be
        used; raises GossamerError that says why where none can."""
        problem = layer.problem
        assert problem is not None
        key = (problem, place.name, tuple(algorithm.name for algorithm in algorithms))
        if key not in self._known:
            self._known[key] = self._measure(layer, problem, algorithms, place)
        return self._known[key]

    def _measure(self, layer: Layer, problem: Problem, algorithms: Sequence[Algorithm],
                 place: Device) -> list[Trial]:
        wanted = [(algorithm, variant) for algorithm in algorithms
                  for variant in self._variants(algorithm, problem, place)]
        if place.name not in self._caches:
            # the host's measurements, in a file of their own beside the device's
            self._caches[place.name] = TuningCache(place, self.cache.path.parent)
        cache = self._caches[place.name]
        stored = {each.candidate: each for each in cache.get(problem) or ()}
        missing = [pair for pair in wanted if candidate(*pair) not in stored]
        self.reused += len(wanted) - len(missing)
        if missing and all(spec.size == 0 for spec in problem.outputs):
            nothing = Timing(0.0, 0.0, 0.0, 1)
            stored.update({candidate(*pair): Measured.of(*pair, nothing, error=0.0)
                           for pair in missing})
        elif missing:
            self._note(f"{layer.name}: {len(missing)} candidates")
            fresh, transient = _Trials(layer, problem, place).run(missing, self.samples)
            self.measured += len(fresh)
            cache.put(problem, [each for each in fresh if each.candidate not in transient])
            stored.update({each.candidate: each for each in fresh})
        trials = [Trial(algorithm, variant, stored[candidate(algorithm, variant)])
                  for algorithm, variant in wanted]
        if all(math.isinf(trial.cost) for trial in trials):
            raise GossamerError(
                f"{layer.source or layer.name}: no candidate works on {place.name}: "
                + "; ".join(f"{t.algorithm.name}: {t.measured.failure}" for t in trials[:3]))
        return trials

    def _variants(self, algorithm: Algorithm, problem: Problem,
                  place: Device) -> Iterable[Variant]:
        # what states float16 itself is a change of precision, forced by what was allowed
        forced = any(spec.dtype == "float16" for spec in (*problem.inputs, *problem.outputs))
        allowed = (variant for variant in algorithm.variants(problem, place)
                   if forced or variant.precision in self.precisions)
        groups = itertools.groupby(allowed, key=lambda v: v.config)
        for _, variants in itertools.islice(groups, self.configs):
            yield from variants


class _Trials:
    """The candidates of one layer on one device, over the same inputs."""

    def __init__(self, layer: Layer, problem: Problem, place: Device) -> None:
        self.problem = problem
        self.place = place
        self.weights = Weights(layer.weights, place, layer.name)
        rng = np.random.default_rng(0)
        self.arrays = problem.example_inputs(rng)
        self.expected = self._expected(layer.weights)
        self._sources: dict[TensorSpec, dict[int, Buffer]] = {}
        self._targets: dict[tuple[int, TensorSpec], tuple[Buffer, Buffer]] = {}
        self._other: tuple[Buffer, Buffer] | None = None

    def _expected(self, weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The reference's outputs for the first images."""
        few = self.problem.first_images(_CHECKED_IMAGES)
        arrays = [array[tuple(map(slice, spec.shape))]
                  for array, spec in zip(self.arrays, few.inputs, strict=True)]
        return OPS[few.op].reference(few, arrays, weights)

    def run(self, pairs: Sequence[tuple[Algorithm, Variant]],
            samples: int) -> tuple[list[Measured], set[Candidate]]:
        """What came of each pair, and which failures may not come again: out of memory."""
        results: dict[int, Measured] = {}
        transient: set[Candidate] = set()
        ready: list[tuple[int, Callable[[Any], None], float]] = []
        for index, (algorithm, variant) in enumerate(pairs):
            try:
                work, error = self._checked(algorithm, variant)
            except Exception as failure:  # a candidate may fail in any way; it is named and left
                results[index] = Measured.of(algorithm, variant,
                                             failure=f"does not run: {_line(failure)}")
                if isinstance(failure, (OutOfMemoryError, MemoryError)):
                    transient.add(results[index].candidate)
                continue
            if error > LARGEST_ERROR[variant.precision] or math.isnan(error):
                results[index] = Measured.of(algorithm, variant, error=None,
                                             failure=f"wrong numbers (error {error:.1e})")
                continue
            ready.append((index, work, error))
        timings = interleave([Task(self.place, work) for _, work, _ in ready], repeats=samples,
                             budget_us=5e5) if ready else []
        for (index, work, error), timing in zip(ready, timings, strict=True):
            results[index] = Measured.of(*pairs[index], timing, error=error,
                                         cold_us=self._cold(work))
        return [results[index] for index in range(len(pairs))], transient

    def _checked(self, algorithm: Algorithm,
                 variant: Variant) -> tuple[Callable[[Any], None], float]:
        """The candidate as work, and its error over the first images; infinite where it wrote
        round its output."""
        place = self.place
        state: State = algorithm.prepare(self.weights, self.problem, variant, place)
        sources = [self._source(index, spec) for index, spec in enumerate(variant.inputs)]
        margin = place.alignment
        guarded = [self._guarded(index, spec) for index, spec in enumerate(variant.outputs)]
        targets = [buffer.view(margin, spec.nbytes)
                   for buffer, spec in zip(guarded, variant.outputs, strict=True)]
        workspace = place.empty(variant.workspace, "a candidate's workspace") if (
            variant.workspace) else None

        def work(stream: Any) -> None:
            algorithm.launch(state, sources, targets, workspace, stream)

        work(None)
        place.synchronize()
        error = max(self._error(*each, margin) for each in
                    zip(guarded, variant.outputs, self.expected, strict=True))
        return work, error

    def _cold(self, work: Callable[[Any], None]) -> float | None:
        """The median time of single launches, each after the cache was filled with other data;
        None for processors, whose caches are not ours to fill."""
        if self.place.api != "cuda":
            return None
        nbytes = 2 * self.place.limits.cache_bytes
        if self._other is None:
            self._other = (self.place.empty(nbytes, "what fills the cache"),
                           self.place.empty(nbytes, "what fills the cache"))
        samples = []
        for _ in range(_COLD_SAMPLES):
            self.place.copy(*self._other, nbytes)
            samples.append(self.place.time(work))
        return statistics.median(samples)

    def _guarded(self, index: int, spec: TensorSpec) -> Buffer:
        """Memory for an output between guards, shared by all candidates of that layout, and
        filled with what none of them writes."""
        key = (index, spec)
        if key not in self._targets:
            fill = np.full(spec.nbytes + 2 * self.place.alignment, _GUARD, np.uint8)
            self._targets[key] = (self.place.upload(fill, "a candidate's output"),
                                  self.place.upload(fill, "what a candidate writes over"))
        target, clean = self._targets[key]
        self.place.copy(target, clean, target.nbytes)
        return target

    def _source(self, index: int, spec: TensorSpec) -> Buffer:
        buffers = self._sources.setdefault(spec, {})
        if index not in buffers:
            buffers[index] = self.place.upload(to_memory(self.arrays[index], spec),
                                               "a candidate's input")
        return buffers[index]

    def _error(self, buffer: Buffer, spec: TensorSpec, expected: np.ndarray,
               margin: int) -> float:
        """Of the first images, which are all that is read back where they lie together."""
        if spec.layout != "CHWN" and spec.shape[1:] == expected.shape[1:]:
            few = replace(spec, shape=expected.shape)
        else:
            few = spec
        end = margin + spec.nbytes
        tail = end // self.place.alignment * self.place.alignment
        guards = np.concatenate([self._bytes(buffer, 0, margin),
                                 self._bytes(buffer, tail, buffer.nbytes)[end - tail:]])
        if (guards != _GUARD).any():
            return math.inf
        stored = self._bytes(buffer, margin, margin + few.nbytes).view(few.stored_dtype)
        result = from_memory(stored, few)[tuple(map(slice, expected.shape))]
        if result.dtype.kind != "f":
            return 0.0 if np.array_equal(result, expected) else math.inf
        size = np.linalg.norm(expected)
        difference = np.linalg.norm(result.astype(np.float64) - expected)
        return float(difference / size if size else difference)

    def _bytes(self, buffer: Buffer, start: int, end: int) -> np.ndarray:
        memory = np.empty(end - start, np.uint8)
        self.place.read(buffer.view(start, end - start), memory)
        return memory


def _line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
