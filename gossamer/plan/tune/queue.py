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
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gossamer.device.source import KernelSource
from gossamer.plan.measurement import Measurement
from gossamer.plan.tune.estimates import Estimates
from gossamer.plan.tune.kernel_costs import KernelCosts
from gossamer.plan.tune.layer_times import NEAR, Attempt, CandidateGroup, LayerTimes

_ATTEMPT_SECONDS = 0.01
"""Seconds that measuring a candidate takes where building it takes none: those of a check and of
the first sample, while other threads build."""
_LATER = 20.0
"""Factor of the seconds of a more precise candidate among layers that compute in float16."""
_BUILDERS = 8
"""Candidates that are built at the same time, about, where as many kernels can be compiled."""


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
        self._heaps: dict[bool, list[tuple[float, int, Attempt]]] = {True: [], False: []}
        """Attempts by whether they compile kernels, with scores that are usually too high, since
        they were not computed with what is known by now. One that was begun, left or put elsewhere
        meanwhile may still be here."""
        self._deferred: defaultdict[LayerTimes, list[Attempt]] = defaultdict(list)
        """Attempts that wait for another one of a layer to end."""
        self._compiling: set[KernelSource] = set()
        """Kernels that attempts compile that were begun; others that need them wait until these
        end."""
        self._left: dict[Attempt, None] = {}
        self._left_of: Counter[CandidateGroup] = Counter()
        self._sharing: defaultdict[KernelSource, list[Attempt]] = defaultdict(list)
        self.not_tried: list[Attempt] = []
        self.extra_until = math.inf
        """The time of time.monotonic() after which no extra attempt is begun or checked."""
        self.has_times = False
        """Whether a time was learnt."""
        self.extend(attempts)

    def extend(self, attempts: Iterable[Attempt]) -> None:
        """Adds attempts."""
        for attempt in attempts:
            self._left[attempt] = None
            self._left_of[attempt.group] += 1
            self._push(attempt)
            self.costs.expect(attempt.kernels)
            for kernel in attempt.kernels:
                self._sharing[kernel].append(attempt)
            self._layers.update(dict.fromkeys(attempt.group.layers))

    def _push(self, attempt: Attempt, score: float = -math.inf) -> None:
        attempt.compiles = not attempt.algorithm.vendor and (
            not attempt.kernels or self.costs.has_new(attempt.kernels))
        heapq.heappush(self._heaps[attempt.compiles], (score, next(self._numbers), attempt))

    def __len__(self) -> int:
        return len(self._left)

    def __iter__(self) -> Iterator[Attempt]:
        """Yields the attempts that are left in no particular order."""
        return iter(self._left)

    def has_of(self, group: CandidateGroup) -> bool:
        """Returns whether attempts of a group are left."""
        return self._left_of[group] > 0

    def pop(self, compiles: bool | None = None, *, is_idle: bool = False) -> Attempt | None:
        """Returns the attempt that is measured next; None where none is left, or all that are left
        wait. Those that cannot save anything go to `not_tried`.

        compiles: where given, only an attempt that needs the compiler, or only one that does not.
        is_idle: whether what builds such an attempt has nothing to do, so that the attempt waits
        only for one that is surely faster.
        """
        if is_idle:
            self._put_back(*self._deferred)
        heaps = list(self._heaps.values()) if compiles is None else [self._heaps[compiles]]
        while any(heaps):
            heap = min((heap for heap in heaps if heap), key=lambda heap: heap[0][:2])
            attempt = heapq.heappop(heap)[-1]
            if attempt not in self._left or self._heaps[attempt.compiles] is not heap:
                continue
            if self.is_useless(attempt):
                self._leave(attempt)
                continue
            if self._waits_for_kernels(attempt):
                continue
            if self._waits(attempt, is_idle):
                self._deferred[attempt.group.layers[0]].append(attempt)
                continue
            score = -self._score(attempt)
            # scores mostly get worse while more is known
            if any(heap and score > heap[0][0] for heap in heaps):
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
                        and not self.is_hopeless(attempt)), None)
        if attempt is not None:
            self._begin(attempt)
        return attempt

    def _leave(self, attempt: Attempt) -> None:
        self._take(attempt)
        self.not_tried.append(attempt)

    def _take(self, attempt: Attempt) -> None:
        del self._left[attempt]
        self._left_of[attempt.group] -= 1

    def _begin(self, attempt: Attempt) -> None:
        self._take(attempt)
        for layer in attempt.group.layers:
            layer.begun += 1
            layer.expected_us[attempt] = self._expected_us(attempt)
        self._compiling.update(self.costs.begin(attempt.kernels))

    def end(self, attempt: Attempt) -> None:
        """Notes that an attempt that was begun has ended, and its kernels are compiled."""
        for kernel in self._compiling.intersection(attempt.kernels):
            self._compiling.discard(kernel)
            for other in self._sharing.pop(kernel):
                if other in self._left:
                    self._push(other)
        for layer in attempt.group.layers:
            layer.expected_us.pop(attempt, None)
        self._put_back(*attempt.group.layers)

    def _put_back(self, *layers: LayerTimes) -> None:
        """Puts attempts back that wait for others of some layers."""
        for layer in layers:
            for other in self._deferred.pop(layer, ()):
                self._push(other)

    def _waits_for_kernels(self, attempt: Attempt) -> bool:
        """Returns whether an attempt needs no other kernels than such as are compiled, and some of
        these are being compiled; it is put back when that ends."""
        return not (self._compiling.isdisjoint(attempt.kernels)
                    or self.costs.has_new(attempt.kernels))

    def _waits(self, attempt: Attempt, is_idle: bool) -> bool:
        """Returns whether an attempt waits for those that were begun for its layers: none of these
        layers has a time yet, and what is expected of one that was begun is no more than what is
        expected of this one; with is_idle, no more than what this one takes at least."""
        if self._everything or self._is_sure(attempt):
            return False
        us = self.least_us(attempt) if is_idle else self._expected_us(attempt)
        return all(layer.best_us == math.inf and layer.expected_us
                   and min(layer.expected_us.values()) <= us for layer in attempt.group.layers)

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
        if not self.is_hopeless(attempt):
            return False
        attempt.measured = Measurement.of(
            attempt.algorithm, attempt.variant, not_tried=True,
            failure=f"not tried: at least {self.least_us(attempt):.1f} us expected against "
                    f"{self.bound(attempt):.1f} us")
        return True

    def is_hopeless(self, attempt: Attempt) -> bool:
        """Returns whether an attempt takes longer than what is known, even if it takes only the
        least time expected."""
        return self.least_us(attempt) >= self.bound(attempt)

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
        # a network in which the layer is in no faster region may need it
        attempt.is_transient = self._score(attempt, beside_regions=False) >= self._worth * total
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
        self.has_times = True
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
        return (_ATTEMPT_SECONDS + self.costs.seconds(attempt.kernels) + (
            attempt.variant.build_seconds / builders
            or self.costs.seconds_elsewhere(attempt.algorithm.name)))

    def _score(self, attempt: Attempt, *, beside_regions: bool = True) -> float:
        """Returns the microseconds that an attempt is expected to save for a second of measuring.
        beside_regions: whether what it saves counts below its share of the time of faster regions.
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
            share = layer.useful_share if beside_regions else 1.0
            saved += self._saving_us(attempt, bound * share)
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
