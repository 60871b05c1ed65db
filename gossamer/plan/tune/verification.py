"""Checks of chosen candidates with the constants of the layers that they are to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.plan.candidate import Candidate
from gossamer.plan.measurement import CandidateKey
from gossamer.plan.prepare import responsive, side_by_side
from gossamer.plan.program import Layer
from gossamer.plan.tune.candidates import CandidateSet
from gossamer.plan.tune.digests import Digests
from gossamer.plan.tune.measures import Chosen
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import CHECKING, TuningProfile
from gossamer.plan.tune.results import Results

_Key = tuple[str, str, CandidateKey]


class Verification:
    """Checks candidates that were measured with the constants of another layer.

    memory_of: returns the memory that candidates on a device share.
    """

    def __init__(self, results: Results, digests: Digests, profile: TuningProfile,
                 memory_of: Callable[[Device], CandidateMemory]) -> None:
        self._results = results
        self._digests = digests
        self._profile = profile
        self._memory_of = memory_of
        self._failures: dict[_Key, str | None] = {}

    def check(self, chosen: Iterable[Chosen]) -> None:
        """Checks the candidates of which it is not known whether they are right. They are built,
        and the references computed, side by side where the device can do that."""
        unknown: dict[str, dict[_Key, Chosen]] = {}
        for layer, candidate, device in chosen:
            key = _key(layer, candidate, device)
            if key not in self._failures and not self._is_known(layer, candidate, device):
                unknown.setdefault(device.name, {})[key] = layer, candidate, device
        for of_device in unknown.values():
            self._check(of_device)

    def failure(self, layer: Layer, candidate: Candidate, device: Device) -> str | None:
        """Returns why a candidate may not be used with a layer's constants; None where it may."""
        self.check([(layer, candidate, device)])
        return self._failures.get(_key(layer, candidate, device))

    def _is_known(self, layer: Layer, candidate: Candidate, device: Device) -> bool:
        """Returns whether a candidate is known to be right with a layer's constants: it was
        measured with them, or the cache has a check."""
        measured, weights = candidate.measured, self._digests.of(layer)
        assert layer.problem is not None
        return (not layer.weights or measured.weights == weights
                or self._results.cache_of(device).has_check(layer.problem, measured, weights))

    def _check(self, waiting: Mapping[_Key, Chosen]) -> None:
        """Finds out whether candidates on one device are right."""
        device = next(iter(waiting.values()))[2]
        memory = self._memory_of(device)
        checks = [partial(_built_check, layer, candidate, device, memory)
                  for layer, candidate, device in waiting.values()]
        threads = blas.limited(1) if device.builds_side_by_side else nullcontext()
        with self._profile.stage(CHECKING), responsive(), threads:
            for (key, (layer, candidate, _)), check in zip(
                    waiting.items(), side_by_side(device, checks), strict=True):
                failure = self._failures[key] = check()()
                if failure is None:
                    assert layer.problem is not None
                    self._results.cache_of(device).put_check(
                        layer.problem, candidate.measured, self._digests.of(layer))


def _built_check(layer: Layer, candidate: Candidate, device: Device,
                 memory: CandidateMemory) -> Callable[[], str | None]:
    """Returns a function that runs a candidate, which is built already, and returns why it may not
    be used with a layer's constants; None where it may."""
    candidates = CandidateSet(layer, device, memory)
    return candidates.built_check(candidate.algorithm, candidate.variant)


def _key(layer: Layer, candidate: Candidate, device: Device) -> _Key:
    return layer.name, device.name, candidate.measured.candidate_key
