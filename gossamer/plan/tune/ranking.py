"""Decides in which order the candidates of a network's layers are measured, and which candidates
are left out.

All candidates are in one queue, ordered by the time that each candidate may save the network per
second of measuring. A candidate that cannot save anything, even if it takes only the least time
that can be expected of it, is not measured.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gossamer.device.host import processors
from gossamer.device.source import KernelSource
from gossamer.io.text import duration_text
from gossamer.plan.policy import Effort
from gossamer.plan.tune.cost import Estimates, Ratios
from gossamer.plan.tune.layer_times import Attempt, LayerTimes

_ATTEMPT_SECONDS = 0.01
"""Seconds that the check and the first sample of a candidate take, while other threads build."""
_COMPILE_SECONDS = 0.5
"""About the number of seconds that compiling a kernel takes."""
_BUILDERS = 8
"""About the number of candidates that are built at the same time, on a host with at least as many
processors."""
_LATER = 20.0
"""Factor by which the seconds of some candidates are multiplied, so that these candidates are
measured later: candidates that are more precise than float16, for a layer whose neighbours may all
compute in float16."""
_LIKELY = 0.1
"""A candidate is expected to save this share of the most time that it may save, as long as few
times of candidates of its kind are known."""
_EXPLORED = 6
"""Number of candidates of an algorithm and a precision that are expected to save the share _LIKELY.
The times of these candidates show what the later candidates may save."""


@dataclass(frozen=True)
class Skip:
    """Why a candidate is left out.

    reason: the reason in words.
    is_final: whether the next search for the same layers leaves the candidate out, too.
    """

    reason: str
    is_final: bool = True


ENDED = Skip("measuring was ended before", is_final=False)


class Ranking:
    """The attempts that are left, in the order in which they should be measured.

    limits: the numbers of the effort.
    required_first: whether required attempts come before all other attempts, even if they seem
    slow.
    """

    def __init__(self, estimates: Estimates, limits: Effort, *,
                 required_first: bool = True) -> None:
        device = estimates.device
        self._estimates = estimates
        self._builders = min(_BUILDERS, processors()) if device.builds_side_by_side else 1
        self._begun: set[KernelSource] = set()
        """The kernels of candidates that were begun."""
        self._begun_of: Counter[tuple[str, ...]] = Counter()
        """Number of candidates that were begun, by algorithm and precision."""
        self._limits = limits
        self._required_first = required_first
        self._layers: dict[LayerTimes, None] = {}
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, Attempt]] = []
        """Negative score, number and attempt of every attempt that is left. A score may be out of
        date, because it was computed from fewer times than are known now."""

    def extend(self, attempts: Iterable[Attempt]) -> None:
        """Add attempts."""
        for attempt in attempts:
            self._layers.update(dict.fromkeys(attempt.group.layers))
            heapq.heappush(self._heap, (-math.inf, next(self._numbers), attempt))

    def __len__(self) -> int:
        return len(self._heap)

    def pop(self, is_over: bool = False) -> tuple[Attempt, Skip | None] | None:
        """Return a pair: the attempt that is measured next, and None; or an attempt that is left
        out, and the reason. Return None where no attempt is left. is_over: whether all attempts
        except the required ones are left out."""
        while self._heap:
            _, number, attempt = heapq.heappop(self._heap)
            skip = ENDED if is_over and not attempt.is_required else self.skip(attempt)
            if skip is None:
                score = self._score(attempt)
                # scores mostly get worse as more times are known, so that another attempt may now
                # have a better score
                if self._heap and -score > self._heap[0][0]:
                    heapq.heappush(self._heap, (-score, number, attempt))
                    continue
                skip = self._not_worth_it(attempt, score)
            if skip is None:
                expected_us = self._expected_us(attempt)
                for layer in attempt.group.layers:
                    layer.begun_us = min(layer.begun_us, expected_us)
                self._begun.update(attempt.kernels)
                self._begun_of[attempt.kind[:2]] += 1
            return attempt, skip
        return None

    def skip(self, attempt: Attempt) -> Skip | None:
        """Return why an attempt cannot save any time; None where it may save time."""
        if self._is_sure(attempt):
            return None
        alike = attempt.group.alike
        if alike is not None and not attempt.is_required and (
                best := alike.best()) and attempt.key not in best:
            return Skip(f"not among the best for {alike.layer.name}, which is alike")
        least_us = self.least_us(attempt)
        bound = max(layer.useful_us(attempt, self._estimates) for layer in attempt.group.layers)
        if bound == 0:
            return Skip("its layers are computed by a fusion that takes much less")
        if least_us >= bound:
            return Skip(f"at least {duration_text(least_us)} expected against "
                        f"{duration_text(bound)}")
        return None

    def _not_worth_it(self, attempt: Attempt, score: float) -> Skip | None:
        """Return a reason where an attempt is expected to save too little; None where it saves
        enough."""
        limits = self._limits
        if self._is_sure(attempt) or not (limits.worth or attempt.is_more):
            return None
        total = sum(layer.best_us for layer in self._layers if not layer.parts)
        seconds = self._seconds(attempt)
        least = max(limits.worth, limits.more_gain / seconds if attempt.is_more else 0.0)
        if total == math.inf or score >= least * total:
            return None
        return Skip(f"expected gain too small for {seconds:.2f} s of building (the network takes "
                    f"{duration_text(total)})")

    def _is_sure(self, attempt: Attempt) -> bool:
        """Return whether an attempt is measured in any case."""
        return (self._limits.everything or attempt.is_last
                or (attempt.is_required and self._required_first))

    def bound(self, attempt: Attempt) -> float:
        """Return the time from which on an attempt is of no use for any layer."""
        return max(layer.bound(attempt, self._estimates) for layer in attempt.group.layers)

    def least_us(self, attempt: Attempt) -> float:
        """Return the least time that is expected of an attempt."""
        return max(ratios.least_us(us) for ratios, us in self._ratios(attempt))

    def _ratios(self, attempt: Attempt) -> list[tuple[Ratios, float]]:
        """Return the pairs by which the time of an attempt is estimated. Each pair has ratios and
        the time that they multiply. The first pair has the time of the attempt's model. A second
        pair has the time of the attempt's leader, if this time is known."""
        found = [(self._estimates.ratios(attempt.kind), attempt.model_us)]
        if attempt.leader_us is not None:
            found.append((self._estimates.of_configs[attempt.algorithm.name], attempt.leader_us))
        return found

    def learn(self, attempt: Attempt) -> None:
        """Remember the time that was measured for an attempt."""
        if attempt.time_us is None:
            return
        # for each problem the best config counts: slower configs say nothing about other problems
        self._estimates.learn(attempt.algorithm, attempt.kind, attempt.group.problem,
                              attempt.model_us, attempt.time_us)
        if attempt.leader_us is not None:
            self._estimates.of_configs[attempt.algorithm.name].learn(
                attempt, attempt.leader_us, attempt.time_us)
        attempt.group.update()

    def _seconds(self, attempt: Attempt) -> float:
        """Return the seconds for which an attempt is expected to keep other attempts from being
        measured.
        """
        building = attempt.variant.build_seconds or _COMPILE_SECONDS * len(
            set(attempt.kernels) - self._begun)
        return _ATTEMPT_SECONDS + building / self._builders

    def _score(self, attempt: Attempt) -> float:
        """Return the microseconds that an attempt is expected to save per second of measuring.
        """
        if self._is_sure(attempt):
            return math.inf
        seconds = self._seconds(attempt)
        if attempt.variant.precision != "fp16" and all(
                layer.is_inner for layer in attempt.group.layers):
            # the attempt is of no use if float16 turns out to be as fast
            seconds *= _LATER
        saved = 0.0
        for layer in attempt.group.layers:
            bound = layer.bound(attempt, self._estimates)
            if bound == math.inf:
                # until a time is known, a candidate is compared with the candidates that were begun
                bound = layer.begun_us
            if bound == math.inf:
                # layers without any time come first, with the candidate expected to be fastest
                return 1e12 / (max(self._expected_us(attempt), 1e-3) * seconds)
            saved += self._saving_us(attempt, bound * layer.useful_share)
        return saved / seconds

    def _expected_us(self, attempt: Attempt) -> float:
        """Return the time that is expected of an attempt."""
        return min(ratios.expected_us(us) for ratios, us in self._ratios(attempt))

    def _saving_us(self, attempt: Attempt, bound: float) -> float:
        """Return the time that an attempt is expected to save below a known bound, as an average
        over the ratios by which the attempt's time is estimated. As long as few of these ratios are
        known, the result is the distance from the bound to the expected time. For the first
        candidates of an algorithm, and for further configs, it is at least a share of the distance
        from the bound to the least time."""
        ratios, us = self._ratios(attempt)[-1]
        if (known := ratios.saving_us(us, bound)) is not None:
            return known
        if attempt.is_more:
            # no measured time suggests that another config is of use
            return 0.0
        saved = max(0.0, bound - self._expected_us(attempt))
        if attempt.leader_us is not None or self._begun_of[attempt.kind[:2]] < _EXPLORED:
            saved = max(saved, _LIKELY * (bound - self.least_us(attempt)))
        return saved
