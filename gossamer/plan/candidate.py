"""Candidates of a layer: measurements, build costs, and why candidates are rejected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gossamer.io.text import duration_text
from gossamer.measure import SLACK, Timing
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.tensor import Format, TensorSpec, memory_format

TIMES = ("median_us", "p25_us", "p75_us")
"""Names of the fields of a Measurement that are times."""
_DIGITS = 4
"""Number of significant digits of a stored number."""
CandidateKey = tuple[str, str, tuple[str, ...], tuple[str, ...], str]
"""Algorithm, config, formats of the inputs, formats of the outputs, and precision."""


def candidate_key(algorithm: Algorithm, variant: Variant) -> CandidateKey:
    """Return the key that identifies a candidate among those of one problem."""
    return (algorithm.name, variant.config_text, _formats(variant.inputs),
            _formats(variant.outputs), variant.precision)


def _formats(specs: Sequence[TensorSpec]) -> tuple[str, ...]:
    return tuple(str(spec.format) for spec in specs)


@dataclass(frozen=True)
class Measurement:
    """Times and error of a candidate, or its exclusion.

    Numbers are rounded to four digits, so that storing and reading a measurement does not change
    it. Raises ValueError if neither a time nor a failure is given, and for times that are negative
    or not finite.

    algorithm, config, precision: as in CandidateKey.
    inputs, outputs: formats.
    median_us, p25_us, p75_us: median and quartiles in microseconds.
    error: normalised error against the reference.
    samples: number of samples that were requested; a slow candidate has fewer.
    failure: why the candidate is excluded.
    not_tried: whether the candidate was left out of the search and therefore has no time.
    search: identifier of the search that left the candidate out; empty for a candidate that was
    tried.
    wrong_numbers: whether the candidate computed wrong numbers; with other weights its numbers may
    be correct.
    weights: digest of the constants with which the candidate was checked.
    """

    algorithm: str
    config: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    precision: str
    median_us: float | None = None
    p25_us: float | None = None
    p75_us: float | None = None
    error: float | None = None
    failure: str | None = None
    not_tried: bool = False
    search: str = ""
    wrong_numbers: bool = False
    samples: int = 0
    weights: str = ""

    def __post_init__(self) -> None:
        if self.median_us is None and self.failure is None:
            raise ValueError(f"{self.algorithm} has neither a time nor a failure")
        for name in (*TIMES, "error"):
            value = getattr(self, name)
            if value is not None:
                if name != "error" and not 0 <= value < math.inf:
                    raise ValueError(f"{self.algorithm} has {name} {value}")
                object.__setattr__(self, name, _rounded(value))

    @staticmethod
    def of(algorithm: Algorithm, variant: Variant, timing: Timing | None = None,
           **others: Any) -> Measurement:
        """Return the measurement of a variant.

        timing: the variant's time; None if there is a failure.
        others: further fields of the Measurement by name, such as `failure`.
        """
        times = {} if timing is None else {
            "median_us": timing.median_us, "p25_us": timing.p25_us, "p75_us": timing.p75_us,
            "samples": timing.repeats}
        return Measurement(*candidate_key(algorithm, variant), **{**times, **others})

    @property
    def candidate_key(self) -> CandidateKey:
        """The key that `candidate_key(algorithm, variant)` returns."""
        return (self.algorithm, self.config, self.inputs, self.outputs, self.precision)


def rounded(timing: Timing) -> Timing:
    """Return the timing, rounded to the digits that are stored."""
    return Timing(_rounded(timing.median_us), _rounded(timing.p25_us), _rounded(timing.p75_us),
                  timing.repeats)


def _rounded(value: float) -> float:
    return float(f"{float(value):.{_DIGITS - 1}e}")


@dataclass(frozen=True)
class Candidate:
    """A variant that may compute a layer, with its measurement."""

    algorithm: Algorithm
    variant: Variant
    measured: Measurement
    estimated_us: float | None = None
    """The estimated time of a candidate that may still be measured; None for others."""

    @property
    def cost(self) -> float:
        """Time in microseconds; infinite if the candidate is excluded."""
        time = self.measured.median_us
        return math.inf if self.measured.failure or time is None else time

    @property
    def estimated_cost(self) -> float:
        """Measured time in microseconds, or the estimated time of an unmeasured candidate."""
        return self.cost if self.estimated_us is None else self.estimated_us

    @property
    def is_usable(self) -> bool:
        """Whether the candidate was measured and is not excluded."""
        return math.isfinite(self.cost)

    @cached_property
    def formats(self) -> tuple[tuple[Format, ...], tuple[Format, ...]]:
        """Formats of inputs and outputs.

        Plan assignments distinguish a layer's candidates by these formats.
        """
        return (tuple(map(memory_format, self.variant.inputs)),
                tuple(map(memory_format, self.variant.outputs)))

    def with_exclusion(self, reason: str) -> Candidate:
        """Return the same candidate, excluded for a reason."""
        return replace(self, estimated_us=None, measured=replace(self.measured, failure=reason))


def why_not(candidate: Candidate, taken: Candidate) -> str:
    """Return why a layer uses the candidate `taken` instead of `candidate`."""
    return candidate.measured.failure or compared(candidate.cost, taken.cost)


def compared(cost: float, taken: float) -> str:
    """Return text that compares the times of a rejected and a chosen candidate or plan.

    cost: time of the rejected one in microseconds.
    taken: time of the chosen one in microseconds.
    """
    text = f"{duration_text(cost)} against {duration_text(taken)}"
    if cost >= taken:
        return text
    if taken <= cost * (1 + SLACK):
        return f"{text}: equal within {SLACK:.0%}"
    return f"{text}, but the plan is no faster with it"


def fastest(candidates: Iterable[Candidate]) -> dict[str, Candidate]:
    """Return the fastest candidate of each algorithm, by the algorithm's name."""
    return {candidate.algorithm.name: candidate for candidate in reversed(
        sorted(candidates, key=lambda candidate: candidate.cost))}


def why_not_others(candidates: Iterable[Candidate], taken: Candidate) -> dict[str, str]:
    """Return why the fastest candidate of each other algorithm was not chosen.

    The keys are names of algorithms.
    """
    return {name: why_not(candidate, taken) for name, candidate in fastest(candidates).items()
            if name != taken.algorithm.name}


def counted(number: int, word: str) -> str:
    """Return a number followed by a noun in the singular or plural, such as '2 layers'."""
    return f"{number} {word}" + "s" * (number != 1)
