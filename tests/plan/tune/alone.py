"""Candidates of one layer that are measured without a search."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.plan.policy import EFFORTS
from gossamer.plan.prepare import build, responsive
from gossamer.plan.program import Layer
from gossamer.plan.tune.build import CandidateBuilds
from gossamer.plan.tune.candidates import CandidateSet, WrongNumbersError
from gossamer.plan.tune.cost import Estimates
from gossamer.plan.tune.layer_times import Attempt, CandidateGroup, LayerTimes
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import TuningProfile
from gossamer.plan.tune.ranking import Ranking
from gossamer.plan.tune.sampling import Sampler


def measured_alone(layer: Layer, device: Device, pairs: Sequence[tuple[Algorithm, Variant]],
                   samples: int, memory: CandidateMemory | None = None) -> list[Attempt]:
    """Measures candidates of one layer, all of them, and returns their attempts in order."""
    memory = CandidateMemory(device) if memory is None else memory
    profile = TuningProfile()
    estimates = Estimates(device)
    ranking = Ranking(estimates, EFFORTS["max"])
    builds = CandidateBuilds(device, memory, profile)
    sampler = Sampler(device, memory, ranking, builds, samples, profile, [])
    group = CandidateGroup(layer.problem, layer)
    group.join(LayerTimes(layer.name))
    attempts = [Attempt(group, algorithm, variant,
                        estimates.model_us(algorithm, layer.problem, variant))
                for algorithm, variant in pairs]
    with responsive(), builds.started():
        for attempt in attempts:
            group.add(attempt)
            builds.begin(attempt)
        while (built := builds.next_built()) is not None:
            sampler.try_(*built)
        sampler.sample_left()
    return attempts


def why_wrong(candidates: CandidateSet, algorithm: Algorithm, variant: Variant) -> str | None:
    """Returns why a candidate's numbers are wrong; None where they are right."""
    state, _ = build(algorithm, candidates.weights, candidates.problem, variant, candidates.device)
    check = candidates.build_check(algorithm, variant)
    try:
        candidates.checked(algorithm, variant, state, check)
    except WrongNumbersError as error:
        return str(error)
    return None
