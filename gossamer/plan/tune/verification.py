"""Checks chosen candidates with the constants of the layers that they are to compute."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from functools import partial

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.errors import CompilerEndedError, DeviceLostError, OutOfMemoryError
from gossamer.ops.algorithm import Problem, State
from gossamer.plan.candidate import Candidate, CandidateKey, Measurement
from gossamer.plan.program import Layer, build, responsive, side_by_side
from gossamer.plan.store.tuning_cache import Caches
from gossamer.plan.tune.candidates import BuiltCheck, CandidateSet, reason_of
from gossamer.plan.tune.measures import Chosen
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import CHECKING, TuningProfile

_Key = tuple[str, str | None, str, CandidateKey]
"""The name of a layer, the digest of its constants, the name of a device, and a candidate."""
_MAY_PASS = (CompilerEndedError, OutOfMemoryError, MemoryError)
"""Failures that say nothing about a candidate's numbers, so that the candidate is checked again for
the next plan."""


class Verification:
    """Checks candidates that were measured with the constants of another layer.

    memory_of: returns the memory that candidates on a device share.
    """

    def __init__(self, caches: Caches, profile: TuningProfile,
                 memory_of: Callable[[Device], CandidateMemory]) -> None:
        self._caches = caches
        self._profile = profile
        self._memory_of = memory_of
        self._failures: dict[_Key, Exception | None] = {}

    def verified(self, chosen: Iterable[Chosen]) -> list[Candidate]:
        """Return the candidates. A candidate that fails, or computes wrong numbers, with the
        constants of its layer is excluded. Candidates that were not checked with these constants
        are built, and their references computed, side by side where the device can do that."""
        by_key = [((layer.name, layer.digest, device.name, candidate.measured.candidate_key),
                   (layer, candidate, device)) for layer, candidate, device in chosen]
        unknown = {key: each for key, each in by_key
                   if key not in self._failures and not self._is_known(*each)}
        for device in {device.name: device for _, _, device in unknown.values()}.values():
            of_device = {key: each for key, each in unknown.items() if each[2] is device}
            threads = blas.limited(1) if device.builds_side_by_side else nullcontext()
            with self._profile.stage(CHECKING), responsive(), threads:
                self._failures.update(zip(of_device, self._checked(of_device.values(), device),
                                          strict=True))
        verified = [candidate if (failure := self._failures.get(key)) is None
                    else candidate.with_exclusion(reason_of(failure))
                    for key, (_, candidate, _) in by_key]
        self._failures = {key: failure for key, failure in self._failures.items()
                          if not isinstance(failure, _MAY_PASS)}
        return verified

    def _is_known(self, layer: Layer, candidate: Candidate, device: Device) -> bool:
        """Return whether a candidate is known to be right with a layer's constants: the layer has
        no constants, the candidate was measured with them, or the cache records that the candidate
        passed a check with them."""
        measured = candidate.measured
        return (not layer.weights or measured.weights == layer.digest
                or self._caches.of(device).has_check(layer.problem, measured, layer.digest))

    def _checked(self, chosen: Collection[Chosen], device: Device) -> list[Exception | None]:
        """Return for each candidate on a device how it failed; None for a candidate that is
        right."""
        memory, cache = self._memory_of(device), self._caches.of(device)

        def built(layer: Layer, candidate: Candidate) -> tuple[CandidateSet, State, BuiltCheck]:
            algorithm, variant = candidate.algorithm, candidate.variant
            candidates = CandidateSet(layer, device, memory)
            state, _ = build(algorithm, candidates.weights, layer.problem, variant, device)
            return candidates, state, candidates.build_check(algorithm, variant)

        makers = side_by_side(device, [partial(built, layer, candidate)
                                       for layer, candidate, _ in chosen])
        failures: list[Exception | None] = []
        passed: list[tuple[Problem, Measurement, str]] = []
        try:
            for (layer, candidate, _), made in zip(chosen, makers, strict=True):
                try:
                    candidates, state, check = made()
                    candidates.checked(candidate.algorithm, candidate.variant, state, check)
                except DeviceLostError:
                    raise
                except Exception as error:  # a candidate may fail in any way, which is reported
                    failures.append(error)
                else:
                    passed.append((candidates.problem, candidate.measured, layer.digest))
                    failures.append(None)
        finally:
            cache.put_checks(passed)
        return failures
