"""Checks of chosen candidates with the constants of the layers that they are to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.plan.candidate import Candidate
from gossamer.plan.measurement import CandidateKey
from gossamer.plan.prepare import responsive, side_by_side
from gossamer.plan.program import Layer
from gossamer.plan.tune.candidates import CandidateSet
from gossamer.plan.tune.measures import Chosen
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import CHECKING, TuningProfile
from gossamer.plan.tune.results import Results

_Key = tuple[str, str, CandidateKey]


class Verification:
    """Checks candidates that were measured with the constants of another layer.

    memory_of: returns the memory that candidates on a device share.
    """

    def __init__(self, results: Results, profile: TuningProfile,
                 memory_of: Callable[[Device], CandidateMemory]) -> None:
        self._results = results
        self._profile = profile
        self._memory_of = memory_of
        self._failures: dict[_Key, str | None] = {}

    def verified(self, chosen: Iterable[Chosen]) -> list[Candidate]:
        """Returns the candidates; those whose numbers are wrong with the constants of their layers
        are excluded. Candidates that were not checked with these constants are built, and their
        references computed, side by side where the device can do that."""
        chosen = list(chosen)
        keys = [(layer.name, device.name, candidate.measured.candidate_key)
                for layer, candidate, device in chosen]
        unknown: dict[str, dict[_Key, Chosen]] = {}
        for key, (layer, candidate, device) in zip(keys, chosen, strict=True):
            if key not in self._failures and not self._is_known(layer, candidate, device):
                unknown.setdefault(device.name, {})[key] = layer, candidate, device
        for of_device in unknown.values():
            failures = self._checked(list(of_device.values()))
            self._failures.update(zip(of_device, failures, strict=True))
        return [candidate if (failure := self._failures.get(key)) is None
                else candidate.with_exclusion(failure)
                for key, (_, candidate, _) in zip(keys, chosen, strict=True)]

    def _is_known(self, layer: Layer, candidate: Candidate, device: Device) -> bool:
        """Returns whether a candidate is known to be right with a layer's constants: it was
        measured with them, or the cache has a check."""
        measured = candidate.measured
        assert layer.problem is not None
        return (not layer.weights or measured.weights == layer.digest
                or self._results.cache_of(device).has_check(layer.problem, measured, layer.digest))

    def _checked(self, waiting: Sequence[Chosen]) -> list[str | None]:
        """Returns why candidates on one device are wrong; None for those that are right."""
        device = waiting[0][2]
        memory, cache = self._memory_of(device), self._results.cache_of(device)
        checks = [partial(_built_check, layer, candidate, device, memory)
                  for layer, candidate, device in waiting]
        threads = blas.limited(1) if device.builds_side_by_side else nullcontext()
        failures = []
        with self._profile.stage(CHECKING), responsive(), threads:
            for (layer, candidate, _), check in zip(waiting, side_by_side(device, checks),
                                                    strict=True):
                failures.append(check()())
                if failures[-1] is None:
                    assert layer.problem is not None
                    cache.put_check(layer.problem, candidate.measured, layer.digest)
        return failures


def _built_check(layer: Layer, candidate: Candidate, device: Device,
                 memory: CandidateMemory) -> Callable[[], str | None]:
    """Returns a function that runs a candidate, which is built already, and returns why it may not
    be used with a layer's constants; None where it may."""
    candidates = CandidateSet(layer, device, memory)
    return candidates.built_check(candidate.algorithm, candidate.variant)
