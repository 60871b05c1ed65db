"""A candidate of a layer, and the reasons why another candidate was taken."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from gossamer.io.text import duration_text
from gossamer.measure import SLACK
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.plan.measurement import Measurement
from gossamer.tensor import Format, memory_format


@dataclass(frozen=True)
class Candidate:
    """A variant of an algorithm that may compute a layer, with its measurement."""

    algorithm: Algorithm
    variant: Variant
    measured: Measurement
    copying: Measurement | None = None
    """The measurement that in_no_time() has replaced; None for other candidates."""

    @property
    def cost(self) -> float:
        """The time in microseconds; infinite where the candidate is excluded."""
        time = self.measured.median_us
        return math.inf if self.measured.failure or time is None else time

    @property
    def is_usable(self) -> bool:
        """Whether the candidate was measured and is not excluded."""
        return math.isfinite(self.cost)

    def is_same_as(self, other: Candidate) -> bool:
        """Returns whether another candidate is the same variant of the same algorithm."""
        return (self.algorithm, self.variant) == (other.algorithm, other.variant)

    @cached_property
    def formats(self) -> tuple[tuple[Format, ...], tuple[Format, ...]]:
        """The formats of inputs and outputs by which plan assignments distinguish candidates."""
        return (tuple(map(memory_format, self.variant.inputs)),
                tuple(map(memory_format, self.variant.outputs)))

    def with_exclusion(self, reason: str) -> Candidate:
        """Returns the same candidate, excluded for a reason."""
        candidate = self.in_its_time()
        return replace(candidate, measured=replace(candidate.measured, failure=reason))

    def in_no_time(self) -> Candidate:
        """Returns the same candidate with times of zero, for a layer that copies nothing. A
        candidate that is excluded is returned as it is."""
        if self.measured.failure or self.copying is not None:
            return self
        return replace(self, copying=self.measured, measured=replace(
            self.measured, median_us=0.0, p25_us=0.0, p75_us=0.0, cold_us=0.0))

    def in_its_time(self) -> Candidate:
        """Returns the same candidate with the time that was measured."""
        return self if self.copying is None else replace(self, measured=self.copying, copying=None)


def why_not(candidate: Candidate, taken: Candidate, why: str = "") -> str:
    """Returns why a candidate was not taken for a layer. why: as in Planned."""
    return candidate.measured.failure or compared(candidate.cost, taken.cost, why)


def compared(cost: float, taken: float, why: str = "") -> str:
    """Returns words that compare two times in microseconds: `cost`, the time of a choice that was
    not taken, and `taken`, the time of the choice that was taken. why: as in Planned."""
    text = f"{duration_text(cost)} against {duration_text(taken)}"
    if cost >= taken:
        return text
    if why:
        return f"{text}, but {why}"
    if taken <= cost * (1 + SLACK):
        return f"{text}: within {SLACK:.0%}, which counts as equal"
    return f"{text}, but its formats cost more elsewhere"


def why_not_others(candidates: Iterable[Candidate], taken: Candidate,
                   why: str = "") -> dict[str, str]:
    """Returns, for each algorithm that was not taken for a layer, why the algorithm's best
    candidate was not taken. why: as in Planned."""
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        name = candidate.algorithm.name
        if name not in best or candidate.cost < best[name].cost:
            best[name] = candidate
    return {name: why_not(candidate, taken, why) for name, candidate in best.items()
            if name != taken.algorithm.name}
