"""Why steps are not computed by something else, as reports say it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from gossamer.plan.candidate import Candidate, compared
from gossamer.plan.program import Layer, MeasuredLayer

LAYER_BY_LAYER = "layer by layer"
"""The name, beside those of algorithms, under which a region says why it is not computed so."""


def region_reasons(measured: Iterable[MeasuredLayer], taken: Mapping[str, Candidate], *,
                   forced: str | None = None, why: str = "") -> dict[str, dict[str, str]]:
    """Returns for steps, by the name of their layer or region, the reasons that regions give: for a
    region why it is not computed layer by layer, and for the step that has the first layer of
    another region why algorithms do not compute that one.

    measured: all layers and regions. taken: the candidate of each step, by the name of its layer or
    region. forced: the algorithm that the user forces. why: that of Comparison, where the plan is
    not the measured choice.
    """
    known = {node.layer.name: node for node in measured}
    regions = [node for node in known.values() if node.layer.covers]
    region_of = {name: node.layer for node in regions if node.layer.name in taken
                 for name in node.layer.covers}
    reasons: dict[str, dict[str, str]] = {}
    for region in regions:
        name, covers = region.layer.name, region.layer.covers
        if name in taken:
            alone = sum(known[layer].least_cost for layer in covers if layer in known)
            reasons.setdefault(name, {})[LAYER_BY_LAYER] = _why_not_alone(
                alone, taken[name], forced, why)
            continue
        first = next(layer for layer in covers if layer in known)
        step = region_of[first].name if first in region_of else first
        row = reasons.setdefault(step, {})
        for algorithm, reason in region.reasons.items():
            row.setdefault(algorithm, reason)
        # the fastest candidate of an algorithm comes last and stays
        for candidate in sorted(region.candidates, key=lambda candidate: -candidate.cost):
            row[candidate.algorithm.name] = candidate.measured.failure or (
                f"{name}: {_why_not_at_once(region.layer, candidate, taken, region_of, why)}")
        row.pop(taken[step].algorithm.name, None)
    return reasons


def _why_not_alone(alone: float, taken: Candidate, forced: str | None, why: str) -> str:
    if taken.algorithm.name == forced:
        return f"{forced} is forced"
    if math.isinf(alone):
        return "no candidate of some layer works alone"
    return compared(alone, taken.cost, why)


def _why_not_at_once(region: Layer, candidate: Candidate, taken: Mapping[str, Candidate],
                     region_of: Mapping[str, Layer], why: str) -> str:
    for name in region.covers:
        if name in region_of:
            return f"{name} is computed in {region_of[name].name}"
    return compared(candidate.cost, sum(taken[name].cost for name in region.covers
                                        if name in taken), why)
