"""The candidates of a network's layers that are to be measured, and the best times of layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem, Variant
from gossamer.plan.candidate import CandidateKey, Measurement, candidate_key
from gossamer.plan.program import Layer
from gossamer.plan.tune.cost import Estimates
from gossamer.tensor import Format, memory_format

_ALONE = 1.25
"""Ratio of a fusion's time to the time of its layers alone up to which the fusion may be of use,
since it may save conversions."""
_CLEARLY_FASTER = 0.6
"""Ratio of a fusion's time to the time of its layers alone up to which no further candidates of the
layers are measured."""
_FEW = 3
"""Candidates of a fusion's layers are left out because of the fusion's time only after this many
candidates of each layer have a time."""
NEAR = 1.15
"""Ratio to the best known time up to which a candidate is timed more than once."""

_FOR_ALIKE = 2
"""Number of configs that are measured for a layer that is like an earlier layer: the best configs
of the earlier layer."""

_Kind = tuple[tuple[Format, ...], str]
"""The formats and the precision of a candidate."""


@dataclass(eq=False)
class LayerTimes:
    """The best times that are known for a layer, by the formats of inputs and outputs.

    name: the layer's name.
    is_inner: whether the layer and its neighbours can all compute in float16, so that a more
        precise candidate saves no conversions; see Space.inner().
    keeps_precisions: whether a candidate is measured even where a less precise candidate is faster.
    groups: the groups of the layer's candidates.
    begun_us: the least time that was expected of a candidate when it was begun.
    best: the fastest candidate of each combination of formats and precision.
    best_us: the time of the fastest candidate in microseconds.
    bounds: the results of bound() that still hold.
    tried: the number of candidates that have a time.
    parts: for a fusion, the times of its layers; empty for a layer.
    covered_by: the times of the larger fusions that compute the layer or fusion together with other
        layers in one step.
    """

    name: str
    is_inner: bool = False
    keeps_precisions: bool = False
    groups: list[CandidateGroup] = field(default_factory=list)
    begun_us: float = math.inf
    best: dict[_Kind, Attempt] = field(default_factory=dict)
    bounds: dict[_Kind, float] = field(default_factory=dict)
    best_us: float = math.inf
    tried: int = 0
    parts: Sequence[LayerTimes] = ()
    covered_by: Sequence[LayerTimes] = ()

    @property
    def parts_us(self) -> float:
        """The time of a fusion's layers one by one; infinite for other layers."""
        return sum(part.best_us for part in self.parts) if self.parts else math.inf

    @property
    def useful_share(self) -> float:
        """A factor of at most 1. If the best times of a layer, and of the other layers of its
        fusions, fall to this factor times their present values, the layers alone are as fast as the
        fastest of the fusions. The factor is 1 for a layer without a faster fusion."""
        return 1.0 if self.keeps_precisions else min(
            (fusion._share for fusion in self.covered_by), default=1.0)

    @property
    def _share(self) -> float:
        """The ratio of a fusion's time to the time of its layers alone, 1 at most."""
        parts_us = self.parts_us
        return min(1.0, self.best_us / parts_us) if 0 < parts_us < math.inf else 1.0

    def update(self) -> None:
        """Set the best times from the attempts that were measured."""
        timed = [attempt for group in self.groups for attempt in group.attempts.values()
                 if attempt.time_us is not None]
        timed.sort(key=lambda attempt: attempt.time_us or 0.0)
        self.best = {}
        for attempt in timed:
            self.best.setdefault((attempt.formats, attempt.variant.precision), attempt)
        self.best_us = timed[0].time_us or 0.0 if timed else math.inf
        self.tried = len(timed)
        self.bounds.clear()
        for fusion in self.covered_by:
            fusion.bounds.clear()

    def bound(self, attempt: Attempt, estimates: Estimates) -> float:
        """Return the time from which on an attempt is of no use. A known candidate can replace the
        attempt at the cost of its own time plus the time that is expected of the conversions
        between its formats and the attempt's formats; the least of these costs is returned. For a
        fusion the bound is at most _ALONE times the time of its layers alone."""
        key = attempt.formats, attempt.variant.precision
        if key not in self.bounds:
            self.bounds[key] = self._bound(attempt, estimates)
        return self.bounds[key]

    def useful_us(self, attempt: Attempt, estimates: Estimates) -> float:
        """Return the time from which on an attempt is of no use beside the fusions that compute
        this layer: bound() times useful_share, or 0 where useful_share is small. Until each layer
        of these fusions has the times of a few candidates, the result is bound() itself. Fusions
        within larger fusions are tried last, when the layers have their times."""
        is_known = bool(self.parts) or all(
            part.tried >= _FEW for fusion in self.covered_by for part in fusion.parts)
        share = self.useful_share if is_known else 1.0
        return self.bound(attempt, estimates) * share if share > _CLEARLY_FASTER else 0.0

    def _bound(self, attempt: Attempt, estimates: Estimates) -> float:
        rank = PRECISIONS.index(attempt.variant.precision)
        return min(_ALONE * self.parts_us, min(((known.time_us or 0.0) + sum(
            estimates.conversion_us(spec, other) for spec, other, mine, theirs in zip(
                attempt.specs, known.specs, attempt.formats, known.formats, strict=True)
            if not self._same(mine, theirs)) for (_, precision), known in self.best.items()
            if not (self.keeps_precisions and PRECISIONS.index(precision) > rank)),
            default=math.inf))

    def _same(self, mine: Format, known: Format) -> bool:
        """Return whether a candidate with one format may stand for a candidate with another
        format."""
        if mine == known:
            return True
        return (self.is_inner and (mine.dtype, known.dtype) == ("float32", "float16")
                and replace(mine, dtype="float16") == known)


@dataclass(eq=False)
class CandidateGroup:
    """Candidates whose times hold for several layers, because the candidates ignore the properties
    in which the layers differ.

    problem: the problem under which the times are stored.
    layer: the layer with whose constants the candidates are measured.
    layers: the layers for which the times hold.
    alike: the group of an earlier layer that is like this group's layer; this group waits for the
    times of the earlier group. None without such a layer.
    attempts: the attempt for each candidate, by the candidate's key.
    """

    problem: Problem
    layer: Layer
    layers: list[LayerTimes] = field(default_factory=list)
    alike: CandidateGroup | None = None
    attempts: dict[CandidateKey, Attempt] = field(default_factory=dict)
    _leaders: dict[tuple, Attempt] = field(default_factory=dict)

    def join(self, times: LayerTimes) -> None:
        """Add a layer for which the times of this group hold."""
        if times not in self.layers:
            self.layers.append(times)
            times.groups.append(self)
            times.update()

    def update(self) -> None:
        """Set the best times of all layers from the attempts that were measured."""
        for layer in self.layers:
            layer.update()

    def best(self) -> list[CandidateKey]:
        """Return the keys of the few fastest candidates. For layers that are like this group's
        layer, only these candidates are measured."""
        timed = [attempt for attempt in self.attempts.values() if attempt.time_us is not None]
        timed.sort(key=lambda attempt: attempt.time_us or 0.0)
        return [attempt.key for attempt in timed[:_FOR_ALIKE]]

    def add(self, attempt: Attempt) -> None:
        """Add an attempt, whose leader is the first attempt of its family."""
        self.attempts[attempt.key] = attempt
        attempt.leader = self._leaders.setdefault(attempt.family, attempt)
        if attempt.leader is attempt:
            attempt.leader = None


@dataclass(eq=False)
class Attempt:
    """A candidate that is to be measured.

    group: the group to which the candidate belongs.
    model_us: the time in microseconds that the candidate's model gives.
    leader: the attempt for the first config of the algorithm with the same formats and precision;
        None for that attempt itself.
    is_required: whether the plan without measurements takes the candidate, or is_last is true.
    is_last: whether a layer has no other candidate that works, so that this candidate is measured
        in any case.
    is_more: whether the config comes after the first configs of the effort.
    measured: the result.
    may_differ: whether the result may be different next time, so that the result is not stored.
    kernels: the kernels of the candidate that are known before it is built.
    kind: algorithm, precision and layouts. The measured times of a kind correct the model times of
    its other attempts.
    family: algorithm, precision and formats. Attempts of one family have the same leader.
    key: the candidate's key among the candidates for its problem.
    """

    group: CandidateGroup
    algorithm: Algorithm
    variant: Variant
    model_us: float
    leader: Attempt | None = None
    is_required: bool = False
    is_last: bool = False
    is_more: bool = False
    measured: Measurement | None = None
    may_differ: bool = False
    kernels: tuple[KernelSource, ...] = ()

    def __post_init__(self) -> None:
        self.specs = (*self.variant.inputs, *self.variant.outputs)
        self.formats = tuple(map(memory_format, self.specs))
        name = self.algorithm.name
        self.kind = (name, self.variant.precision, *(format_.layout for format_ in self.formats))
        self.family = (name, self.variant.precision, self.formats)
        self.key = candidate_key(self.algorithm, self.variant)

    @property
    def time_us(self) -> float | None:
        """The measured time; None for a candidate without a time."""
        return None if self.measured is None or self.measured.failure else self.measured.median_us

    @property
    def leader_us(self) -> float | None:
        """The measured time of the leader; None without a leader, or for a leader without a
        time."""
        return None if self.leader is None else self.leader.time_us
