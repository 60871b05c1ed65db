"""Checks chosen candidates with the constants of the layers that they are to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.errors import DeviceLostError
from gossamer.ops.algorithm import State
from gossamer.plan.candidate import Candidate
from gossamer.plan.program import Layer, build, responsive, side_by_side
from gossamer.plan.store.tuning_cache import Caches, TuningCache
from gossamer.plan.tune.candidates import BuiltCheck, CandidateSet, reason_of
from gossamer.plan.tune.measures import Chosen
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import CHECKING, TuningProfile


def verified(chosen: Iterable[Chosen], caches: Caches, profile: TuningProfile,
             memory_of: Callable[[Device], CandidateMemory]) -> list[Candidate]:
    """Return the candidates. A candidate that fails, or computes wrong numbers, with the constants
    of its layer is excluded. Candidates that were not checked with these constants are built, and
    their references computed, side by side where the device can do that.

    memory_of: returns the memory that candidates on a device share.
    """
    candidates, unknown = [], dict[str, list[tuple[int, Chosen]]]()
    for index, (layer, candidate, device) in enumerate(chosen):
        candidates.append(candidate)
        if not _is_known(layer, candidate, caches.of(device)):
            unknown.setdefault(device.name, []).append((index, (layer, candidate, device)))
    for of_device in unknown.values():
        device = of_device[0][1][2]
        threads = blas.limited(1) if device.builds_side_by_side else nullcontext()
        with profile.stage(CHECKING), responsive(), threads:
            failures = _checked([each for _, each in of_device], device, memory_of(device),
                                caches.of(device))
        for (index, _), failure in zip(of_device, failures, strict=True):
            if failure is not None:
                candidates[index] = candidates[index].with_exclusion(reason_of(failure))
    return candidates


def _is_known(layer: Layer, candidate: Candidate, cache: TuningCache) -> bool:
    """Return whether a candidate is known to be right with a layer's constants: the layer has no
    constants, the candidate was measured with them, or the cache records that the candidate passed
    a check with them."""
    measured = candidate.measured
    return (not layer.weights or measured.weights == layer.digest
            or cache.has_check(layer.problem, measured, layer.digest))


def _checked(chosen: Sequence[Chosen], device: Device, memory: CandidateMemory,
             cache: TuningCache) -> list[Exception | None]:
    """Return for each candidate on a device how it failed; None for a candidate that is right."""
    def built(layer: Layer, candidate: Candidate) -> tuple[CandidateSet, State, BuiltCheck]:
        algorithm, variant = candidate.algorithm, candidate.variant
        candidates = CandidateSet(layer, device, memory)
        state, _ = build(algorithm, candidates.weights, layer.problem, variant, device)
        return candidates, state, candidates.build_check(algorithm, variant)

    makers = side_by_side(device, [partial(built, layer, candidate)
                                   for layer, candidate, _ in chosen])
    failures: list[Exception | None] = []
    try:
        for (_, candidate, _), made in zip(chosen, makers, strict=True):
            try:
                candidates, state, check = made()
                candidates.checked(candidate.algorithm, candidate.variant, state, check)
            except DeviceLostError:
                raise
            except Exception as error:  # a candidate may fail in any way, which is reported
                failures.append(error)
            else:
                failures.append(None)
    finally:
        cache.put_checks([(layer.problem, candidate.measured, layer.digest)
                          for (layer, candidate, _), failure in zip(chosen, failures, strict=False)
                          if failure is None])
    return failures
