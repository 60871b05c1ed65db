"""The order in which the candidates of a network's layers are measured, and which are not.

All candidates are in one queue, ordered by the time that each may save the network for a second of
measuring. A candidate that cannot save anything, even if it takes only the least time that can be
expected of it, is not measured.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem, Variant
from gossamer.ops.host_threads import THREADS
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import CandidateKey, Measurement, candidate_key
from gossamer.plan.tune.estimates import Estimates
from gossamer.plan.tune.kernel_costs import KernelCosts
from gossamer.tensor import Format, memory_format

_ATTEMPT_SECONDS = 0.005
"""Seconds that measuring a candidate takes where building it takes none."""
_LATER = 20.0
"""Factor of the seconds of a more precise candidate among layers that compute in float16."""
_BUILDERS = 8
"""Candidates that are built at the same time, about, where as many kernels can be compiled."""
_ALONE = 1.25
"""Ratio of a region's time to that of its layers alone up to which it may save conversions."""
_CLEARLY_FASTER = {3: 0.5, 5: 0.6}
"""Ratio of a region's time to that of its layers alone from which on the layers are left to it, by
the candidates of each layer that have a time."""
NEAR = 1.15
"""Ratio to the best known time up to which a candidate is timed more than once."""

_Kind = tuple[tuple[Format, ...], str]
"""The formats and the precision of a candidate."""


@dataclass(frozen=True)
class Progress:
    """How far measuring is: layers and how many of them have a time; the sum of the best times in
    microseconds; candidates, how many of them are done, and seconds that the others may take."""

    layers: int
    known_layers: int
    best_us: float
    candidates: int
    done: int
    seconds_left: float


@dataclass(eq=False)
class LayerTimes:
    """The best times that are known for a layer, by the formats of inputs and outputs.

    name: the layer's name. is_inner: whether all layers next to it may compute in the same
    precisions, so that a precise candidate saves no conversions. keeps_precisions: whether a less
    precise candidate may not stand for a more precise one. alone_us: for a region, the time of its
    layers one by one; infinite for other layers, and where `parts` has them. begun: how many
    candidates were begun. best: the fastest candidate of each combination of formats and precision.
    best_us: the least of their times. bounds: what bound() returned since the last of these
    changed. tried: the candidates that have a time. parts: for a region, the times of its layers
    where these are measured together with it. covered_by: for each layer that has these times the
    regions that compute it and others in one step.
    """

    name: str
    is_inner: bool = False
    keeps_precisions: bool = False
    alone_us: float = math.inf
    begun: int = 0
    best: dict[_Kind, Attempt] = field(default_factory=dict)
    bounds: dict[_Kind, float] = field(default_factory=dict)
    best_us: float = math.inf
    tried: set[CandidateKey] = field(default_factory=set)
    parts: Sequence[LayerTimes] = ()
    covered_by: list[Sequence[LayerTimes]] = field(default_factory=list)

    @property
    def is_region(self) -> bool:
        """Whether these are the times of a region."""
        return bool(self.parts) or self.alone_us < math.inf

    @property
    def parts_us(self) -> float:
        """The time of a region's layers one by one; infinite for other layers."""
        return sum(part.best_us for part in self.parts) if self.parts else self.alone_us

    @property
    def region_instead(self) -> LayerTimes | None:
        """A region that is so much faster than its layers alone, of which some candidates were
        tried, that this one is left to it; None unless there is one for each layer that has these
        times."""
        if self.keeps_precisions or not self.covered_by:
            return None
        instead = [next((region for region in regions if region._is_clearly_faster), None)
                   for regions in self.covered_by]
        return instead[0] if all(instead) else None

    @property
    def _is_clearly_faster(self) -> bool:
        tried = min((len(part.tried) for part in self.parts), default=0)
        return self.parts_us < math.inf and any(
            tried >= least and self.best_us < ratio * self.parts_us
            for least, ratio in _CLEARLY_FASTER.items())

    def learn(self, attempt: Attempt) -> None:
        """Remembers the time that an attempt has, if it has any."""
        key = (attempt.formats, attempt.variant.precision)
        if attempt.time_us is not None:
            self.tried.add(attempt.key)
        if attempt.time_us is not None and (
                key not in self.best or attempt.time_us < (self.best[key].time_us or 0.0)):
            self.best[key] = attempt
            self._changed()

    def renew(self, attempts: Iterable[Attempt]) -> None:
        """Takes notice of new times of attempts that have been learnt."""
        self._changed()
        for attempt in attempts:
            self.learn(attempt)

    def forget(self, attempt: Attempt) -> None:
        """Forgets the time of an attempt that failed afterwards."""
        self.tried.discard(attempt.key)
        self.best = {kind: known for kind, known in self.best.items() if known is not attempt}
        self._changed()

    def _changed(self) -> None:
        self.best_us = min((known.time_us or 0.0 for known in self.best.values()),
                           default=math.inf)
        self.bounds.clear()
        for region in itertools.chain.from_iterable(self.covered_by):
            region.bounds.clear()

    def bound(self, attempt: Attempt, estimates: Estimates) -> float:
        """Returns the time from which on an attempt is of no use: that of a known candidate,
        together with the conversions from its formats to the attempt's; for a region that of its
        layers alone, with some more for conversions."""
        key = (attempt.formats, attempt.variant.precision)
        if key not in self.bounds:
            self.bounds[key] = self._bound(attempt, estimates)
        return self.bounds[key]

    def _bound(self, attempt: Attempt, estimates: Estimates) -> float:
        rank = PRECISIONS.index(attempt.variant.precision)
        return min(_ALONE * self.parts_us, min(((known.time_us or 0.0) + sum(
            estimates.conversion_us(spec, other) for spec, other, mine, theirs in zip(
                attempt.specs, known.specs, attempt.formats, known.formats, strict=True)
            if not self._same(mine, theirs)) for (_, precision), known in self.best.items()
            if not (self.keeps_precisions and PRECISIONS.index(precision) > rank)),
            default=math.inf))

    def _same(self, mine: Format, known: Format) -> bool:
        """Returns whether a candidate with one format may stand for a candidate with another."""
        if mine == known:
            return True
        return (self.is_inner and (mine.dtype, known.dtype) == ("float32", "float16")
                and replace(mine, dtype="float16") == known)


@dataclass(eq=False)
class CandidateGroup:
    """Candidates whose times hold for several layers, since they do not look at what differs.

    problem: the problem under which the times are stored. layer: the layer with whose constants
    they are measured. layers: those for which the times hold. attempts: one for each candidate.
    """

    problem: Problem
    layer: Layer
    layers: list[LayerTimes]
    attempts: list[Attempt] = field(default_factory=list)
    _leaders: dict[tuple, Attempt] = field(default_factory=dict)

    def join(self, times: LayerTimes) -> None:
        """Lets the times hold for another layer, unless they do."""
        if times not in self.layers:
            self.layers.append(times)
            for attempt in self.attempts:
                times.learn(attempt)

    def add(self, attempt: Attempt) -> None:
        """Adds an attempt, whose leader is the first one of its family."""
        self.attempts.append(attempt)
        attempt.leader = self._leaders.setdefault(attempt.family, attempt)
        if attempt.leader is attempt:
            attempt.leader = None


@dataclass(eq=False)
class Attempt:
    """A candidate that is to be measured.

    leader: the first config of its algorithm with the same formats, precision and number of BLAS
    threads; None where this is the first. is_required: whether the plan without measurements takes
    it, or a layer has no other candidate that works. is_last: the latter, so that it is measured
    whatever is expected of it. is_extra: whether it is of a config beyond those that the effort has
    at first. before: an earlier result, which does not suffice. measured: the result. is_transient:
    whether the result may be another next time, so that it is not stored. kind: what the candidate
    has in common with those from which its time is estimated; an algorithm with all threads is
    another kind than with one, as it may be as many times faster as there are processors. family:
    what the candidate has in common with its leader. key: what identifies it among those for its
    problem.
    """

    group: CandidateGroup
    algorithm: Algorithm
    variant: Variant
    model_us: float
    leader: Attempt | None = None
    is_required: bool = False
    is_last: bool = False
    is_extra: bool = False
    before: Measurement | None = None
    measured: Measurement | None = None
    is_transient: bool = False
    kernels: tuple[KernelSource, ...] = ()

    def __post_init__(self) -> None:
        self.specs = (*self.variant.inputs, *self.variant.outputs)
        self.formats = tuple(map(memory_format, self.specs))
        threads = dict(self.variant.config).get(THREADS)
        name = self.algorithm.name + (f" threads={threads}" if threads else "")
        self.kind = (name, self.variant.precision, *(format_.layout for format_ in self.formats))
        self.family = (name, self.variant.precision, self.formats)
        self.key = candidate_key(self.algorithm, self.variant)

    @property
    def time_us(self) -> float | None:
        """The measured time; None where there is none."""
        return None if self.measured is None or self.measured.failure else self.measured.median_us


class AttemptQueue:
    """The attempts that are left, in the order in which they are best measured.

    everything: whether attempts that cannot save anything are measured as well. worth: the share of
    the network's time that a second of measuring must be expected to save. costs: what compiling
    kernels takes. required_first: whether required attempts come before all others, whatever is
    expected of them.
    """

    def __init__(self, attempts: Iterable[Attempt], estimates: Estimates, *,
                 everything: bool = False, worth: float = 0.0,
                 costs: KernelCosts | None = None, required_first: bool = True) -> None:
        self.costs = KernelCosts() if costs is None else costs
        self._required_first = required_first
        self._estimates = estimates
        self._worth = worth
        self._layers: dict[LayerTimes, None] = {}
        self._everything = everything
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, Attempt]] = []
        self._left: dict[Attempt, None] = {}
        self._sharing: defaultdict[KernelSource, list[Attempt]] = defaultdict(list)
        self.not_tried: list[Attempt] = []
        self.extra_until = math.inf
        """The time of time.monotonic() after which no extra attempt is begun or checked."""
        self.extend(attempts)

    def extend(self, attempts: Iterable[Attempt]) -> None:
        """Adds attempts."""
        for attempt in attempts:
            self._left[attempt] = None
            self._push(attempt)
            self.costs.expect(attempt.kernels)
            for kernel in attempt.kernels:
                self._sharing[kernel].append(attempt)
            self._layers.update(dict.fromkeys(attempt.group.layers))

    def _push(self, attempt: Attempt, score: float = -math.inf) -> None:
        heapq.heappush(self._heap, (score, next(self._numbers), attempt))

    def __len__(self) -> int:
        return len(self._left)

    def __iter__(self) -> Iterator[Attempt]:
        """Yields the attempts that are left in no particular order."""
        return iter(self._left)

    def pop(self) -> Attempt | None:
        """Returns the attempt that is measured next; None where none is left. Those that cannot
        save anything go to `not_tried`."""
        while self._heap:
            attempt = heapq.heappop(self._heap)[-1]
            if attempt not in self._left:
                continue
            if self.is_useless(attempt):
                self._leave(attempt)
                continue
            score = -self._score(attempt)
            # scores only get worse while more is known, but for those of which a kernel is compiled
            if self._heap and score > self._heap[0][0]:
                self._push(attempt, score)
            elif self._is_worth_it(attempt, -score):
                self._begin(attempt)
                return attempt
            else:
                self._leave(attempt)
        return None

    def pop_required(self) -> Attempt | None:
        """Returns a required attempt that may be faster than what is known; None where there is
        none left."""
        attempt = next((attempt for attempt in self._left if attempt.is_required
                        and self.least_us(attempt) < self.bound(attempt)), None)
        if attempt is not None:
            self._begin(attempt)
        return attempt

    def _leave(self, attempt: Attempt) -> None:
        del self._left[attempt]
        self.not_tried.append(attempt)

    def _begin(self, attempt: Attempt) -> None:
        del self._left[attempt]
        for layer in attempt.group.layers:
            layer.begun += 1
        for kernel in self.costs.begin(attempt.kernels):
            for other in self._sharing.pop(kernel):
                if other in self._left:
                    self._push(other)

    def _is_sure(self, attempt: Attempt) -> bool:
        """Returns whether an attempt is measured whatever is expected of it."""
        return attempt.is_last or (attempt.is_required and self._required_first)

    def is_useless(self, attempt: Attempt) -> bool:
        """Returns whether an attempt cannot save anything; if so, its result says why."""
        if self._everything or self._is_sure(attempt):
            return False
        if attempt.is_extra and time.monotonic() > self.extra_until:
            attempt.measured = Measurement.of(
                attempt.algorithm, attempt.variant, not_tried=True,
                failure="not tried: the time for more configs was over")
            return True
        regions = [layer.region_instead for layer in attempt.group.layers]
        if regions[0] is not None and all(regions):
            attempt.measured = Measurement.of(
                attempt.algorithm, attempt.variant, not_tried=True,
                failure=f"not tried: {regions[0].name} takes {regions[0].best_us:.1f} us, its "
                        f"layers alone {regions[0].parts_us:.1f} us so far")
            # a network in which the layer is in no region needs it
            attempt.is_transient = True
            return True
        least, bound = self.least_us(attempt), self.bound(attempt)
        if least < bound:
            return False
        attempt.measured = Measurement.of(
            attempt.algorithm, attempt.variant, not_tried=True,
            failure=f"not tried: at least {least:.1f} us expected against {bound:.1f} us")
        return True

    def _is_worth_it(self, attempt: Attempt, score: float) -> bool:
        """Returns whether an attempt is expected to save enough; if not, its result says so."""
        if self._everything or self._is_sure(attempt) or not self._worth:
            return True
        total = sum(layer.best_us for layer in self._layers if not layer.parts)
        if total == math.inf or score >= self._worth * total:
            return True
        attempt.measured = Measurement.of(
            attempt.algorithm, attempt.variant, not_tried=True,
            failure="not tried: too little is expected to be saved of the network's "
                    f"{total:.1f} us for {self._seconds(attempt):.2f} s of building")
        return False

    def bound(self, attempt: Attempt) -> float:
        """Returns the time from which on an attempt is of no use for any layer."""
        return max(layer.bound(attempt, self._estimates) for layer in attempt.group.layers)

    def least_us(self, attempt: Attempt) -> float:
        """Returns the time that an attempt takes at least."""
        least = self._estimates.least_us(attempt.kind, attempt.model_us)
        if attempt.leader is not None and attempt.leader.time_us is not None:
            least = max(least, self._estimates.least_us_of_config(attempt.algorithm,
                                                                  attempt.leader.time_us))
        return least

    def learn(self, attempt: Attempt) -> None:
        """Remembers the time that was measured in an attempt."""
        if attempt.time_us is None:
            return
        self._estimates.learn(attempt.kind, attempt.group.problem, attempt.model_us,
                              attempt.time_us)
        if attempt.leader is not None and attempt.leader.time_us is not None:
            self._estimates.learn_config(attempt.algorithm, attempt.leader.time_us, attempt.time_us)
        for layer in attempt.group.layers:
            layer.learn(attempt)

    def renew(self, group: CandidateGroup, attempts: Sequence[Attempt]) -> None:
        """Takes notice of new times of attempts of a group, those of all samples instead of one."""
        for layer in group.layers:
            layer.renew(attempts)

    def forget(self, attempt: Attempt) -> None:
        """Forgets the time of an attempt that failed after it was measured."""
        for layer in attempt.group.layers:
            layer.forget(attempt)

    def saving_us_of_configs(self, attempt: Attempt, layer: LayerTimes) -> float:
        """Returns the time that another config of an attempt's algorithm is expected to save one of
        its layers, from the ratios of configs that were measured for all layers; 0 where they are
        not known, and for an attempt that is not near the layer's best."""
        bound = (layer.bound(attempt, self._estimates) if layer.keeps_precisions
                 else min(layer.best_us, layer.parts_us))
        if attempt.time_us is None or attempt.time_us > NEAR * bound or layer.region_instead:
            return 0.0
        first = None if attempt.leader is None else attempt.leader.time_us
        return self._estimates.saving_us_of_config(
            attempt.algorithm, attempt.time_us if first is None else first, bound) or 0.0

    def _seconds(self, attempt: Attempt) -> float:
        """Returns the seconds that an attempt is expected to take."""
        builders = min(_BUILDERS, self.costs.builders)
        return (_ATTEMPT_SECONDS + attempt.variant.build_seconds / builders
                + self.costs.seconds(attempt.kernels))

    def _score(self, attempt: Attempt) -> float:
        """Returns the microseconds that an attempt is expected to save for a second of measuring.
        """
        if self._is_sure(attempt):
            return math.inf
        seconds = self._seconds(attempt)
        if attempt.variant.precision != "fp16" and all(
                layer.is_inner for layer in attempt.group.layers):
            # it is of no use where float16 is as fast, which is known soon
            seconds *= _LATER
        saved = 0.0
        for layer in attempt.group.layers:
            bound = layer.bound(attempt, self._estimates)
            if bound == math.inf:
                # layers without any known time come first, each with what is expected to be fastest
                expected = max(self._expected_us(attempt), 1e-3)
                return 1e12 / ((1 + layer.begun)**2 * expected * seconds)
            saved += self._saving_us(attempt, bound)
        return saved / seconds

    def _expected_us(self, attempt: Attempt) -> float:
        """Returns the time that is expected of an attempt."""
        expected = self._estimates.expected_us(attempt.kind, attempt.model_us)
        first = None if attempt.leader is None else attempt.leader.time_us
        return expected if first is None else min(expected, first)

    def _saving_us(self, attempt: Attempt, bound: float) -> float:
        """Returns the time that an attempt is expected to save where a bound is known: the average
        over what was measured of such candidates, or as long as that is little, some of the way
        down to the least time expected."""
        first = None if attempt.leader is None else attempt.leader.time_us
        known = (self._estimates.saving_us(attempt.kind, attempt.model_us, bound) if first is None
                 else self._estimates.saving_us_of_config(attempt.algorithm, first, bound))
        if known is not None:
            return known
        return max(0.0, bound - self._expected_us(attempt), 0.1 * (bound - self.least_us(attempt)))
