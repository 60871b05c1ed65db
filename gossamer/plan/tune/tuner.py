"""Candidates of a layer: checked against the reference, then timed; or read from the cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import GossamerError
from gossamer.measure import CpuContention, Timing
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem, Variant
from gossamer.plan.choose.eligibility import nothing_allowed, too_long
from gossamer.plan.choose.plan_assignment import SLACK
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import CandidateKey, Measurement, TuningCache, candidate_key
from gossamer.plan.tune.candidates import WRONG, CandidateSet, digest
from gossamer.plan.tune.examples import Examples

EFFORTS: dict[str, tuple[int | None, int]] = {"quick": (2, 5), "normal": (6, 10), "max": (None, 20)}
"""By name: configs that are tried of each algorithm of our own (None: all), and samples of each
time."""

VENDOR_CONFIGS: dict[str, int | None] = {"quick": 4, "normal": 10, "max": None}
"""By effort: configs of a vendor's library. They cost little, nothing is compiled for most, and
the library's own order is a poor guide: its last can take half the time of its first."""

BUILD_SECONDS = {"quick": 15.0, "normal": 60.0, "max": 240.0}
"""By effort: of one processor, that building a candidate may be expected to take."""


@dataclass(frozen=True)
class Candidate:
    """A candidate and what is known of it."""

    algorithm: Algorithm
    variant: Variant
    measured: Measurement

    @property
    def cost(self) -> float:
        """Microseconds; infinite where it is excluded."""
        time = self.measured.median_us
        return math.inf if self.measured.failure or time is None else time

    def excluded(self, reason: str) -> Candidate:
        """The same, which may not be taken."""
        return replace(self, measured=replace(self.measured, failure=reason))

    def reason(self, taken: Candidate) -> str:
        """Why the taken one was taken instead."""
        if self.measured.failure:
            return self.measured.failure
        told = f"{self.cost:.1f} us against {taken.cost:.1f} us"
        if self.cost >= taken.cost:
            return told
        if taken.cost <= self.cost * (1 + SLACK):
            return f"{told}: within {SLACK:.0%}, which counts as equal"
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
        self.effort = effort
        self.configs, self.samples = EFFORTS[effort]
        self.vendor_configs = VENDOR_CONFIGS[effort]
        self.build_seconds = BUILD_SECONDS[effort]
        self.precision = precision
        self.precisions = PRECISIONS[:PRECISIONS.index(precision) + 1]
        self.cache = TuningCache(device) if cache is None else cache
        self._caches = {device.name: self.cache}
        self.measured = 0
        """Candidates measured so far, those from the cache apart."""
        self.reused = 0
        """Candidates whose measurements came from the cache."""
        self._contention = CpuContention()
        self._variants: dict[tuple[Algorithm, Problem, str], list[Variant]] = {}
        self._examples: dict[str, Examples] = {}
        self._note = note
        self._known: dict[tuple[Problem, str, tuple[str, ...]], list[Candidate]] = {}
        self._checked: dict[tuple[str, str, CandidateKey], str | None] = {}
        self._digests: dict[tuple[int, ...], tuple[str, list[np.ndarray]]] = {}

    @property
    def notices(self) -> list[str]:
        """What the user should be told of the files of measurements, and of the circumstances of
        new ones."""
        told = [line for cache in self._caches.values() for line in cache.notices]
        if self._contention.matters:
            contention = self._contention
            told.append(
                f"the processors were wanted elsewhere: in {contention.seconds:.1f} s of sampling, "
                f"threads waited {contention.waited_s:.1f} s for one; the times are too long, of some "
                "layers many times, and are kept: when the machine is quiet, `gossamer cache "
                "clear` and measure again")
        return told

    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                device: Device) -> list[Candidate]:
        """Every candidate of the algorithms, in their order of preference; those that would take
        too long to build are excluded."""
        problem = layer.problem
        assert problem is not None
        key = (problem, device.name, tuple(algorithm.name for algorithm in algorithms))
        if key not in self._known:
            self._known[key] = self._measure(layer, problem, algorithms, device)
        return self._known[key]

    def _measure(self, layer: Layer, problem: Problem, algorithms: Sequence[Algorithm],
                 device: Device) -> list[Candidate]:
        tried = [(algorithm, variant) for algorithm in algorithms
                 for variant in self._tried(algorithm, problem, device)]
        wanted = [pair for pair in tried if pair[1].build_seconds <= self.build_seconds]
        cache = self._cache_of(device)
        stored = {each.candidate_key: each for each in cache.get(problem) or ()}
        if any(self._is_missing(stored.get(candidate_key(*pair)), layer) for pair in wanted):
            # together, whatever is known of some: times of one session compare
            fresh = self._fresh(layer, problem, wanted, device, stored)
            stored.update({each.candidate_key: each for each in fresh})
        else:
            self.reused += len(wanted)
        return [Candidate(algorithm, variant, stored[candidate_key(algorithm, variant)]
                      if variant.build_seconds <= self.build_seconds else
                      Measurement.of(algorithm, variant, failure=too_long(
                          variant, self.build_seconds, self._why)))
                for algorithm, variant in tried]

    @property
    def _why(self) -> str:
        return f"with effort {self.effort}"

    def _is_missing(self, known: Measurement | None, layer: Layer) -> bool:
        if known is None:
            return True
        if known.failure:
            # what was wrong with other weights may be right with these
            return known.failure.startswith(WRONG) and known.weights != self._digest(layer)
        return known.samples < self.samples

    def _fresh(self, layer: Layer, problem: Problem,
               wanted: Sequence[tuple[Algorithm, Variant]], device: Device,
               known: Mapping[CandidateKey, Measurement]) -> list[Measurement]:
        if all(spec.size == 0 for spec in problem.outputs):
            nothing = Timing(0.0, 0.0, 0.0, self.samples)
            return [Measurement.of(*pair, nothing, error=0.0, weights=self._digest(layer))
                    for pair in wanted]
        self._note(f"{layer.name}: {len(wanted)} candidates")
        candidates = CandidateSet(layer, device, self._contention, self._examples_of(device))
        fresh, transient = candidates.run(wanted, self.samples)
        fresh = [_with_first_build(each, known.get(each.candidate_key)) for each in fresh]
        self.measured += len(fresh)
        self._cache_of(device).put(problem, [each for index, each in enumerate(fresh)
                                            if index not in transient])
        return fresh

    def verified(self, layer: Layer, candidate: Candidate, device: Device) -> Candidate:
        """The candidate, checked with the layer's own constants, where it was with others; excluded
        where it is wrong with them."""
        measured = candidate.measured
        if measured.weights == self._digest(layer) or not layer.weights:
            return candidate
        key = (layer.name, device.name, measured.candidate_key)
        if key not in self._checked:
            self._note(f"{layer.name}: {measured.algorithm} with these weights")
            candidates = CandidateSet(layer, device, examples=self._examples_of(device))
            self._checked[key] = candidates.check(candidate.algorithm, candidate.variant)
            if self._checked[key] is None and layer.problem is not None:
                self._cache_of(device).put(
                    layer.problem, [replace(measured, weights=self._digest(layer))])
        failure = self._checked[key]
        return candidate if failure is None else candidate.excluded(failure)

    def release(self) -> None:
        """Gives up the memory that is kept to measure more layers."""
        self._examples.clear()

    def _examples_of(self, device: Device) -> Examples:
        if device.name not in self._examples:
            self._examples[device.name] = Examples(device)
        return self._examples[device.name]

    def _digest(self, layer: Layer) -> str:
        key = tuple(map(id, layer.weights.values()))
        if key not in self._digests:
            # the arrays are kept, so that no other takes their place in memory
            self._digests[key] = (digest(layer.weights), list(layer.weights.values()))
        return self._digests[key][0]

    def _cache_of(self, device: Device) -> TuningCache:
        if device.name not in self._caches:
            # the host's measurements, in a file of their own beside the device's
            self._caches[device.name] = TuningCache(device, self.cache.path.parent)
        return self._caches[device.name]

    def refusal(self, algorithm: Algorithm, problem: Problem, device: Device) -> str | None:
        """Why an algorithm has no variant of a precision and a build time that are allowed; None
        where it has one."""
        return nothing_allowed(self._precise(algorithm, problem, device), self.build_seconds,
                               self._why)

    def _tried(self, algorithm: Algorithm, problem: Problem,
               device: Device) -> Iterable[Variant]:
        """Those of as many configs as the effort asks for, and those before them that would take
        too long to build."""
        most = self.vendor_configs if algorithm.vendor else self.configs
        count = 0
        for _, variants in itertools.groupby(self._precise(algorithm, problem, device),
                                             key=lambda variant: variant.config):
            if count == most:
                return
            group = list(variants)
            count += any(variant.build_seconds <= self.build_seconds for variant in group)
            yield from group

    def _precise(self, algorithm: Algorithm, problem: Problem,
                 device: Device) -> Iterable[Variant]:
        key = (algorithm, problem, device.name)
        if key not in self._variants:
            # what states float16 itself is a change of precision, forced by what was allowed
            forced = any(spec.dtype == "float16" for spec in (*problem.inputs, *problem.outputs))
            self._variants[key] = [variant for variant in algorithm.variants(problem, device)
                                   if forced or variant.precision in self.precisions]
        return self._variants[key]


def _with_first_build(fresh: Measurement, before: Measurement | None) -> Measurement:
    """A measurement, with what its build took before the kernels were in the cache."""
    if before is None or before.build_s is None or before.build_cached or not fresh.build_cached:
        return fresh
    return replace(fresh, build_s=before.build_s, build_cached=False)


def usable(layer: Layer, candidates: Sequence[Candidate], device: Device) -> list[Candidate]:
    """Those that may be taken. Raises GossamerError that says why where there are none."""
    found = [candidate for candidate in candidates if math.isfinite(candidate.cost)]
    if not found:
        raise GossamerError(
            f"{layer.source or layer.name}: no candidate works on {device.name}: "
            + "; ".join(f"{t.algorithm.name}: {t.measured.failure}" for t in candidates[:3]))
    return found
