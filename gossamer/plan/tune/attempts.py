"""Which candidates are measured: those of which nothing sufficient is known, and of layers that are
alike the ones that are best for one of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gossamer.device.base import Device
from gossamer.measure import Timing
from gossamer.ops.algorithm import PRECISIONS, Problem
from gossamer.plan.measurement import CandidateKey, Measurement
from gossamer.plan.tune.alike import likeness
from gossamer.plan.tune.digests import Digests
from gossamer.plan.tune.estimates import Estimates
from gossamer.plan.tune.layer_times import NEAR, Attempt, CandidateGroup
from gossamer.plan.tune.results import Results
from gossamer.plan.tune.runner import attempts_of
from gossamer.plan.tune.work import ListedCandidates, Work

_FROM_ALIKE = 2
"""Configs that are measured of a layer that is like another one, the best of that one."""


class Attempts:
    """Makes attempts for the candidates that are to be measured, and stores what became of them.

    samples: number of samples that a measurement needs to suffice. precision: the least precise one
    that is allowed. everything: whether candidates that cannot be of use are measured too.
    keeps_precisions: whether a less precise candidate may not stand for a more precise one.
    """

    def __init__(self, results: Results, digests: Digests, samples: int, precision: str, *,
                 everything: bool, keeps_precisions: bool) -> None:
        self._results = results
        self._digests = digests
        self._samples = samples
        self._precision = precision
        self._keeps_precisions = keeps_precisions
        self._everything = everything
        self.reused = 0
        """Number of candidates whose measurements came from the cache."""
        self.not_tried = 0
        """Number of candidates that were not measured, as they could not be of use."""

    def missing(self, device: Device, work: Work, estimates: Estimates,
                candidates: ListedCandidates
                ) -> tuple[list[Attempt], dict[CandidateGroup, CandidateGroup]]:
        """Returns attempts for those of the candidates that were not measured before, and the
        groups of layers that are like another one, each with the group of that layer."""
        all_missing = []
        alike: dict[object, CandidateGroup] = {}
        followers: dict[CandidateGroup, CandidateGroup] = {}
        for problem, pairs in candidates.items():
            group, known = work.groups[problem], self._results.stored(problem, device)
            attempts = attempts_of(group, pairs.values(), estimates)
            missing = []
            for attempt in attempts:
                attempt.is_required = (problem, attempt.key) in work.required
                stored = known.get(attempt.key)
                attempt.before = stored
                if not self._is_missing(stored, group):
                    attempt.measured = stored
                else:
                    missing.append(attempt)
            best = min((attempt.time_us for attempt in attempts if attempt.time_us is not None),
                       default=math.inf)
            for attempt in attempts:
                # near times compare only within one session
                is_near = attempt.time_us is not None and attempt.time_us <= NEAR * best
                if missing and is_near and not self._results.are_of(attempt, device):
                    attempt.measured = None
                    missing.append(attempt)
                elif attempt.measured is not None:
                    if not self._results.are_of(attempt, device):
                        self.reused += not attempt.measured.not_tried
                        self.not_tried += attempt.measured.not_tried
                        self._results.keep(attempt, device)
                    for layer in group.layers:
                        layer.learn(attempt)
            if all(spec.size == 0 for spec in problem.outputs):
                self._keep_empty(device, missing)
                continue
            kind = None if self._everything else likeness(problem)
            if kind is not None and missing:
                leader = alike.setdefault(kind, group)
                if leader is not group:
                    followers[group] = leader
            all_missing += missing
        return all_missing, followers

    def store(self, device: Device, attempts: Sequence[Attempt]) -> None:
        """Stores the measurements that attempts have."""
        by_problem: dict[Problem, list[Measurement]] = {}
        for attempt in attempts:
            if attempt.measured is None or self._results.has(attempt, device):
                continue
            self.not_tried += attempt.measured.not_tried
            attempt.measured = _with_first_build(attempt.measured, attempt.before)
            if attempt.measured.not_tried:
                # more effort, and a plan without what was faster, try it again
                attempt.measured = replace(attempt.measured, samples=self._samples,
                                           among=self._among(attempt.measured, attempt.group))
            self._results.keep(attempt, device)
            if not attempt.is_transient:
                by_problem.setdefault(attempt.group.problem, []).append(attempt.measured)
        for problem, measured in by_problem.items():
            self._results.cache_of(device).put(problem, measured)

    def required_instead(self, work: Work, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Returns an attempt for each layer for which no candidate that was measured works, the
        most precise first, so that it is measured though measuring was ended or others were
        expected to be faster. Regions whose layers work alone need none."""
        instead: list[Attempt] = []
        for times in work.times.values():
            if times.best or times.is_region:
                continue
            own = [attempt for attempt in attempts if times in attempt.group.layers]
            left = [attempt for attempt in own
                    if attempt.measured is not None and attempt.measured.not_tried]
            if not left or any(attempt.time_us is not None or attempt in instead
                               for attempt in own):
                continue
            instead.append(min(
                left, key=lambda attempt: PRECISIONS.index(attempt.variant.precision)))
        for attempt in instead:
            attempt.is_required = attempt.is_last = True
            attempt.is_transient, attempt.measured = False, None
        self.not_tried -= len(instead)
        return instead

    def _keep_empty(self, device: Device, attempts: Iterable[Attempt]) -> None:
        """Gives candidates whose outputs are empty no time at all."""
        no_time = Timing(0.0, 0.0, 0.0, self._samples)
        for attempt in attempts:
            attempt.measured = Measurement.of(
                attempt.algorithm, attempt.variant, no_time, error=0.0,
                weights=self._digests.of(attempt.group.layer))
            self._results.keep(attempt, device)

    def _is_missing(self, stored: Measurement | None, group: CandidateGroup) -> bool:
        """Whether a candidate has to be measured, as its stored measurement does not suffice."""
        if stored is None:
            return True
        if stored.not_tried:
            among = self._among(stored, group)
            return (self._everything or stored.samples < self._samples
                    or PRECISIONS.index(stored.among) > PRECISIONS.index(among))
        if stored.failure:
            # a candidate that was wrong with other weights may be right with these
            return stored.wrong_numbers and stored.weights != self._digests.of(group.layer)
        return stored.samples < self._samples

    def _among(self, measured: Measurement, group: CandidateGroup) -> str:
        """Returns the least precise precision of the candidates that may stand for one. Regions are
        compared with their layers in all precisions."""
        if self._keeps_precisions and not any(times.is_region for times in group.layers):
            return measured.precision
        return self._precision


def ranked_elsewhere(attempts: Sequence[Attempt],
                     followers: dict[CandidateGroup, CandidateGroup]) -> list[Attempt]:
    """Returns the attempts of layers that are like another one: the configs that are best for that
    one. The others get results that say so."""
    ranked: dict[CandidateGroup, list[CandidateKey]] = {}
    spoilt = {attempt.group for attempt in attempts if attempt.is_transient}
    for group in set(followers.values()):
        timed = [attempt for attempt in attempts
                 if attempt.group is group and attempt.time_us is not None]
        timed.sort(key=lambda attempt: attempt.time_us or math.inf)
        ranked[group] = [attempt.key for attempt in timed[:_FROM_ALIKE]]
    taken = []
    for attempt in attempts:
        leader = followers.get(attempt.group)
        if leader is None:
            continue
        if attempt.is_required or not ranked[leader] or attempt.key in ranked[leader]:
            attempt.leader = None
            taken.append(attempt)
        else:
            attempt.measured = Measurement.of(
                attempt.algorithm, attempt.variant, not_tried=True,
                failure=f"not tried: not among the best for {leader.layer.name}, which is alike")
            attempt.is_transient |= leader in spoilt
    return taken


def _with_first_build(fresh: Measurement, before: Measurement | None) -> Measurement:
    """Returns a measurement with the build time of an earlier one, where that was made before the
    kernels were in the cache."""
    if before is None or before.build_s is None or before.build_cached or not fresh.build_cached:
        return fresh
    return replace(fresh, build_s=before.build_s, build_cached=False)
