"""The search for the fastest candidates of layers on one device, in rounds.

The rounds are those of successive halving (K. Jamieson and A. Talwalkar, "Non-stochastic best arm
identification and hyperparameter optimization", AISTATS 2016). The first round measures, for each
problem and algorithm, the configs that are expected to be the fastest. Each further round measures
twice as many configs of fewer algorithms, those that are nearest to the best, and the candidates
that a plan would take if they took the time that is expected of them. A candidate is left out by
its bound, because no round has reached it, or because measuring has ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from gossamer.device.base import Device
from gossamer.io.text import duration_text
from gossamer.measure import Timing
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem
from gossamer.plan.candidate import Candidate, Measurement, candidate_key
from gossamer.plan.program import Layer, responsive
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.build import CandidateBuilds
from gossamer.plan.tune.cost import LEAST_SHARE, model_us
from gossamer.plan.tune.measures import MeasurementRequest, similar_shape, timed_problem
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import LISTING, STORING, TuningProfile
from gossamer.plan.tune.rows import NEAR, NOT_TRIED, Group, LayerTimes, Row
from gossamer.plan.tune.sampling import Sampler
from gossamer.plan.tune.space import Space
from gossamer.plan.tune.workers import Compilers

ENDED = "measuring was ended before"
"""The reason for candidates that a spent budget or an interrupt leaves out."""
_LEAST_SHARE_OF_CONFIGS, _LEAST_SHARE_OF_PROBLEMS = 0.5, 0.75
"""A row is expected to take at least these shares of the time that follows from the model and from
the times of its algorithm: for the same problem with other configs, and for other problems. The
last config of a library may take half the time of its first one."""
_FEW = 3
"""From this number of problems on, the times of an algorithm say something about other problems."""
_STORE_SECONDS = 5.0
"""Seconds after which a search stores its measurements so far: a process that is killed loses only
the measurements of these seconds."""

_LEAST_GAIN = 0.01
"""Share of the plan's time that a round must have saved for another round to follow."""

Promising = Callable[[], tuple[float, Sequence[tuple[Layer, Candidate]]]]
"""A function that returns the time of the best plan of measured candidates, and the candidates that
a plan would take by the times that are known and expected, each with its layer."""


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
    groups: the rows that this process knows, by their problem; the search adds to them.
    required_first: whether to begin with the candidates that a plan without measurements takes.
    is_over: returns whether measuring is to end as soon as each layer has a time.
    begun: called with the rows of a round before they are measured.
    progress: called after each candidate.
    timings: a list to which the samples of candidates near the best are added.
    """

    def __init__(self, device: Device, space: Space, key: str, cache: TuningCache,
                 groups: dict[Problem, Group], memory: CandidateMemory,
                 compilers: Compilers | None, profile: TuningProfile, timings: list[Timing], *,
                 required_first: bool, is_over: Callable[[], bool] = lambda: False,
                 begun: Callable[[Sequence[Row]], None] = lambda rows: None,
                 progress: Callable[[Progress], None] = lambda progress: None) -> None:
        self.measured = 0
        """Number of candidates that were measured."""
        self.reused = 0
        """Number of candidates whose measurements came from the cache."""
        self._device, self._space, self._key, self._cache = device, space, key, cache
        self._limits, self._groups, self._profile = space.limits, groups, profile
        self._required_first, self._is_over = required_first, is_over
        self._begun, self._progress = begun, progress
        self._builds = CandidateBuilds(device, memory, profile, compilers)
        self._sampler = Sampler(device, memory, self._builds, space.limits.samples, profile,
                                timings)
        self._times: dict[tuple[str, Problem], LayerTimes] = {}
        """The times by a layer's name and problem: conversions of one value to the same format have
        the same name, whatever format they convert from."""
        self._own: dict[Row, None] = {}
        """The rows that were requested of this search."""
        self._ratios: dict[tuple[Algorithm, str], dict[Group, float]] = {}
        """For each algorithm and precision the least ratio of a time to the model's time, by
        group."""
        self._written: dict[Row, Measurement] = {}
        """The measurements that this search has stored."""
        self._joined: set[Group] = set()
        self._similar: dict[Problem, Group] = {}
        """The group of the first layer of each shape whose candidates depend on zeros."""
        self._begun_count = self._done = 0
        self._start = self._stored = time.monotonic()

    @property
    def not_tried(self) -> int:
        """Number of candidates that were left out."""
        return sum(row.measured is not None and row.measured.not_tried for row in self._own)

    def run(self, lists: Iterable[Sequence[MeasurementRequest]],
            promising: Promising | None = None) -> None:
        """Measure the requested candidates. The results are stored, also where an interrupt ends
        the search.

        lists: lists of requests; the first round of one list is measured before the next list is
        made.
        promising: chooses the plan that the further rounds improve; by default each layer takes the
        candidate that is expected to be the fastest.
        """
        # within current(), no call needs to ask the driver which context is current
        current = (self._device.current() if self._device.runs_cuda_libraries else nullcontext())
        try:
            with responsive(), current, self._builds.started():
                for requests in lists:
                    with self._profile.stage(LISTING):
                        rows = self._first(self._listed(requests))
                    self._measure(rows)
                before_us = math.inf
                for number, width in enumerate(self._limits.widths, 1):
                    known_us, taken = (promising or self._cheapest)()
                    rows = self._next(taken, width, 2**number)
                    if self._is_over() or not rows or (
                            known_us > (1 - _LEAST_GAIN) * before_us):
                        break
                    self._measure(rows)
                    before_us = known_us
                self._sampler.sample_left()
                while instead := self._required_instead():
                    self._measure(instead)
                    self._sampler.sample_left()
                self._leave_out_rest()
        finally:
            self._store()

    def _measure(self, rows: Sequence[Row]) -> None:
        """Measure rows, but for those that turn out to be of no use meanwhile."""
        rows = [*rows, *self._to_compare(rows)]
        self._begun_count += len(rows)
        self._begun(rows)
        waiting = iter(rows)
        while True:
            if self._is_over():
                # builds that the plan can do without are given up
                for row in self._builds.give_up_optional():
                    self._leave_out(row, ENDED, is_final=False)
            while self._builds.has_room and (following := next(waiting, None)) is not None:
                if not self._is_useless(following):
                    self._builds.begin(following)
            if not self._builds.rows:
                return
            ready, built = self._builds.next_built()
            if not self._is_useless(ready):
                self._sampler.try_(ready, built)
                self._learn(ready)
                self.measured += 1
                self._done += 1
            if time.monotonic() - self._stored > _STORE_SECONDS:
                self._store()
            self._report()

    def _is_useless(self, row: Row) -> bool:
        """Leave out a row, and return True, where measuring has ended or by its bound."""
        if row.is_required and (self._required_first or self._is_over()):
            return False
        if self._is_over():
            self._leave_out(row, ENDED, is_final=False)
            return True
        least_us, limit_us = self._least_us(row), row.group.limit_us(row)
        if self._limits.everything or least_us < limit_us:
            return False
        self._leave_out(row, f"at least {duration_text(least_us)} expected against "
                             f"{duration_text(limit_us)}")
        return True

    def _least_us(self, row: Row) -> float:
        """Return the least time that a row can be expected to take, by the times of its algorithm
        for the same problem, else for other problems, else by the model alone."""
        ratio = row.group.ratio(row.algorithm)
        if ratio is not None:
            return _LEAST_SHARE_OF_CONFIGS * ratio * row.model_us if ratio < math.inf else 0.0
        others = self._ratios.get((row.algorithm, row.variant.precision), {})
        if len(others) >= _FEW:
            return _LEAST_SHARE_OF_PROBLEMS * min(others.values()) * row.model_us
        return LEAST_SHARE * row.model_us

    def _learn(self, row: Row) -> None:
        if row.time_us is not None:
            known = self._ratios.setdefault((row.algorithm, row.variant.precision), {})
            ratio = max(row.time_us, 1e-3) / row.model_us
            known[row.group] = min(ratio, known.get(row.group, math.inf))

    def _leave_out(self, row: Row, reason: str, *, is_final: bool = True) -> None:
        row.measured = Measurement.of(row.algorithm, row.variant, not_tried=True,
                                      failure=f"{NOT_TRIED}: {reason}", search=self._key)
        row.may_differ = not is_final
        self._done += 1

    def _leave_out_rest(self) -> None:
        """Leave out the rows that no round has measured."""
        for row in [row for row in self._own if row.is_open]:
            expected_us = row.group.expected_us(row)
            if self._is_over():
                self._leave_out(row, ENDED, is_final=False)
            elif expected_us == math.inf:
                self._leave_out(row, "no first config works")
            else:
                us, limit = map(duration_text, (expected_us, row.group.limit_us(row)))
                self._leave_out(row, f"the rounds ended before it; about {us} expected against "
                                     f"{limit}")

    def _cheapest(self) -> tuple[float, list[tuple[Layer, Candidate]]]:
        """Return the sum of the best times, and the row of each group that is expected to be the
        fastest."""
        best: dict[Group, tuple[float, Row]] = {}
        for row in self._own:
            us = row.group.expected_us(row) if row.is_open else row.time_us
            if us is not None and us < best.get(row.group, (math.inf, row))[0]:
                best[row.group] = us, row
        return sum(times.best_us for times in self._times.values()), [
            (group.layer, Candidate(row.algorithm, row.variant, row.measured or row.unmeasured))
            for group, (_, row) in best.items()]

    def _next(self, taken: Iterable[tuple[Layer, Candidate]], width: float, factor: int
              ) -> list[Row]:
        """Return the rows of a further round: those that are taken and have no time; and of each
        algorithm within `width` times the best of a layer `factor` times as many configs as in the
        first round, in the formats that the layer takes."""
        found: dict[Row, None] = {}
        for layer, candidate in taken:
            times = self._times.get((layer.name, layer.problem))
            if times is None:
                continue  # a part, or a layer of another device
            kind = candidate.formats[0] + candidate.formats[1], candidate.variant.precision
            for group in times.groups:
                # a layer that differs from an earlier one only in its weights takes the config that
                # is best for that one
                most = factor if group.similar is None else 0
                by_algorithm: dict[Algorithm, list[Row]] = {}
                for row in sorted(group.rows.values(), key=lambda row: row.model_us):
                    if row.key == candidate.measured.candidate_key and row.is_open:
                        found[row] = None
                    if (row.formats, row.variant.precision) == kind:
                        by_algorithm.setdefault(row.algorithm, []).append(row)
                for algorithm, rows in by_algorithm.items():
                    first, near_us = self._limits.configs_of(algorithm), width * times.best_us
                    if first is not None and any(row.time_us is not None and row.time_us <= near_us
                                                 for row in group.tried(algorithm)):
                        found.update((row, None) for row in rows[:most * first] if row.is_open)
        return list(found)

    def _report(self) -> None:
        # fusions are not counted, because their layers are counted
        layers = [times for times in self._times.values() if not times.parts]
        known = [times.best_us for times in layers if times.best]
        most, done = self._begun_count, min(self._done, self._begun_count)
        spent = time.monotonic() - self._start
        self._progress(Progress(len(layers), len(known), sum(known), most, done,
                                spent * (most - done) / max(1, done)))

    def _listed(self, requests: Iterable[MeasurementRequest]) -> dict[Row, None]:
        """Return the rows that were not requested before. Rows with a stored measurement that
        suffices get it."""
        new: dict[Row, None] = {}
        for request in requests:
            problem, layer = request.problem, request.layer
            times = self._times.setdefault((layer.name, problem), LayerTimes(
                layer.name, keeps_precisions=self._space.keeps_precisions))
            is_first = not layer.covers
            for algorithm in request.algorithms:
                timed = timed_problem(problem, algorithm)
                group = self._groups.setdefault(timed, Group(timed, layer, self._device))
                if group not in self._joined:
                    # the layers of earlier searches have nothing to do with this one
                    self._joined.add(group)
                    group.layers.clear()
                    if (shape := similar_shape(timed)) is not None:
                        first_such = self._similar.setdefault(shape, group)
                        group.similar = None if first_such is group else first_such
                group.join(times)
                for variant in self._space.buildable(algorithm, problem, self._device):
                    key = candidate_key(algorithm, variant)
                    if key not in group.rows:
                        group.rows[key] = Row(group, algorithm, variant, model_us(
                            algorithm, timed, variant, self._device))
                    row = group.rows[key]
                    if is_first and (variant.precision == "fp32" or layer.inserted):
                        # the plan without measurements takes this candidate
                        row.is_required, is_first = True, False
                    if row not in self._own:
                        self._own[row] = new[row] = None
            if layer.covers:
                own = {times.name: times for times in self._times.values()}
                if all(name in own for name in layer.covers):
                    times.parts = [own[name] for name in layer.covers]
        for group in {row.group: None for row in new}:
            self._reuse(group)
        return new

    def _reuse(self, group: Group) -> None:
        """Give rows their stored measurements. Candidates without outputs take no time."""
        stored = {each.candidate_key: each for each in self._cache.get(group.problem) or ()}
        for key, row in group.rows.items():
            if not row.is_open:
                continue
            row.from_disk = False
            if all(spec.size == 0 for spec in group.problem.outputs):
                row.measured = Measurement.of(
                    row.algorithm, row.variant, Timing(0.0, 0.0, 0.0, self._limits.samples),
                    error=0.0, weights=group.layer.digest)
            elif key in stored and self._suffices(stored[key], group):
                row.measured, row.from_disk = stored[key], True
                self.reused += not stored[key].not_tried
        group.update()

    def _suffices(self, stored: Measurement, group: Group) -> bool:
        """Return whether a stored measurement is enough, so that its candidate is not measured
        again."""
        if stored.not_tried:
            return stored.search == self._key
        if stored.failure:
            # a candidate that was wrong with other weights may be right with this layer's weights
            return not (stored.wrong_numbers and stored.weights != group.layer.digest)
        return stored.samples >= self._limits.samples

    def _first(self, new: Iterable[Row]) -> list[Row]:
        """Return the rows of the first round: of each algorithm the configs with the least times
        by its model, each in the formats with the least time. Layers that differ only in their
        weights leave the round to the first such layer. Rows whose builds take long are left to
        rounds in which the plan would take them. The required rows come first where they must."""
        count: dict[tuple[Group, Algorithm, str], set[object]] = {}
        first: list[Row] = []
        for row in sorted(new, key=lambda row: row.model_us):
            precision = row.variant.precision if self._space.keeps_precisions else ""
            configs = count.setdefault((row.group, row.algorithm, precision), set())
            most = self._limits.configs_of(row.algorithm)
            is_first = self._limits.everything or (
                row.group.similar is None and not row.variant.build_seconds
                and row.variant.config not in configs
                and (most is None or len(configs) < most))
            if is_first:
                configs.add(row.variant.config)
            if row.is_open and (is_first or (row.is_required and self._required_first)):
                first.append(row)
        if self._required_first:
            first.sort(key=lambda row: not row.is_required)
        return first

    def _to_compare(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows near the best, beside which new rows are measured, that another process
        has measured: only times that one process measured can be compared."""
        again = []
        for group in {row.group: None for row in rows}:
            best_us = min((row.time_us for row in group.rows.values()
                           if row.time_us is not None), default=0.0)
            again += [row for row in group.rows.values() if row.from_disk
                      and row.time_us is not None and row.time_us <= NEAR * best_us]
        for row in again:
            row.measured, row.from_disk = None, False
            self.reused -= 1
        for group in {row.group: None for row in again}:
            group.update()
        return again

    def _required_instead(self) -> list[Row]:
        """Return a row for each layer without a measured candidate that works: the most precise
        row that is left. This row is measured even where measuring was ended, or where the row was
        left out as slow. Fusions need no such row, since their layers can be computed alone."""
        instead: dict[Row, None] = {}
        for times in self._times.values():
            left = [row for row in times.rows
                    if row.measured is None or row.measured.not_tried]
            if left and not times.best and not times.parts and not any(
                    row in instead for row in times.rows):
                instead[min(left, key=lambda row: PRECISIONS.index(
                    row.variant.precision))] = None
        for row in instead:
            row.is_required = True
            row.measured, row.may_differ = None, False
        return list(instead)

    def _store(self) -> None:
        """Store the measurements, and which candidates were left out."""
        self._stored = time.monotonic()
        fresh = {row: row.measured for row in self._own
                 if row.measured is not None and not row.may_differ and not row.from_disk
                 and row.measured is not self._written.get(row)}
        final: dict[Problem, list[Measurement]] = {}
        for row, measured in fresh.items():
            final.setdefault(row.group.problem, []).append(measured)
        with self._profile.stage(STORING):
            # written first: what an interrupt of the writing leaves out is written by the next call
            self._cache.put(final)
        self._written.update(fresh)
