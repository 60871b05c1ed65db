"""Rows of the planning table: candidates and what is known of their times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gossamer.device.base import Device
from gossamer.errors import GossamerError
from gossamer.measure import Timing
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem, Variant
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.candidate import Candidate, CandidateKey, Measurement, candidate_key
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.cost import LEAST_SHARE, conversion_us, model_us
from gossamer.plan.tune.space import Space
from gossamer.tensor import Format, memory_format

NOT_TRIED = "not tried"
"""For a candidate that was left out, the reason shown in reports starts with this text."""
_FUSED = 1.25
"""A fusion may pay off if its time is at most this factor times the time of its unfused layers. The
factor exceeds 1 because a fusion may save conversions."""
UNTIMED = 0.95
"""Factor on the estimated time of a row that has no measured time. It is below 1, so that a plan
takes the row, and the row is measured, if its estimate equals the best measured time."""

_Kind = tuple[tuple[Format, ...], str]
"""Formats and precision of a candidate."""


@dataclass(eq=False)
class LayerCandidates:
    """A layer or fusion with its rows and candidates.

    algorithms: the algorithms that may compute the layer.
    device: the device on which they may compute it.
    candidates: all candidates in order of preference, including those that were left out; empty
    before the tuner has listed them. While the search goes on, some have an estimated time.
    reasons: for each algorithm without a candidate, the reason why it has none.
    rows: the candidates as rows, in order of preference.
    parts: for a fusion, its layers; empty for a layer.
    best: the fastest row of each combination of formats and precision.
    """

    layer: Layer
    algorithms: Sequence[Algorithm]
    device: Device
    candidates: list[Candidate] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    parts: Sequence[LayerCandidates] = ()
    best: dict[_Kind, Row] = field(default_factory=dict)

    @property
    def least_cost(self) -> float:
        """Time of the fastest candidate; infinite if no candidate can be used."""
        return min((candidate.cost for candidate in self.candidates), default=math.inf)

    @property
    def best_us(self) -> float:
        """Time of the fastest row in microseconds; infinite if no row has a time."""
        return min((row.time_us or 0.0 for row in self.best.values()), default=math.inf)

    def update(self) -> None:
        """Set the best times from the measured rows."""
        self.best = {}
        for row in sorted((row for row in self.rows if row.time_us is not None),
                          key=lambda row: row.time_us or 0.0):
            self.best.setdefault((row.formats, row.variant.precision), row)

    def limit_us(self, row: Row) -> float:
        """Return the time above which a row cannot be best.

        A plan may take a row that has a time in the place of this row, and convert its inputs and
        outputs to the formats of this row. The limit is the shortest time of such a replacement.
        For a fusion, the limit is at most _FUSED times the time of its unfused layers. If the
        tuner keeps precisions, rows of less precision are no replacement.
        """
        rank = PRECISIONS.index(row.variant.precision)
        known = [known for (_, precision), known in self.best.items()
                 if not (row.group.keeps_precisions and PRECISIONS.index(precision) > rank)]
        alone = _FUSED * sum(part.best_us for part in self.parts) if self.parts else math.inf
        return min(alone, min(((each.time_us or 0.0) + sum(
            conversion_us(spec, other, self.device) for spec, other, mine, theirs in zip(
                row.specs, each.specs, row.formats, each.formats, strict=True)
            if mine != theirs) for each in known), default=math.inf))


@dataclass(eq=False)
class Group:
    """Rows whose times are valid for several layers.

    The algorithms of the rows ignore the properties in which these layers differ. For example, the
    time of a dense algorithm does not depend on which weights are zero.

    problem: the problem under which the times are stored.
    layer: the layer with whose constants the rows are measured.
    keeps_precisions: whether a row is kept even if a less precise one is faster.
    layers: the layers for which the times are valid.
    similar: the group of an earlier layer that differs from `layer` only in its weights. As long as
    no row of this group has been tried, the rows are estimated from those of the similar group.
    None if there is no such layer.
    rows: the rows by their keys.
    """

    problem: Problem
    layer: Layer
    device: Device
    keeps_precisions: bool = False
    layers: list[LayerCandidates] = field(default_factory=list)
    similar: Group | None = None
    rows: dict[CandidateKey, Row] = field(default_factory=dict)

    def update(self) -> None:
        """Set the best times of all layers."""
        for node in self.layers:
            node.update()

    def tried(self, algorithm: Algorithm) -> list[Row]:
        """Return the rows of an algorithm that have a measured time or a failure.

        If there are none, those of the similar group are returned.
        """
        found = [row for row in self.rows.values() if row.algorithm is algorithm
                 and row.measured is not None and not row.measured.not_tried]
        return found or ([] if self.similar is None else self.similar.tried(algorithm))

    def ratio(self, algorithm: Algorithm) -> float | None:
        """Return an algorithm's smallest ratio of measured to modelled time.

        The ratio is infinite if all rows that were tried failed, and None if no row was tried.
        """
        tried = self.tried(algorithm)
        return min((row.time_us / row.model_us for row in tried if row.time_us is not None),
                   default=math.inf) if tried else None

    def least_us(self, row: Row) -> float:
        """Return the lower bound of a row's time in microseconds.

        The bound is computed from the measured times of the row's algorithm, or from the model
        alone if there are none.
        """
        ratio = self.ratio(row.algorithm)
        return LEAST_SHARE * row.model_us * (1.0 if ratio in (None, math.inf) else ratio)

    def estimated_us(self, row: Row) -> float:
        """Return the estimated time of a row that has none.

        The estimate is the modelled time times a ratio of measured to modelled time: that of the
        same row in the similar group, or else that of the algorithm. The estimate is infinite if
        the row was left out of the similar group.
        """
        similar = None if self.similar is None else self.similar.rows.get(row.key)
        if similar is not None and similar.measured is not None and similar.measured.not_tried:
            return math.inf
        ratio = (self.ratio(row.algorithm) if similar is None or similar.time_us is None
                 else similar.time_us / similar.model_us)
        return UNTIMED * row.model_us * (1.0 if ratio is None else ratio)

    def limit_us(self, row: Row) -> float:
        """Return the time above which no layer needs a row."""
        return max(node.limit_us(row) for node in self.layers)


@dataclass(eq=False)
class Row:
    """A candidate of the layers of a group.

    model_us: time in microseconds that the algorithm's model predicts.
    measured: the candidate's measurement; None if the candidate was neither measured nor left out.
    stored: the candidate's measurement in the cache.
    timing: the samples of the candidate's time, if this process has timed the candidate.
    may_differ: whether another measurement may have another outcome; if so, `measured` is not
    stored.
    key: the candidate's key among the candidates for its problem.
    """

    group: Group
    algorithm: Algorithm
    variant: Variant
    model_us: float
    measured: Measurement | None = None
    stored: Measurement | None = None
    timing: Timing | None = None
    may_differ: bool = False

    def __post_init__(self) -> None:
        self.specs = (*self.variant.inputs, *self.variant.outputs)
        self.formats = tuple(map(memory_format, self.specs))
        self.key = candidate_key(self.algorithm, self.variant)

    @property
    def time_us(self) -> float | None:
        """The measured time in microseconds; None for a row without a time."""
        return None if self.measured is None or self.measured.failure else self.measured.median_us

    @property
    def candidate(self) -> Candidate:
        """The candidate with its measurement, or with its estimated time.

        The candidate has an estimate as long as it may still be measured.
        """
        if self.measured is not None:
            return Candidate(self.algorithm, self.variant, self.measured)
        return Candidate(self.algorithm, self.variant, self._unmeasured,
                         self.group.estimated_us(self))

    @cached_property
    def _unmeasured(self) -> Measurement:
        return Measurement.of(self.algorithm, self.variant, not_tried=True, failure=NOT_TRIED)


class Rows:
    """The rows of all listed layers and fusions, on all devices."""

    def __init__(self, space: Space, cache: TuningCache) -> None:
        self._space, self._cache = space, cache
        self._groups: dict[tuple[str, Problem], Group] = {}
        self._similar: dict[tuple[str, Problem], Group] = {}
        """For layers whose candidates depend on zeros: the group of the first layer of each shape.
        """

    def add(self, nodes: Sequence[LayerCandidates], key: str) -> dict[Row, None]:
        """Add the candidates of layers as rows; return the rows without a measurement yet.

        Rows with a sufficient stored measurement receive it.

        key: identifies the search. Rows that were left out by an earlier search with the same key
        are left out again.
        """
        known = {node.layer.name: node for node in nodes}
        for node in nodes:
            layer, problem = node.layer, node.layer.problem
            node.rows = []
            for algorithm in node.algorithms:
                group = self._group(timed_problem(problem, algorithm), layer, node.device)
                if node not in group.layers:
                    group.layers.append(node)
                for variant in self._space.within_effort(algorithm, problem, node.device):
                    row = Row(group, algorithm, variant, model_us(
                        algorithm, group.problem, variant, node.device))
                    node.rows.append(group.rows.setdefault(row.key, row))
            node.parts = [known[name] for name in layer.covers if name in known]
            node.update()
        new = {row: None for node in nodes for row in node.rows if row.measured is None}
        for group in {row.group: None for row in new}:
            self._reuse(group, key)
        return new

    def _group(self, problem: Problem, layer: Layer, device: Device) -> Group:
        """Return the group of a problem; the first layer creates it."""
        key = device.name, problem
        if key not in self._groups:
            group = self._groups[key] = Group(problem, layer, device,
                                              self._space.keeps_precisions)
            if (shape := similar_shape(problem)) is not None:
                first = self._similar.setdefault((device.name, shape), group)
                group.similar = None if first is group else first
        return self._groups[key]

    def _reuse(self, group: Group, key: str) -> None:
        """Give rows their stored measurements; if all outputs are empty, the time is 0."""
        stored = {each.candidate_key: each
                  for each in self._cache.of(group.device).get(group.problem) or ()}
        for row in group.rows.values():
            if row.measured is not None:
                continue
            if all(spec.size == 0 for spec in group.problem.outputs):
                row.measured = Measurement.of(
                    row.algorithm, row.variant, Timing(0.0, 0.0, 0.0, self._space.limits.samples),
                    error=0.0, weights=group.layer.digest)
            elif row.key in stored and self._suffices(stored[row.key], group, key):
                row.measured = row.stored = stored[row.key]
        group.update()

    def _suffices(self, stored: Measurement, group: Group, key: str) -> bool:
        """Return whether a stored measurement makes another one unnecessary."""
        if stored.not_tried:
            return stored.search == key
        if stored.failure:
            # a candidate that was wrong with other weights may be right with this layer's weights
            return not (stored.wrong_numbers and stored.weights != group.layer.digest)
        return stored.samples >= self._space.limits.samples

    def store(self, rows: Iterable[Row]) -> None:
        """Store the measurements of rows that are not stored yet."""
        made = {row: row.measured for row in rows if row.measured is not None
                and not row.may_differ and row.measured is not row.stored}
        fresh: dict[str, dict[Problem, list[Measurement]]] = {}
        for row, measured in made.items():
            fresh.setdefault(row.group.device.name, {}).setdefault(
                row.group.problem, []).append(measured)
        # rows are marked only after writing: after an interrupt, the next call writes the rest
        for device in {row.group.device.name: row.group.device for row in made}.values():
            self._cache.of(device).put(fresh[device.name])
        for row, measured in made.items():
            row.stored = measured


def usable(layer: Layer, candidates: Sequence[Candidate], device: Device) -> list[Candidate]:
    """Return the candidates that are not excluded.

    Raises GossamerError with the reasons if all candidates are excluded.
    """
    remaining = [candidate for candidate in candidates if candidate.is_usable]
    if not remaining:
        raise GossamerError(
            f"{layer.source or layer.name}: no candidate works on {device.name}: "
            + "; ".join(f"{candidate.algorithm.name}: {candidate.measured.failure}"
                        for candidate in candidates[:3]))
    return remaining


def timed_problem(problem: Problem, algorithm: Algorithm) -> Problem:
    """Return the problem under which an algorithm's times are stored.

    For a dense algorithm this problem is the same for all weights.
    """
    return without_zeros(problem) if algorithm.dense else problem


def without_zeros(problem: Problem) -> Problem:
    """Return a problem without the information about which weights are zero."""
    if isinstance(problem, FusionProblem):
        return replace(problem, parts=tuple(map(without_zeros, problem.parts)))
    info: WeightsInfo | None = getattr(problem, "weights_info", None)
    if info is None:
        return problem
    return replace(problem, weights_info=WeightsInfo(  # type: ignore[type-var]
        facts=info.facts, scaled_signs=info.scaled_signs))


def similar_shape(problem: Problem) -> Problem | None:
    """Return the problem that layers share if they differ only in zeros.

    None if the problem does not specify which of its weights are zero.
    """
    info: WeightsInfo | None = getattr(problem, "weights_info", None)
    return None if info is None or not info.mask_hash else without_zeros(problem)
