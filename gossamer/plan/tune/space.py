"""The search space: the candidates of a network's layers within an effort."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem, Variant
from gossamer.ops.host_threads import ALL, Threads, of_threads, without_host_threads
from gossamer.plan.policy import (
    UNMEASURED,
    Effort,
    is_change_of_precision,
)


class Space:
    """Candidates of layers within an effort, in order of preference.

    limits: limits of the effort.
    precisions: allowed precisions.
    keeps_precisions: whether to measure candidates even if less precise ones are faster, because
    the plan may need them to keep its error within the policy's tolerance.
    threads: BLAS threads of a layer on the host.
    """

    def __init__(self, limits: Effort, precisions: Sequence[str], *, keeps_precisions: bool,
                 threads: Threads = ALL) -> None:
        self.limits = limits
        self._precisions = precisions
        self.keeps_precisions = keeps_precisions
        self._threads = threads
        self._variants: dict[tuple[Algorithm, Problem, str], list[Variant]] = {}
        self._refusals: dict[tuple[Algorithm, Problem, str], str | None] = {}

    @classmethod
    def unmeasured(cls, threads: Threads = ALL) -> Space:
        """Return the candidates in strict float32 for plans without measurements."""
        return cls(UNMEASURED, PRECISIONS[:1], keeps_precisions=False, threads=threads)

    def refusal_reason(self, algorithm: Algorithm, problem: Problem, device: Device) -> str | None:
        """Return why an algorithm cannot compute a problem, or None.

        The reason is that the algorithm does not support the problem, or that none of its variants
        has an allowed precision.
        """
        key = (algorithm, problem, device.name)
        if key not in self._refusals:
            self._refusals[key] = algorithm.supports(problem, device) or (
                None if self.within_effort(algorithm, problem, device)
                else "has no variant in an allowed precision")
        return self._refusals[key]

    def within_effort(self, algorithm: Algorithm, problem: Problem,
                      device: Device) -> Sequence[Variant]:
        """Return an algorithm's variants within the effort.

        These are the variants of the algorithm's first configs in the allowed precisions.
        """
        key = (algorithm, problem, device.name)
        if key not in self._variants:
            configs = itertools.groupby(
                self._precise(algorithm, problem, device),
                key=lambda variant: without_host_threads(variant.config, device))
            self._variants[key] = [variant for _, variants in itertools.islice(
                configs, self.limits.most_configs_of(algorithm)) for variant in variants]
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
