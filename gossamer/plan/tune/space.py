"""The search space: the candidates of a network's layers within an effort."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem, Variant
from gossamer.ops.host_threads import ALL, Threads, of_threads, without_host_threads
from gossamer.plan.policy import (
    UNMEASURED,
    Effort,
    is_change_of_precision,
    reason_not_allowed,
)


class Space:
    """Candidates of layers within an effort, in order of preference.

    effort: name of the effort; None if nothing is measured.
    limits: limits of the effort.
    precisions: allowed precisions.
    keeps_precisions: whether to measure candidates even if less precise ones are faster, because
    the plan may need them to keep its error within the policy's tolerance.
    threads: BLAS threads of a layer on the host.
    """

    def __init__(self, effort: str | None, limits: Effort, precisions: Sequence[str],
                 *, keeps_precisions: bool, threads: Threads = ALL) -> None:
        self.limits = limits
        self._precisions = precisions
        self.keeps_precisions = keeps_precisions
        self._threads = threads
        self._variants: dict[tuple[Algorithm, Problem, str], list[Variant]] = {}
        self._refusals: dict[tuple[Algorithm, Problem, str], str | None] = {}
        self.why = "without an effort" if effort is None else f"with effort {effort}"
        """Text for messages that says what limits the build time."""

    @classmethod
    def unmeasured(cls, threads: Threads = ALL) -> Space:
        """Return the candidates in strict float32 for plans without measurements."""
        return cls(None, UNMEASURED, PRECISIONS[:1], keeps_precisions=False, threads=threads)

    def refusal_reason(self, algorithm: Algorithm, problem: Problem, device: Device) -> str | None:
        """Return why an algorithm cannot compute a problem, or None.

        The reason is that the algorithm does not support the problem, or that none of its variants
        has an allowed precision and build time.
        """
        key = (algorithm, problem, device.name)
        if key not in self._refusals:
            self._refusals[key] = algorithm.supports(problem, device) or reason_not_allowed(
                self.within_effort(algorithm, problem, device), self.limits.build_seconds,
                self.why)
        return self._refusals[key]

    def buildable(self, algorithm: Algorithm, problem: Problem,
                  device: Device) -> Iterator[Variant]:
        """Yield the variants within the effort's limit on build time."""
        return (variant for variant in self.within_effort(algorithm, problem, device)
                if variant.build_seconds <= self.limits.build_seconds)

    def within_effort(self, algorithm: Algorithm, problem: Problem,
                      device: Device) -> Sequence[Variant]:
        """Return an algorithm's variants within the effort.

        These are the variants of the algorithm's first configs in the allowed precisions.

        Configs are taken in order, up to the effort's limit on their number. A config that would
        take too long to build is included, but does not count towards the limit.
        """
        key = (algorithm, problem, device.name)
        if key not in self._variants:
            most, count = self.limits.most_configs_of(algorithm), 0
            found: list[Variant] = []
            for _, variants in itertools.groupby(self._precise(algorithm, problem, device),
                                                 key=lambda variant: without_host_threads(
                                                     variant.config, device)):
                if most is not None and count >= most:
                    break
                group = list(variants)
                found += group
                count += any(variant.build_seconds <= self.limits.build_seconds
                             for variant in group)
            self._variants[key] = found
        return self._variants[key]

    def _precise(self, algorithm: Algorithm, problem: Problem,
                 device: Device) -> Iterable[Variant]:
        """Return the variants in the allowed precisions."""
        if is_change_of_precision(problem):
            listed = iter(algorithm.variants(problem, device))
        else:
            # a precision that changes no result is always allowed
            count = max(len(self._precisions), PRECISIONS.index(problem.exact_precision) + 1)
            asked = PRECISIONS[:count]
            listed = (variant for variant in algorithm.variants_in(problem, device, asked)
                      if variant.precision in self._precisions
                      or variant.is_as_precise_as_float32(problem))
        if algorithm.rounds_sums and problem.sums_integers:
            listed = (variant for variant in listed if variant.precision != "fp16")
        multiply_adds = math.inf if self.limits is UNMEASURED else problem.flops / 2
        return of_threads(listed, self._threads, device, multiply_adds)
