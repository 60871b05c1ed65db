"""The search for the fastest candidates of layers on one device.

The candidates are ranked by the time that each candidate is expected to save, built ahead, checked
and sampled once. Candidates within 15% of the best time are sampled again. Some candidates wait
until other candidates are measured, since the results may show that the waiting candidates are of
no use.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from gossamer.device.base import Device
from gossamer.measure import Timing
from gossamer.ops.algorithm import PRECISIONS, Problem
from gossamer.plan.candidate import Measurement, candidate_key
from gossamer.plan.program import Layer, responsive
from gossamer.plan.store.tuning_cache import Results
from gossamer.plan.tune.build import BuiltCandidate, CandidateBuilds
from gossamer.plan.tune.cost import Estimates
from gossamer.plan.tune.layer_times import NEAR, Attempt, CandidateGroup, LayerTimes
from gossamer.plan.tune.measures import MeasurementRequest, similar_shape, timed_problem
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import LISTING, STORING, TuningProfile
from gossamer.plan.tune.ranking import ENDED, Ranking, Skip
from gossamer.plan.tune.sampling import Sampler
from gossamer.plan.tune.space import Space
from gossamer.plan.tune.workers import WorkerPools

_NOT_TRIED = "not tried: "
"""The beginning of the reason that reports state for a candidate that was left out."""
_STORE_SECONDS = 5.0
"""Seconds after which a search stores its measurements so far: a process that is killed loses only
the measurements of these seconds."""


@dataclass(frozen=True)
class Progress:
    """How far a search has come.

    layers: the number of layers that are measured.
    known_layers: how many of these layers have a time.
    best_us: the sum of the best times of these layers in microseconds.
    candidates: the number of candidates that are to be measured.
    done: how many of these candidates are measured or left out.
    seconds_left: the seconds that the remaining candidates may take.
    """

    layers: int
    known_layers: int
    best_us: float
    candidates: int
    done: int
    seconds_left: float


class Search:
    """The search among the candidates of layers on one device.

    key: identifies the candidates and the effort of the search. Candidates that one search left out
    are left out by later searches with the same key, too.
    required_first: whether to begin with the candidates that a plan without measurements takes.
    is_over: returns whether measuring is to end as soon as each layer has a time.
    begun: called with attempts before they join the ranking.
    progress: called after each attempt.
    timings: a list to which the samples of candidates near the best are added.
    """

    def __init__(self, device: Device, space: Space, key: str, results: Results,
                 estimates: Estimates, memory: CandidateMemory, workers: WorkerPools | None,
                 profile: TuningProfile, timings: list[Timing], *, required_first: bool,
                 is_over: Callable[[], bool] = lambda: False,
                 begun: Callable[[Sequence[Attempt]], None] = lambda attempts: None,
                 progress: Callable[[Progress], None] = lambda progress: None) -> None:
        self.measured = 0
        """Number of candidates that were measured."""
        self.reused = 0
        """Number of candidates whose measurements came from the cache."""
        self._device, self._space, self._key = device, space, key
        self._limits = space.limits
        self._results, self._estimates, self._profile = results, estimates, profile
        self._is_over, self._begun, self._progress = is_over, begun, progress
        self._ranking = Ranking(estimates, space.limits, required_first=required_first)
        self._builds = CandidateBuilds(
            device, memory, profile, None if workers is None else workers.pools)
        self._sampler = Sampler(device, memory, self._ranking, self._builds, space.limits.samples,
                                profile, timings)
        self._requests: list[MeasurementRequest] = []
        self._groups: dict[Problem, CandidateGroup] = {}
        self._times: dict[tuple[str, Problem], LayerTimes] = {}
        """The times by a layer's name and problem: conversions of one value to the same format have
        the same name, whatever format they convert from."""
        self._attempts: list[Attempt] = []
        """The attempts for candidates without a stored measurement that suffices."""
        self._alike: dict[object, CandidateGroup] = {}
        """For layers that are alike, the group of the first such layer, by the result of
        similar_shape()."""
        self._later: list[Attempt] = []
        """The attempts that wait until the other attempts are measured."""
        self._start = self._stored = time.monotonic()

    @property
    def not_tried(self) -> int:
        """Number of candidates that were left out."""
        return sum(attempt.measured is not None and attempt.measured.not_tried
                   for group in self._groups.values() for attempt in group.attempts.values())

    def run(self, requests: Iterable[Sequence[MeasurementRequest]],
            others: Callable[[], Sequence[MeasurementRequest]] = tuple) -> None:
        """Measure the requested candidates. The results are stored, also where an interrupt ends
        the search.

        requests: lists of requests, which may be empty. Where the device builds side by side,
        candidates are built while the next list is made.
        others: called for further requests while candidates are measured, by another thread where
        the device builds side by side.
        """
        # within current(), no call needs to ask the driver which context is current
        current = (self._device.current() if self._device.runs_cuda_libraries else nullcontext())
        try:
            with responsive(), current, self._builds.started():
                for known in requests:
                    if known:
                        self._add(known)
                    if self._device.builds_side_by_side:
                        self._begin()
                listed = self._builds.call(others)
                self._measure(listed)
                self._add(listed.result())
                self._measure()
                self._rank(self._later)
                self._measure()
                self._sampler.sample_left()
                while instead := self._required_instead():
                    self._ranking.extend(instead)
                    self._measure()
                    self._sampler.sample_left()
        finally:
            self._store()

    def _measure(self, listed: Future[Any] | None = None) -> None:
        """Measure candidates until a future is done; without a future, until no candidate is
        left in the ranking."""
        while listed is None or not listed.done():
            if self._is_over():
                # builds that the plan can do without are given up
                for attempt in self._builds.give_up_optional():
                    self._leave_out(attempt, ENDED)
            self._begin()
            if listed is None and not self._builds.attempts:
                return
            if (built := self._builds.next_built(listed)) is not None:
                self._try(*built)

    def _begin(self) -> None:
        """Begin to build as many candidates as is of use."""
        while self._builds.has_room and (
                taken := self._ranking.pop(self._is_over())):
            attempt, skip = taken
            if skip is None:
                self._builds.begin(attempt)
            else:
                self._leave_out(attempt, skip)

    def _leave_out(self, attempt: Attempt, skip: Skip) -> None:
        attempt.measured = Measurement.of(attempt.algorithm, attempt.variant, not_tried=True,
                                          failure=_NOT_TRIED + skip.reason, search=self._key)
        attempt.may_differ = not skip.is_final

    def _try(self, attempt: Attempt, built: Future[BuiltCandidate]) -> None:
        """Measure a candidate that is built, unless times measured meanwhile show that it is
        useless."""
        if (skip := self._ranking.skip(attempt)) is not None:
            self._leave_out(attempt, skip)
        else:
            self._sampler.try_(attempt, built)
            self.measured += 1
        if time.monotonic() - self._stored > _STORE_SECONDS:
            self._store()
        self._report()

    def _report(self) -> None:
        # fusions are not counted, because their layers are counted
        layers = [times for times in self._times.values() if not times.parts]
        known = [times.best_us for times in layers if times.best]
        most, left = len(self._attempts), len(self._ranking)
        spent = time.monotonic() - self._start
        self._progress(Progress(len(layers), len(known), sum(known), most, most - left,
                                spent * left / max(1, most - left)))

    def _add(self, requests: Sequence[MeasurementRequest]) -> None:
        """Add requests to the ranking. Three kinds of candidates wait until all other candidates
        are measured: candidates with configs beyond the effort's first configs, candidates of
        layers that are like an earlier layer, and candidates of fusions within larger fusions."""
        with self._profile.stage(LISTING):
            new = self._listed(requests)
            self._relate()
        attempts = [attempt for group, of_group in new.items()
                    for attempt in self._missing(group, of_group)]
        first: list[Attempt] = []
        for attempt in attempts:
            waits = attempt.is_more or attempt.group.alike is not None or all(
                times.parts and times.covered_by for times in attempt.group.layers)
            (self._later if waits else first).append(attempt)
        self._rank(first)

    def _rank(self, attempts: Sequence[Attempt]) -> None:
        """Add attempts to the ranking."""
        self._attempts += attempts
        self._begun(attempts)
        self._ranking.extend(attempts)

    def _listed(self, requests: Iterable[MeasurementRequest]
                ) -> dict[CandidateGroup, list[Attempt]]:
        """Return an attempt for each candidate that was not requested before, by the group of
        candidates that share measurements."""
        new: dict[CandidateGroup, list[Attempt]] = {}
        for request in requests:
            self._requests.append(request)
            problem, is_first = request.problem, not request.layer.covers
            times = self._times.setdefault((request.layer.name, problem), LayerTimes(
                request.layer.name, keeps_precisions=self._space.keeps_precisions))
            for algorithm in request.algorithms:
                timed = timed_problem(problem, algorithm)
                first_configs = self._space.limits.configs_of(algorithm)
                configs: set[object] = set()
                for variant in self._space.buildable(algorithm, problem, self._device):
                    configs.add(variant.config)
                    group = self._groups.setdefault(
                        timed, CandidateGroup(timed, request.layer))
                    group.join(times)
                    key = candidate_key(algorithm, variant)
                    if key not in group.attempts:
                        attempt = Attempt(
                            group, algorithm, variant,
                            self._estimates.model_us(algorithm, timed, variant),
                            is_more=first_configs is not None and len(configs) > first_configs,
                            kernels=algorithm.kernel_sources(timed, variant, self._device))
                        group.add(attempt)
                        new.setdefault(group, []).append(attempt)
                    if is_first and (variant.precision == "fp32" or request.layer.inserted):
                        # the plan without measurements takes this candidate
                        group.attempts[key].is_required = True
                        is_first = False
        return new

    def _relate(self) -> None:
        """Set the fields of LayerTimes that depend on other layers: is_inner, parts,
        covered_by."""
        inner = self._space.inner(self._requests, self._device)
        layers = {request.layer.name: request.layer for request in self._requests}
        times_of = {name: times for (name, _), times in self._times.items()}
        covering: dict[str, list[Layer]] = {}
        for name, layer in layers.items():
            if layer.covers and all(part in times_of for part in layer.covers):
                times_of[name].parts = [times_of[part] for part in layer.covers]
                for part in layer.covers:
                    covering.setdefault(part, []).append(layer)
        for (name, _), times in self._times.items():
            times.is_inner = name in inner
            own = set(layers[name].computes)
            times.covered_by = [times_of[fusion.name]
                                for fusion in covering.get(layers[name].computes[0], ())
                                if own < set(fusion.covers)]
            times.bounds.clear()

    def _missing(self, group: CandidateGroup, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return the attempts of a group that have to be measured. The other attempts get the
        measurements that are stored for them."""
        known = self._results.stored(group.problem, self._device)
        of_process = self._results.of(group.problem, self._device)
        missing = []
        for attempt in attempts:
            if self._suffices(stored := known.get(attempt.key), group):
                attempt.measured = stored
            else:
                missing.append(attempt)
        best_us = min((attempt.time_us for attempt in group.attempts.values()
                       if attempt.time_us is not None), default=math.inf)
        for attempt in attempts:
            is_near = attempt.time_us is not None and attempt.time_us <= NEAR * best_us
            if missing and is_near and attempt.key not in of_process:
                # times near the best can be compared only if one process measured them
                attempt.measured = None
                missing.append(attempt)
            elif attempt.measured is not None:
                if not attempt.measured.not_tried and attempt.key not in of_process:
                    self.reused += 1
                self._results.keep(group.problem, self._device, [attempt.measured])
        group.update()
        if all(spec.size == 0 for spec in group.problem.outputs):
            for attempt in missing:
                attempt.measured = Measurement.of(
                    attempt.algorithm, attempt.variant, Timing(0.0, 0.0, 0.0, self._limits.samples),
                    error=0.0, weights=group.layer.digest)
            return []
        kind = None if self._limits.everything else similar_shape(group.problem)
        if kind is not None and missing:
            first = self._alike.setdefault(kind, group)
            group.alike = None if first is group else first
        return missing

    def _suffices(self, stored: Measurement | None, group: CandidateGroup) -> bool:
        """Return whether a stored measurement is enough, so that its candidate is not measured
        again."""
        if stored is None:
            return False
        if stored.not_tried:
            return stored.search == self._key
        if stored.failure:
            # a candidate that was wrong with other weights may be right with this layer's weights
            return not (stored.wrong_numbers and stored.weights != group.layer.digest)
        return stored.samples >= self._limits.samples

    def _required_instead(self) -> list[Attempt]:
        """Return an attempt for each layer without a measured candidate that works: the most
        precise attempt that is left. This attempt is measured even where measuring was ended, or
        where the attempt was left out as slow. Fusions need no such attempt, since their layers can
        be computed alone."""
        instead: dict[Attempt, None] = {}
        for times in self._times.values():
            if times.best or times.parts:
                continue
            own = [attempt for group in times.groups for attempt in group.attempts.values()]
            left = [attempt for attempt in own
                    if attempt.measured is None or attempt.measured.not_tried]
            if left and not any(attempt in instead for attempt in own):
                instead[min(left, key=lambda attempt: PRECISIONS.index(
                    attempt.variant.precision))] = None
        for attempt in instead:
            attempt.is_required = attempt.is_last = True
            attempt.measured, attempt.may_differ = None, False
        return list(instead)

    def _store(self) -> None:
        """Store the measurements, and which candidates were left out."""
        self._stored = time.monotonic()
        fresh: dict[Problem, list[Measurement]] = {}
        final: dict[Problem, list[Measurement]] = {}
        with self._profile.stage(STORING):
            for group in self._groups.values():
                known = self._results.of(group.problem, self._device)
                for key, attempt in group.attempts.items():
                    result = attempt.measured
                    if result is not None and result != known.get(key):
                        fresh.setdefault(group.problem, []).append(result)
                        if not attempt.may_differ:
                            final.setdefault(group.problem, []).append(result)
            # written first: what an interrupt of the writing leaves out is fresh for the next call
            self._results.cache_of(self._device).put(final)
            for problem, measured in fresh.items():
                self._results.keep(problem, self._device, measured)
