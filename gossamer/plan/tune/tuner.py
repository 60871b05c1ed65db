"""The tuner: measures candidates of layers in rounds, or reads measurements.

The rounds are those of successive halving (K. Jamieson and A. Talwalkar, "Non-stochastic best arm
identification and hyperparameter optimization", AISTATS 2016). The first round measures, for each
problem and algorithm, the configs that are expected to be the fastest. Each further round measures
twice as many configs of fewer algorithms, namely those whose times are nearest to the best. It also
measures the candidates that a plan would take according to their estimates. A candidate is left out
for one of three reasons: its lower bound is too high, no round has reached it, or the search has
ended. Configs beyond the limit of the effort are no candidates (see Space).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from gossamer.device.base import Device
from gossamer.errors import DeviceLostError
from gossamer.io.text import duration_text
from gossamer.measure import Timing, scatter_notice
from gossamer.ops.algorithm import PRECISIONS, Algorithm
from gossamer.ops.host_threads import ALL, Threads
from gossamer.plan.candidate import Candidate, Measurement, counted
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Layer
from gossamer.plan.store.keys import problem_key
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.build import CandidateBuilds
from gossamer.plan.tune.candidate_checks import reason_of
from gossamer.plan.tune.rows import NOT_TRIED, Group, LayerCandidates, Row, Rows
from gossamer.plan.tune.space import Space
from gossamer.plan.tune.timing import measure_row

ENDED = "the search ended early"
"""The reason why a candidate is left out when the budget is spent or the search was stopped."""
_STORE_SECONDS = 5.0
"""Interval in seconds at which a search stores its measurements. A process that is killed loses at
most the measurements of the last interval."""
_LEAST_GAIN = 0.01
"""Another round follows only if the last round has lowered the sum of the best times by this
share."""
_FEW_TIMINGS = 10
"""Number of candidates that must be timed before a notice reports the scatter of the times."""
_RESERVED, _RESERVED_S = 0.2, 5.0
"""Share of a budget that is reserved for choosing the plan after the measurements, and the maximum
of this share in seconds."""

Promising = Callable[[], Sequence[tuple[LayerCandidates, Candidate]]]
"""A function that returns the candidates that a plan would take according to measured and estimated
times, each with its layer."""


@dataclass(frozen=True)
class Progress:
    """Progress of a search.

    layers: number of layers that are measured.
    known_layers: how many of these layers have a time.
    best_us: sum of the best times of these layers in microseconds.
    candidates: number of candidates that are to be measured.
    done: how many of these candidates are measured or left out.
    seconds_left: estimated seconds for the remaining candidates.
    """

    layers: int
    known_layers: int
    best_us: float
    candidates: int
    done: int
    seconds_left: float


class Tuner:
    """Measures candidates on a device and on its fallback host.

    effort: "quick", "normal" or "max".
    precision: the least precise of PRECISIONS that is allowed.
    cache: the stored measurements; by default the measurements of the device in the user's folder.
    note: called with a line of text before each batch of layers is measured.
    progress: called with a Progress after each candidate.
    budget_s: time limit for the plan in seconds, counted from start(); None for no limit. Shortly
    before the limit, a candidate is started only if no plan is possible without it.
    keeps_precisions: whether to measure candidates even if less precise ones are faster, because
    the plan may need them to keep its error within the policy's tolerance.
    all_vendor_configs: whether all configs of vendors' libraries are measured and no candidate is
    left out, at any effort, so that each algorithm has its best time.
    threads: BLAS threads of a layer on the host.
    """

    def __init__(self, device: Device, effort: str = "normal", *, precision: str = "fp32",
                 cache: TuningCache | None = None,
                 note: Callable[[str], None] = lambda line: None,
                 progress: Callable[[Progress], None] = lambda progress: None,
                 budget_s: float | None = None, keeps_precisions: bool = False,
                 all_vendor_configs: bool = False, threads: Threads = ALL) -> None:
        self.device = device
        self.effort = effort
        self.limits = EFFORTS[effort]
        if all_vendor_configs:
            self.limits = replace(self.limits, vendor_configs=None, everything=True)
        self.precision = precision
        self.cache = TuningCache(device) if cache is None else cache
        self.space = Space(self.limits, PRECISIONS[:PRECISIONS.index(precision) + 1],
                           keeps_precisions=keeps_precisions, threads=threads)
        """The candidates of layers."""
        self._budget_s = budget_s
        self._deadline = math.inf
        self._is_stopped = False
        self._note, self._progress = note, progress
        self._rows = Rows(self.space, self.cache)
        self._builds: dict[str, CandidateBuilds] = {}
        self._timings: list[Timing] = []
        """The samples of candidates near the best."""
        self.measured = self.reused = self.not_tried = 0
        """Numbers of candidates that were measured, read from the cache, and left out."""

    def start(self) -> None:
        """Start the search for a plan, and its time budget.

        Candidates that were left out for the previous plan are considered again: fusions of that
        plan may have made them unnecessary, and the new plan may need them.
        """
        self._rows = Rows(self.space, self.cache)
        if self._budget_s is not None:
            self._deadline = time.monotonic() + self._budget_s - min(
                _RESERVED * self._budget_s, _RESERVED_S)

    def stop(self) -> None:
        """End the search as soon as a plan is possible.

        Another thread or a signal handler may call this method.
        """
        self._is_stopped = True

    @property
    def is_over(self) -> bool:
        """Whether the search was stopped or its budget is spent.

        The budget is spent when only its reserved share is left.
        """
        return self._is_stopped or time.monotonic() > self._deadline

    @property
    def notices(self) -> list[str]:
        """Messages for the user about cache files and measurement conditions."""
        notices = self.cache.notices
        if len(self._timings) >= _FEW_TIMINGS and (
                scattered := scatter_notice(self._timings, self.device)):
            notices.append(scattered)
        return notices

    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                device: Device) -> list[Candidate]:
        """Measure the algorithms' candidates within the effort, and return them.

        The result is that of candidates().
        """
        node = LayerCandidates(layer, algorithms, device)
        self.measure_all([node])
        return node.candidates

    def measure_all(self, nodes: Iterable[LayerCandidates],
                    promising: Promising | None = None) -> None:
        """Measure and set the candidates of layers and fusions.

        The results are stored even if an interrupt ends the search.

        nodes: layers come before the fusions that cover them.
        promising: returns the candidates of the plan that further rounds improve; by default each
        layer takes the candidate with the shortest estimated time.
        """
        self._nodes = nodes = list(nodes)
        self._key = self._key_of(nodes)
        self._begun = self._done = 0
        self._start = self._stored = time.monotonic()
        with self._started(node.device for node in nodes):
            self._own = self._rows.add(nodes, self._key)
            self.reused += sum(row.stored is not None and not row.stored.not_tried
                               for row in self._own)
            try:
                self._measure(self._first())
                self._improve(promising or self._cheapest)
                while instead := self._required():
                    self._measure(instead, required=True)
                self._leave_out_rest()
            finally:
                self.not_tried += sum(row.measured is not None and row.measured.not_tried
                                      for row in self._own)
                try:
                    self._store()
                except KeyboardInterrupt:
                    self._store()  # the interrupt ended the writing
                    raise
        for node in nodes:
            node.candidates = self.candidates(node)

    def candidates(self, node: LayerCandidates) -> list[Candidate]:
        """Return the candidates of a layer whose search has begun, in order of preference.

        Candidates that were left out are marked as excluded. A candidate that may still be measured
        has an estimated time.
        """
        return [row.candidate for row in node.rows]

    def verified(self, chosen: Sequence[tuple[Layer, Candidate, Device]]) -> list[Candidate]:
        """Check the chosen candidates with their layers' own constants.

        Returns the candidates in the same order; those that fail or compute wrong numbers are
        excluded.
        """
        verified = [candidate for _, candidate, _ in chosen]
        unknown = {index: each for index, each in enumerate(chosen) if not self._is_known(*each)}
        with self._started(device for _, _, device in unknown.values()):
            building = {index: self._builds_on(device).begin(
                layer, candidate.algorithm, candidate.variant)
                for index, (layer, candidate, device) in unknown.items()}
            for index, (layer, candidate, device) in unknown.items():
                try:
                    state, check = building.pop(index).result()
                    self._builds_on(device).checks_of(layer).checked(
                        candidate.algorithm, candidate.variant, state, check)
                except DeviceLostError:
                    raise
                except Exception as error:  # a candidate may fail in any way
                    verified[index] = candidate.with_exclusion(reason_of(error))
                else:
                    self.cache.of(device).put_check(layer.problem, candidate.measured,
                                                    layer.digest)
        return verified

    def release(self) -> None:
        """Free the candidates' inputs and outputs, and end the compiler processes.
        """
        for builds in self._builds.values():
            builds.compilers.close()
            builds.memory.release()

    def _key_of(self, nodes: Iterable[LayerCandidates]) -> str:
        """Return hexadecimal digits that identify layers and the effort.

        Candidates that one search has left out are left out by later searches with the same key.
        """
        scope = [[problem_key(node.layer.problem), *(each.name for each in node.algorithms)]
                 for node in nodes]
        parts = (scope, self.effort, self.precision, self.space.keeps_precisions,
                 self.limits.everything)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _builds_on(self, device: Device) -> CandidateBuilds:
        """Return the builds on a device."""
        if device.name not in self._builds:
            self._builds[device.name] = CandidateBuilds(device)
        return self._builds[device.name]

    @contextmanager
    def _started(self, devices: Iterable[Device]) -> Iterator[None]:
        """Build candidates in other threads within a `with` block.

        devices: the devices of the candidates.
        """
        with ExitStack() as stack:
            for device in {device.name: device for device in devices}.values():
                stack.enter_context(self._builds_on(device).started())
            yield

    def _by_device(self, rows: Iterable[Row]) -> list[tuple[CandidateBuilds, list[Row]]]:
        """Return the rows of each device, with its builds."""
        by_device: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_device[row.group.device.name].append(row)
        return [(self._builds_on(own[0].group.device), own) for own in by_device.values()]

    def _is_known(self, layer: Layer, candidate: Candidate, device: Device) -> bool:
        """Return whether a candidate passed the check with a layer's constants.

        True if the layer has no constants, if the candidate was measured with these constants, or
        if the cache records that it passed a check with them.
        """
        measured = candidate.measured
        return (not layer.weights or measured.weights == layer.digest
                or self.cache.of(device).has_check(layer.problem, measured, layer.digest))

    def _first(self) -> list[Row]:
        """Return the rows of the first round.

        For each algorithm, these are the configs with the shortest modelled times, each in its
        fastest formats. If an algorithm skips zeros, layers that differ only in their zeros have
        separate rows; only those of the first such layer are included. Rows with long builds are
        left to later rounds, which measure them only if the plan would take them.
        """
        count: dict[tuple[Group, Algorithm, str], set[object]] = defaultdict(set)
        first: list[Row] = []
        for row in sorted(self._own, key=lambda row: row.model_us):
            precision = row.variant.precision if self.space.keeps_precisions else ""
            configs = count[row.group, row.algorithm, precision]
            most = self.limits.configs_of(row.algorithm)
            if self.limits.everything or (
                    row.group.similar is None and not row.variant.builds_long
                    and row.variant.config not in configs
                    and (most is None or len(configs) < most)):
                configs.add(row.variant.config)
                first.append(row)
        return [row for row in first if row.measured is None]

    def _improve(self, promising: Promising) -> None:
        """Measure further rounds until a round has lowered the times little."""
        for number, width in enumerate(self.limits.widths, 1):
            before = {node: node.best_us for node in self._nodes if node.best}
            self._measure(self._next(promising(), width, 2**number))
            saved_us = sum(us - node.best_us for node, us in before.items())
            if self.is_over or saved_us < _LEAST_GAIN * sum(before.values()):
                break

    def _cheapest(self) -> list[tuple[LayerCandidates, Candidate]]:
        """Return each layer's candidate with the shortest estimated time."""
        best = [(node, min((row.candidate for row in node.rows),
                           key=lambda candidate: candidate.estimated_cost))
                for node in self._nodes if node.rows]
        return [(node, candidate) for node, candidate in best
                if math.isfinite(candidate.estimated_cost)]

    def _next(self, taken: Iterable[tuple[LayerCandidates, Candidate]], width: float, factor: int
              ) -> list[Row]:
        """Return the rows of a further round.

        The round measures the rows that the plan takes and that have no time yet. It also measures
        further configs of each algorithm whose time is at most `width` times the layer's best time.
        Such an algorithm may then have `factor` times as many configs as in the first round. These
        configs are measured only in the formats that the layer has in the plan.
        """
        found: dict[Row, None] = {}
        for node, candidate in taken:
            kind = candidate.formats[0] + candidate.formats[1], candidate.variant.precision
            by_algorithm: dict[tuple[Group, Algorithm], list[Row]] = defaultdict(list)
            for row in sorted(node.rows, key=lambda row: row.model_us):
                if row.key == candidate.measured.candidate_key:
                    found[row] = None
                if (row.formats, row.variant.precision) == kind:
                    by_algorithm[row.group, row.algorithm].append(row)
            for (group, algorithm), rows in by_algorithm.items():
                # if a layer differs from an earlier one only in its weights, only the config that
                # is best for the earlier layer is measured
                most = factor if group.similar is None else 0
                first, near_us = self.limits.configs_of(algorithm), width * node.best_us
                if first is not None and any(row.time_us is not None and row.time_us <= near_us
                                             for row in group.tried(algorithm)):
                    found.update(dict.fromkeys(rows[:most * first]))
        return [row for row in found if row.measured is None]

    def _report(self) -> None:
        # fusions are not counted, because their layers are counted
        layers = [node for node in self._nodes if not node.parts]
        known = [node.best_us for node in layers if node.best]
        most, done = self._begun, min(self._done, self._begun)
        spent = time.monotonic() - self._start
        self._progress(Progress(len(layers), len(known), sum(known), most, done,
                                spent * (most - done) / max(1, done)))

    def _required(self) -> list[Row]:
        """Return a row for each layer without a working candidate.

        For each such layer, this is the most precise remaining row. The row is measured even if the
        search has ended, or if the row was left out as too slow. Fusions need no such row, because
        their layers can be computed unfused.
        """
        required: dict[Row, None] = {}
        for node in self._nodes:
            left = [row for row in node.rows if row.measured is None or row.measured.not_tried]
            if left and not node.best and not node.parts and required.keys().isdisjoint(left):
                required[min(left, key=lambda row: PRECISIONS.index(row.variant.precision))] = None
        for row in required:
            row.measured, row.may_differ = None, False
        return list(required)

    def _measure(self, rows: Sequence[Row], *, required: bool = False) -> None:
        """Measure rows, except those that turn out too slow.

        required: whether no plan is possible without these rows.
        """
        if not rows:
            return
        self._begun += len(rows)
        layers = {node.layer.name for row in rows for node in row.group.layers}
        self._note(f"{counted(len(layers), 'layer')}: {counted(len(rows), 'candidate')}")
        for builds, own in self._by_device(rows):
            builds.compilers.start()
            self._measure_on(builds, own, required=required)

    def _measure_on(self, builds: CandidateBuilds, rows: Sequence[Row], *, required: bool) -> None:
        waiting = iter(rows)
        while True:
            if self.is_over and not required:
                for row in builds.give_up():
                    self._leave_out(row, ENDED)
            while builds.has_room and (following := next(waiting, None)) is not None:
                if required or not self._is_useless(following):
                    builds.begin_row(following)
            if not builds.rows:
                return
            row, built = builds.next_built()
            if required or not self._is_useless(row):
                measure_row(row, built, builds, self.limits.samples)
                if row.timing is not None and row.timing.repeats > 1:
                    self._timings.append(row.timing)
                self.measured += 1
                self._done += 1
            if time.monotonic() - self._stored > _STORE_SECONDS:
                self._store()
            self._report()

    def _is_useless(self, row: Row) -> bool:
        """Leave a row out if it is unnecessary; return whether it is.

        A row is unnecessary if the search has ended, or if the lower bound of the row's time is too
        high.
        """
        if self.is_over:
            self._leave_out(row, ENDED)
            return True
        least_us, limit_us = row.group.least_us(row), row.group.limit_us(row)
        if self.limits.everything or least_us < limit_us:
            return False
        self._leave_out(row, f"lower bound {duration_text(least_us)}, limit "
                             f"{duration_text(limit_us)}")
        return True

    def _leave_out(self, row: Row, reason: str) -> None:
        row.measured = Measurement.of(row.algorithm, row.variant, not_tried=True,
                                      failure=f"{NOT_TRIED}: {reason}", search=self._key)
        row.may_differ = reason == ENDED
        self._done += 1

    def _leave_out_rest(self) -> None:
        """Leave out the rows that no round has measured."""
        for row in [row for row in self._own if row.measured is None]:
            us, limit_us = row.group.estimated_us(row), row.group.limit_us(row)
            estimate = "" if us == math.inf else (
                f"; estimate {duration_text(us)}, limit {duration_text(limit_us)}")
            self._leave_out(row, ENDED if self.is_over else f"not reached in any round{estimate}")

    def _store(self) -> None:
        """Store the measurements, and which candidates were left out."""
        self._stored = time.monotonic()
        self._rows.store(self._own)
