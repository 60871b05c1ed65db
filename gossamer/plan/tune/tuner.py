"""The tuner: measures the candidates of layers, or reads their measurements from the cache."""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import GossamerError
from gossamer.measure import CpuContention, Timing
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem, Variant
from gossamer.plan.candidate import Candidate
from gossamer.plan.eligibility import reason_build_too_long, reason_not_allowed
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import CandidateKey, Measurement, TuningCache, candidate_key
from gossamer.plan.tune.candidates import CandidateSet, digest
from gossamer.plan.tune.examples import Examples


class Measures(abc.ABC):
    """A source of measured candidates. precision: the least precise that is allowed."""

    precision: str

    @abc.abstractmethod
    def refusal_reason(self, algorithm: Algorithm, problem: Problem, device: Device) -> str | None:
        """Returns why an algorithm has no variant whose precision and build time are allowed; None
        where it has one."""

    @abc.abstractmethod
    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                device: Device) -> Sequence[Candidate]:
        """Returns the algorithms' candidates within the effort, in order of preference. Those that
        would take too long to build are among them as excluded."""

    @abc.abstractmethod
    def verified(self, layer: Layer, candidate: Candidate, device: Device) -> Candidate:
        """Returns the candidate, excluded where it is wrong with the layer's own constants."""


class Tuner(Measures):
    """Measures candidates on one device, and on the host for layers that fall back to it.

    effort: "quick", "normal" or "max". precision: the least precise of PRECISIONS that is
    allowed. cache: the stored measurements; by default those of the device in the user's folder.
    note: called with a line of text for each layer that is about to be measured.
    all_vendor_configs: whether all configs of vendors' libraries are measured, whatever the effort.
    """

    def __init__(self, device: Device, effort: str = "normal", *, precision: str = "fp32",
                 cache: TuningCache | None = None,
                 note: Callable[[str], None] = lambda line: None,
                 all_vendor_configs: bool = False) -> None:
        self.device = device
        self.effort = effort
        self._limits = EFFORTS[effort]
        if all_vendor_configs:
            self._limits = replace(self._limits, vendor_configs=None)
        self.samples = self._limits.samples
        self.build_seconds = self._limits.build_seconds
        self.precision = precision
        self.precisions = PRECISIONS[:PRECISIONS.index(precision) + 1]
        self.cache = TuningCache(device) if cache is None else cache
        self._caches = {device.name: self.cache}
        self.measured = 0
        """Number of candidates measured so far, without those from the cache."""
        self.reused = 0
        """Number of candidates whose measurements came from the cache."""
        self._contention = CpuContention()
        self._variants: dict[tuple[Algorithm, Problem, str], list[Variant]] = {}
        self._examples: dict[str, Examples] = {}
        self._note = note
        self._known: dict[tuple[Problem, str, tuple[str, ...]], list[Candidate]] = {}
        self._checked: dict[tuple[str, str, CandidateKey], str | None] = {}
        self._digests: dict[tuple[int, ...], tuple[str, list[np.ndarray]]] = {}

    @property
    def notices(self) -> list[str]:
        """Sentences for the user about the files of measurements, and about the conditions under
        which new ones were made."""
        notices = [line for cache in self._caches.values() for line in cache.notices]
        if self._contention.matters:
            contention = self._contention
            notices.append(
                f"the processors were wanted elsewhere: in {contention.seconds:.1f} s of sampling, "
                f"threads waited {contention.waited_s:.1f} s for one; the times are too long, of "
                "some layers many times, and are kept: when the machine is quiet, `gossamer cache "
                "clear` and measure again")
        return notices

    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                device: Device) -> list[Candidate]:
        problem = layer.problem
        assert problem is not None
        key = (problem, device.name, tuple(algorithm.name for algorithm in algorithms))
        if key not in self._known:
            self._known[key] = self._measure(layer, problem, algorithms, device)
        return self._known[key]

    def _measure(self, layer: Layer, problem: Problem, algorithms: Sequence[Algorithm],
                 device: Device) -> list[Candidate]:
        pairs = [(algorithm, variant) for algorithm in algorithms
                 for variant in self._within_effort(algorithm, problem, device)]
        buildable = [pair for pair in pairs if pair[1].build_seconds <= self.build_seconds]
        cache = self._cache_of(device)
        stored = {measured.candidate_key: measured for measured in cache.get(problem) or ()}
        if any(self._is_missing(stored.get(candidate_key(*pair)), layer) for pair in buildable):
            # all are measured, even if only one is missing: only times of one session compare
            fresh = self._fresh(layer, problem, buildable, device, stored)
            stored.update({measured.candidate_key: measured for measured in fresh})
        else:
            self.reused += len(buildable)
        return [Candidate(algorithm, variant, stored[candidate_key(algorithm, variant)]
                      if variant.build_seconds <= self.build_seconds else
                      Measurement.of(algorithm, variant, failure=reason_build_too_long(
                          variant, self.build_seconds, self._why)))
                for algorithm, variant in pairs]

    @property
    def _why(self) -> str:
        """The words that say where the limit of build_seconds comes from."""
        return f"with effort {self.effort}"

    def _is_missing(self, stored: Measurement | None, layer: Layer) -> bool:
        """Whether a candidate has to be measured, as its stored measurement does not suffice."""
        if stored is None:
            return True
        if stored.failure:
            # a candidate that was wrong with other weights may be right with these
            return stored.wrong_numbers and stored.weights != self._digest(layer)
        return stored.samples < self.samples

    def _fresh(self, layer: Layer, problem: Problem,
               pairs: Sequence[tuple[Algorithm, Variant]], device: Device,
               stored: Mapping[CandidateKey, Measurement]) -> list[Measurement]:
        """Measures the candidates of a layer, stores their measurements and returns them."""
        if all(spec.size == 0 for spec in problem.outputs):
            no_time = Timing(0.0, 0.0, 0.0, self.samples)
            return [Measurement.of(*pair, no_time, error=0.0, weights=self._digest(layer))
                    for pair in pairs]
        self._note(f"{layer.name}: {len(pairs)} candidates")
        candidates = CandidateSet(layer, device, self._contention, self._examples_of(device))
        fresh, transient = candidates.run(pairs, self.samples)
        fresh = [_with_first_build(measured, stored.get(measured.candidate_key))
                 for measured in fresh]
        self.measured += len(fresh)
        self._cache_of(device).put(problem, [measured for index, measured in enumerate(fresh)
                                            if index not in transient])
        return fresh

    def verified(self, layer: Layer, candidate: Candidate, device: Device) -> Candidate:
        # it may have been measured with the constants of another layer
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
        return candidate if failure is None else candidate.with_exclusion(failure)

    def flush(self) -> None:
        """Writes the measurements that are not on disk yet."""
        for cache in self._caches.values():
            cache.flush()

    def release(self) -> None:
        """Frees the memory that holds inputs for the layers to be measured."""
        self._examples.clear()

    def _examples_of(self, device: Device) -> Examples:
        if device.name not in self._examples:
            self._examples[device.name] = Examples(device)
        return self._examples[device.name]

    def _digest(self, layer: Layer) -> str:
        key = tuple(map(id, layer.weights.values()))
        if key not in self._digests:
            # the arrays are stored too, so that no new array gets the id of a deleted one
            self._digests[key] = (digest(layer.weights), list(layer.weights.values()))
        return self._digests[key][0]

    def _cache_of(self, device: Device) -> TuningCache:
        if device.name not in self._caches:
            # the host's measurements have a file of their own beside the device's
            self._caches[device.name] = TuningCache(device, self.cache.path.parent)
        return self._caches[device.name]

    def refusal_reason(self, algorithm: Algorithm, problem: Problem, device: Device) -> str | None:
        return reason_not_allowed(self._precise(algorithm, problem, device), self.build_seconds,
                               self._why)

    def _within_effort(self, algorithm: Algorithm, problem: Problem,
                       device: Device) -> Iterable[Variant]:
        """Yields the variants of as many configs as the effort asks for, and those before them
        that would take too long to build."""
        most = self._limits.vendor_configs if algorithm.vendor else self._limits.configs
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
        """Returns the variants whose precision is allowed."""
        key = (algorithm, problem, device.name)
        if key not in self._variants:
            # a problem with float16 specs is a change of precision, which some layer asked for
            has_half = any(spec.dtype == "float16" for spec in (*problem.inputs, *problem.outputs))
            self._variants[key] = [variant for variant in algorithm.variants(problem, device)
                                   if has_half or variant.precision in self.precisions]
        return self._variants[key]


def _with_first_build(fresh: Measurement, before: Measurement | None) -> Measurement:
    """Returns a measurement with the build time of an earlier one, where that was made before the
    kernels were in the cache."""
    if before is None or before.build_s is None or before.build_cached or not fresh.build_cached:
        return fresh
    return replace(fresh, build_s=before.build_s, build_cached=False)


def usable(layer: Layer, candidates: Sequence[Candidate], device: Device) -> list[Candidate]:
    """Returns the candidates that are not excluded. Raises GossamerError with the reasons where
    there are none."""
    remaining = [candidate for candidate in candidates if math.isfinite(candidate.cost)]
    if not remaining:
        raise GossamerError(
            f"{layer.source or layer.name}: no candidate works on {device.name}: "
            + "; ".join(f"{candidate.algorithm.name}: {candidate.measured.failure}"
                        for candidate in candidates[:3]))
    return remaining
