"""Which algorithms may compute a fusion."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm
from gossamer.plan.eligibility import Refusal, able_on, is_above, is_asked_for
from gossamer.plan.fusion import recognising
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer
from gossamer.plan.tune.bounds import uncheckable
from gossamer.plan.tune.discontinuity import has_jumps


def fusion_eligibility(fusion: Layer, layers: Sequence[Layer], device: Device, policy: Policy,
                       refusal_reason: Refusal, taken_alone: bool
                       ) -> tuple[list[Algorithm], dict[str, str]]:
    """Returns the algorithms that may compute a fusion, and for each other algorithm that
    recognises the fusion the reason why it may not.

    layers: the layers that the fusion covers.
    refusal_reason: as in eligibility().
    taken_alone: whether the algorithm that the policy forces can compute one of these layers alone.
    """
    able, reasons = able_on(fusion.problem, device, refusal_reason, recognising(fusion))
    unchecked = uncheckable(fusion.problem) if has_jumps(fusion.problem) else None
    allowed = []
    for algorithm in able:
        reason = unchecked
        if not is_asked_for(algorithm, policy):
            reason = "is taken where it is asked for by its name"
        elif policy.only is not None and taken_alone and algorithm.name != policy.only:
            reason = f"{policy.only} is forced"
        elif other := forced_otherwise(fusion, algorithm, policy):
            reason = other
        elif policy.sparse_threshold is not None:
            above = {is_above(1 - layer.density, policy.sparse_threshold) for layer in layers
                     if layer.density is not None}
            if above - {not algorithm.dense}:
                reason = f"the threshold {policy.sparse_threshold:g} decided otherwise"
        if reason is None:
            allowed.append(algorithm)
        else:
            reasons[algorithm.name] = reason
    return allowed, reasons


def forced_otherwise(fusion: Layer, algorithm: Algorithm, policy: Policy) -> str:
    """Returns why the policy's `force` keeps an algorithm from a fusion: a layer of the fusion has
    to take another algorithm. Returns "" where `force` allows the algorithm."""
    return next((f"{policy.force[name]} is forced for {name}" for name in fusion.covers
                 if policy.force.get(name, algorithm.name) != algorithm.name), "")
