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
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from gossamer.device.base import Device
from gossamer.errors import DeviceLostError
from gossamer.io.text import duration_text
from gossamer.measure import Timing
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem
from gossamer.plan.candidate import Candidate, Measurement, candidate_key, counted
from gossamer.plan.policy import reason_build_too_long
from gossamer.plan.program import Layer, MeasuredLayer, responsive
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.build import CandidateBuilds
from gossamer.plan.tune.candidates import reason_of
from gossamer.plan.tune.cost import model_us
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.rows import (
    NOT_TRIED,
    Group,
    LayerTimes,
    Row,
    similar_shape,
    timed_problem,
)
from gossamer.plan.tune.sampling import Sampler
from gossamer.plan.tune.space import Space
from gossamer.plan.tune.workers import Compilers

ENDED = "measuring was ended before"
"""The reason for candidates that a spent budget or an interrupt leaves out."""
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
    """The candidates of a plan's layers on one device, and the search for the fastest of them.

    is_over: returns whether measuring is to end as soon as each layer has a time.
    note: called with a line of text before the candidates of a round are measured.
    progress: called after each candidate.
    """

    def __init__(self, device: Device, space: Space, cache: TuningCache,
                 is_over: Callable[[], bool], note: Callable[[str], None],
                 progress: Callable[[Progress], None]) -> None:
        self.measured = self.reused = self.not_tried = 0
        """Numbers of candidates that were measured, whose measurements came from the cache, and
        that were left out."""
        self.timings: list[Timing] = []
        """The samples of candidates near the best."""
        self.memory = CandidateMemory(device)
        self.compilers = Compilers(device)
        self._device, self._space, self._cache = device, space, cache
        self._limits = space.limits
        self._is_over, self._note, self._progress = is_over, note, progress
        self.forget()

    def forget(self) -> None:
        """Forget the candidates: those that another plan has left out may be of use now."""
        self._groups: dict[Problem, Group] = {}
        self._similar: dict[Problem, Group] = {}
        """The group of the first layer of each shape whose candidates depend on zeros."""
        self._times: dict[tuple[str, Problem], LayerTimes] = {}
        """The times by a layer's name and problem: conversions of one value to the same format have
        the same name, whatever format they convert from."""

    def run(self, lists: Iterable[Sequence[MeasuredLayer]], key: str,
            promising: Promising | None = None) -> None:
        """Measure the candidates of layers and fusions. The results are stored, also where an
        interrupt ends the search.

        lists: the first round of one list is measured before the next list is made.
        key: identifies the layers and the effort: what one search has left out, later searches with
        the same key leave out, too.
        promising: chooses the plan that the further rounds improve; by default each layer takes the
        candidate that is expected to be the fastest.
        """
        self._key = key
        self._own: dict[Row, None] = {}
        self._begun = self._done = 0
        self._start = self._stored = time.monotonic()
        self._builds = CandidateBuilds(self._device, self.memory, self.compilers)
        self._sampler = Sampler(self._builds, self._limits.samples, self.timings)
        # within current(), no call needs to ask the driver which context is current
        current = self._device.current() if self._device.runs_cuda_libraries else nullcontext()
        try:
            with responsive(), current, self._builds.started():
                for nodes in lists:
                    self._measure(self._first(self._listed(nodes)))
                self._improve(promising or self._cheapest)
                while instead := self._required():
                    self._measure(instead, required=True)
                self._leave_out_rest()
        finally:
            self.not_tried += sum(row.measured is not None and row.measured.not_tried
                                  for row in self._own)
            self._store()

    def _improve(self, promising: Promising) -> None:
        """Measure further rounds, until one has saved little."""
        before_us = math.inf
        for number, width in enumerate(self._limits.widths, 1):
            known_us, taken = promising()
            rows = self._next(taken, width, 2**number)
            if self._is_over() or not rows or known_us > (1 - _LEAST_GAIN) * before_us:
                break
            self._measure(rows)
            before_us = known_us

    def candidates(self, node: MeasuredLayer) -> list[Candidate]:
        """Return the candidates of a layer whose measuring has begun, in order of preference.
        Candidates that would take too long to build, or were left out, are excluded candidates; a
        candidate that may still be measured has the time that is expected of it, too."""
        problem, most_s = node.layer.problem, self._limits.build_seconds
        candidates = []
        for algorithm in node.algorithms:
            for variant in self._space.within_effort(algorithm, problem, self._device):
                if variant.build_seconds > most_s:
                    candidates.append(Candidate(algorithm, variant, Measurement.of(
                        algorithm, variant,
                        failure=reason_build_too_long(variant, most_s, self._space.why))))
                    continue
                group = self._groups[timed_problem(problem, algorithm)]
                candidates.append(group.rows[candidate_key(algorithm, variant)].candidate)
        return candidates

    def verified(self, chosen: Sequence[tuple[Layer, Candidate]]) -> list[Candidate]:
        """Return the candidates. A candidate that fails, or computes wrong numbers, with the
        constants of its layer is excluded."""
        verified = [candidate for _, candidate in chosen]
        builds = CandidateBuilds(self._device, self.memory, self.compilers)
        unknown = {Row(Group(layer.problem, layer, self._device), candidate.algorithm,
                       candidate.variant, math.inf): index
                   for index, (layer, candidate) in enumerate(chosen)
                   if not self._is_known(layer, candidate)}
        passed: list[tuple[Problem, Measurement, str]] = []
        try:
            with responsive(), builds.started():
                for row in unknown:
                    builds.begin(row)
                while builds.rows:
                    row, built = builds.next_built()
                    layer, candidate = chosen[unknown[row]]
                    try:
                        state, _, check = built.result()
                        builds.set_of(layer).checked(row.algorithm, row.variant, state, check)
                    except DeviceLostError:
                        raise
                    except Exception as error:  # a candidate may fail in any way
                        verified[unknown[row]] = candidate.with_exclusion(reason_of(error))
                    else:
                        passed.append((layer.problem, candidate.measured, layer.digest))
        finally:
            self._cache.put_checks(passed)
        return verified

    def _is_known(self, layer: Layer, candidate: Candidate) -> bool:
        """Return whether a candidate is known to be right with a layer's constants: the layer has
        no constants, the candidate was measured with them, or the cache records that the candidate
        passed a check with them."""
        measured = candidate.measured
        return (not layer.weights or measured.weights == layer.digest
                or self._cache.has_check(layer.problem, measured, layer.digest))

    def _measure(self, rows: Sequence[Row], *, required: bool = False) -> None:
        """Measure rows, but for those that turn out to be of no use meanwhile. required: whether
        the plan cannot do without them."""
        if not rows:
            return
        self._begun += len(rows)
        layers = {times.name for row in rows for times in row.group.layers}
        self._note(f"{counted(len(layers), 'layer')}: {counted(len(rows), 'candidate')}")
        self.compilers.start()
        waiting = iter(rows)
        while True:
            if self._is_over() and not required:
                for row in self._builds.give_up():
                    self._leave_out(row, ENDED, may_differ=True)
            while self._builds.has_room and (following := next(waiting, None)) is not None:
                if required or not self._is_useless(following):
                    self._builds.begin(following)
            if not self._builds.rows:
                return
            ready, built = self._builds.next_built()
            if required or not self._is_useless(ready):
                self._sampler.time(ready, built)
                self.measured += 1
                self._done += 1
            if time.monotonic() - self._stored > _STORE_SECONDS:
                self._store()
            self._report()

    def _is_useless(self, row: Row) -> bool:
        """Leave out a row, and return True, where measuring has ended or by its bound."""
        if self._is_over():
            self._leave_out(row, ENDED, may_differ=True)
            return True
        least_us, limit_us = row.group.least_us(row), row.group.limit_us(row)
        if self._limits.everything or least_us < limit_us:
            return False
        self._leave_out(row, f"at least {duration_text(least_us)} expected against "
                             f"{duration_text(limit_us)}")
        return True

    def _leave_out(self, row: Row, reason: str, *, may_differ: bool = False) -> None:
        row.measured = Measurement.of(row.algorithm, row.variant, not_tried=True,
                                      failure=f"{NOT_TRIED}: {reason}", search=self._key)
        row.may_differ = may_differ
        self._done += 1

    def _leave_out_rest(self) -> None:
        """Leave out the rows that no round has measured."""
        for row in [row for row in self._own if row.measured is None]:
            expected_us = row.group.expected_us(row)
            if self._is_over():
                self._leave_out(row, ENDED, may_differ=True)
            elif expected_us == math.inf:
                similar = row.group.similar
                self._leave_out(row, "no first config works" if similar is None else
                                f"no use for {similar.layer.name}, which has other weights")
            else:
                us, limit = map(duration_text, (expected_us, row.group.limit_us(row)))
                self._leave_out(row, f"the rounds ended before it; about {us} expected against "
                                     f"{limit}")

    def _cheapest(self) -> tuple[float, list[tuple[Layer, Candidate]]]:
        """Return the sum of the best times, and the row of each group that is expected to be the
        fastest."""
        best = [(group.layer, min((row.candidate for row in group.rows.values()),
                                  key=lambda candidate: candidate.likely_cost))
                for group in {row.group: None for row in self._own}]
        return sum(times.best_us for times in self._times.values()), [
            (layer, candidate) for layer, candidate in best
            if math.isfinite(candidate.likely_cost)]

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
                    if row.key == candidate.measured.candidate_key:
                        found[row] = None
                    if (row.formats, row.variant.precision) == kind:
                        by_algorithm.setdefault(row.algorithm, []).append(row)
                for algorithm, rows in by_algorithm.items():
                    first, near_us = self._limits.configs_of(algorithm), width * times.best_us
                    if first is not None and any(row.time_us is not None and row.time_us <= near_us
                                                 for row in group.tried(algorithm)):
                        found.update(dict.fromkeys(rows[:most * first]))
        return [row for row in found if row.measured is None]

    def _report(self) -> None:
        # fusions are not counted, because their layers are counted
        layers = [times for times in self._times.values() if not times.parts]
        known = [times.best_us for times in layers if times.best]
        most, done = self._begun, min(self._done, self._begun)
        spent = time.monotonic() - self._start
        self._progress(Progress(len(layers), len(known), sum(known), most, done,
                                spent * (most - done) / max(1, done)))

    def _listed(self, nodes: Iterable[MeasuredLayer]) -> dict[Row, None]:
        """Return the rows of layers that nothing was known of. Those with a stored measurement that
        suffices get it."""
        new: dict[Row, None] = {}
        for node in nodes:
            layer, problem = node.layer, node.layer.problem
            times = self._times.setdefault((layer.name, problem), LayerTimes(
                layer.name, keeps_precisions=self._space.keeps_precisions))
            for algorithm in node.algorithms:
                group = self._group(timed_problem(problem, algorithm), layer)
                group.join(times)
                for variant in self._space.buildable(algorithm, problem, self._device):
                    key = candidate_key(algorithm, variant)
                    if key not in group.rows:
                        group.rows[key] = Row(group, algorithm, variant, model_us(
                            algorithm, group.problem, variant, self._device))
                    if group.rows[key].measured is None:
                        new[group.rows[key]] = None
            if layer.covers:
                own = {times.name: times for times in self._times.values()}
                if all(name in own for name in layer.covers):
                    times.parts = [own[name] for name in layer.covers]
        for group in {row.group: None for row in new}:
            self._reuse(group)
        self._own.update(new)
        return new

    def _group(self, problem: Problem, layer: Layer) -> Group:
        """Return the group of a problem, which the first layer makes."""
        if problem not in self._groups:
            group = self._groups[problem] = Group(problem, layer, self._device)
            if (shape := similar_shape(problem)) is not None:
                first = self._similar.setdefault(shape, group)
                group.similar = None if first is group else first
        return self._groups[problem]

    def _reuse(self, group: Group) -> None:
        """Give rows their stored measurements. Candidates without outputs take no time."""
        stored = {each.candidate_key: each for each in self._cache.get(group.problem) or ()}
        for key, row in group.rows.items():
            if row.measured is not None:
                continue
            if all(spec.size == 0 for spec in group.problem.outputs):
                row.measured = Measurement.of(
                    row.algorithm, row.variant, Timing(0.0, 0.0, 0.0, self._limits.samples),
                    error=0.0, weights=group.layer.digest)
            elif key in stored and self._suffices(stored[key], group):
                row.measured = row.stored = stored[key]
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
        rounds in which the plan would take them."""
        count: dict[tuple[Group, Algorithm, str], set[object]] = defaultdict(set)
        first: list[Row] = []
        for row in sorted(new, key=lambda row: row.model_us):
            precision = row.variant.precision if self._space.keeps_precisions else ""
            configs = count[row.group, row.algorithm, precision]
            most = self._limits.configs_of(row.algorithm)
            if self._limits.everything or (
                    row.group.similar is None and not row.variant.build_seconds
                    and row.variant.config not in configs
                    and (most is None or len(configs) < most)):
                configs.add(row.variant.config)
                first.append(row)
        return [row for row in first if row.measured is None]

    def _required(self) -> list[Row]:
        """Return a row for each layer without a measured candidate that works: the most precise
        row that is left. This row is measured even where measuring was ended, or where the row was
        left out as slow. Fusions need no such row, since their layers can be computed alone."""
        required: dict[Row, None] = {}
        for times in self._times.values():
            left = [row for row in times.rows if row.measured is None or row.measured.not_tried]
            if left and not times.best and not times.parts and required.keys().isdisjoint(left):
                required[min(left, key=lambda row: PRECISIONS.index(row.variant.precision))] = None
        for row in required:
            row.measured, row.may_differ = None, False
        return list(required)

    def _store(self) -> None:
        """Store the measurements, and which candidates were left out."""
        self._stored = time.monotonic()
        fresh: dict[Problem, list[Measurement]] = defaultdict(list)
        made = {row: row.measured for row in self._own if row.measured is not None
                and not row.may_differ and row.measured is not row.stored}
        for row, measured in made.items():
            fresh[row.group.problem].append(measured)
        # written first: what an interrupt of the writing leaves out is written by the next call
        self._cache.put(fresh)
        for row, measured in made.items():
            row.stored = measured
