"""The reasons, for reports, why steps are not computed by other algorithms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from gossamer.plan.candidate import Candidate, compared
from gossamer.plan.program import Layer, MeasuredLayer

LAYER_BY_LAYER = "layer by layer"
"""The key of the reason why a fusion is not computed layer by layer; the other keys of reasons are
names of algorithms."""


def fusion_reasons(measured: Iterable[MeasuredLayer], taken: Mapping[str, Candidate], *,
                   forced: str | None = None, why: str = "") -> dict[str, dict[str, str]]:
    """Returns the reasons of each step. The key of a step is the name of its layer or fusion; the
    key of a reason is the name of an algorithm, or LAYER_BY_LAYER. The step of a fusion gets the
    reason why the fusion is not computed layer by layer. For a fusion that was not taken, the step
    that computes its first layer gets the reasons why no algorithm computes the fusion.

    measured: all layers and fusions. taken: the candidate of each step, by the name of its layer or
    fusion. forced: the algorithm that the user forces. why: as in Planned.
    """
    known = {node.layer.name: node for node in measured}
    fusions = [node for node in known.values() if node.layer.covers]
    fusion_of = {name: node.layer for node in fusions if node.layer.name in taken
                 for name in node.layer.covers}
    reasons: dict[str, dict[str, str]] = {}
    for fusion in fusions:
        name, covers = fusion.layer.name, fusion.layer.covers
        if name in taken:
            alone = sum(known[layer].least_cost for layer in covers if layer in known)
            reasons.setdefault(name, {})[LAYER_BY_LAYER] = _why_not_alone(
                alone, taken[name], forced, why)
            continue
        first = next(layer for layer in covers if layer in known)
        step = fusion_of[first].name if first in fusion_of else first
        row = reasons.setdefault(step, {})
        for algorithm, reason in fusion.reasons.items():
            row.setdefault(algorithm, reason)
        # the fastest candidate of an algorithm comes last, so that its reason replaces the others
        for candidate in sorted(fusion.candidates, key=lambda candidate: -candidate.cost):
            row[candidate.algorithm.name] = candidate.measured.failure or (
                f"{name}: {_why_not_at_once(fusion.layer, candidate, taken, fusion_of, why)}")
        row.pop(taken[step].algorithm.name, None)
    return reasons


def _why_not_alone(alone: float, taken: Candidate, forced: str | None, why: str) -> str:
    if taken.algorithm.name == forced:
        return f"{forced} is forced"
    if math.isinf(alone):
        return "no candidate of some layer works alone"
    return compared(alone, taken.cost, why)


def _why_not_at_once(fusion: Layer, candidate: Candidate, taken: Mapping[str, Candidate],
                     fusion_of: Mapping[str, Layer], why: str) -> str:
    for name in fusion.covers:
        if name in fusion_of:
            return f"{name} is computed in {fusion_of[name].name}"
    return compared(candidate.cost, sum(taken[name].cost for name in fusion.covers
                                        if name in taken), why)
