"""The measurement of one candidate, and its key among the candidates for one problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.measure import Timing
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.plan.prepare import BuildCost
from gossamer.tensor import TensorSpec

TIMES = ("median_us", "p25_us", "p75_us", "cold_us", "build_s")
"""Fields of a measurement that are times."""
_DIGITS = 4
"""Number of significant digits of a stored number."""

CandidateKey = tuple[str, str, tuple[str, ...], tuple[str, ...], str]
"""Algorithm, config, formats of the inputs, formats of the outputs, and precision."""


def candidate_key(algorithm: Algorithm, variant: Variant) -> CandidateKey:
    """Returns the key that identifies a candidate among the candidates for one problem."""
    return (algorithm.name, variant.config_text, _formats(variant.inputs),
            _formats(variant.outputs), variant.precision)


def _formats(specs: Sequence[TensorSpec]) -> tuple[str, ...]:
    return tuple(str(spec.format) for spec in specs)


@dataclass(frozen=True)
class Measurement:
    """The times of one candidate and its error against the reference, or why it is excluded.
    Numbers are rounded to four digits, so that a measurement is the same after it was stored and
    read again. Raises ValueError where neither a time nor a failure is given, and for times that
    are negative or not finite.

    algorithm, config, precision: as in CandidateKey.
    inputs, outputs: formats.
    median_us, p25_us, p75_us: median and quartiles with warm caches, in microseconds.
    cold_us: the median with cold caches, in microseconds.
    error: the normalised error against the reference.
    samples: the number of samples.
    failure: why the candidate is excluded.
    not_tried: whether the candidate was not built, since it was expected to be of no use.
    search: the identifier of the search that left the candidate out; empty for a candidate that was
    tried.
    wrong_numbers: whether the candidate computed wrong numbers; with other weights its numbers may
    be right.
    weights: a digest of the constants with which the candidate was checked.
    build_s, build_cached, device_bytes: the cost of preparing the candidate, as in BuildCost's
    fields seconds, from_cache and nbytes; None if unknown.
    """

    algorithm: str
    config: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    precision: str
    median_us: float | None = None
    p25_us: float | None = None
    p75_us: float | None = None
    cold_us: float | None = None
    error: float | None = None
    failure: str | None = None
    not_tried: bool = False
    search: str = ""
    wrong_numbers: bool = False
    samples: int = 0
    weights: str = ""
    build_s: float | None = None
    build_cached: bool = False
    device_bytes: int | None = None

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
           build: BuildCost | None = None, **others: Any) -> Measurement:
        """Returns the measurement of a variant with a timing, or with a failure. others: further
        fields by name."""
        times = {} if timing is None else {
            "median_us": timing.median_us, "p25_us": timing.p25_us, "p75_us": timing.p75_us,
            "samples": timing.repeats}
        built = {} if build is None else {
            "build_s": build.seconds, "build_cached": build.from_cache,
            "device_bytes": build.nbytes}
        return Measurement(*candidate_key(algorithm, variant), **{**times, **built, **others})

    @property
    def candidate_key(self) -> CandidateKey:
        """The key that `candidate_key(algorithm, variant)` returns."""
        return (self.algorithm, self.config, self.inputs, self.outputs, self.precision)


def rounded(timing: Timing) -> Timing:
    """Returns the timing, rounded to the digits that are stored."""
    return Timing(_rounded(timing.median_us), _rounded(timing.p25_us), _rounded(timing.p75_us),
                  timing.repeats)


def _rounded(value: float) -> float:
    return float(f"{float(value):.{_DIGITS - 1}e}")


def counted(number: int, word: str) -> str:
    """Returns a number with a noun in the singular or plural, such as '1 layer' and '2 layers'."""
    return f"{number} {word}" + "s" * (number != 1)
