"""The least time that the layers of a baseline plan take, from the times of candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gossamer.plan.candidate import Candidate
from gossamer.plan.choose.region_options import forced_regions
from gossamer.plan.policy import Policy
from gossamer.plan.program import MeasuredLayer

_LEAST_WEIGHT = 1e-6
"""Microseconds that a layer counts as where its share of a region is computed."""


def least_us(measured: Sequence[MeasuredLayer], algorithm: str | None) -> float:
    """Returns the least sum of the times that the layers of a baseline plan take, without changes
    of format.

    Each layer has the time of its fastest candidate alone, or a smaller share of a region. A
    region's time is shared among its layers in proportion to the times that they take alone, so
    that no choice of regions takes less than the sum of the least shares.

    measured: all layers and regions of the network, with their candidates. algorithm: the algorithm
    that is taken wherever it can be; None for the plan that takes the dense algorithms only.
    """
    layers = {known.layer.name: known for known in measured if not known.layer.covers}
    regions = [known for known in measured if known.layer.covers]
    forced = _forced(regions, algorithm)
    weights = {name: max(_least(known.candidates), _LEAST_WEIGHT)
               for name, known in layers.items()}
    weights = {name: weight if math.isfinite(weight) else 1.0 for name, weight in weights.items()}
    least = {name: math.inf if name in forced else _least_alone(known, algorithm)
             for name, known in layers.items()}
    for region in regions:
        covers = region.layer.covers
        time_us = _least([candidate for candidate in region.candidates if _is_allowed(
            candidate, [layers[name] for name in covers], algorithm,
            is_forced=not forced.isdisjoint(covers))])
        total = sum(weights[name] for name in covers)
        for name in covers:
            least[name] = min(least[name], time_us * weights[name] / total)
    return sum(least.values())


def _forced(regions: Sequence[MeasuredLayer], algorithm: str | None) -> set[str]:
    """Returns the names of the layers that a plan computes by its algorithm in some region."""
    if algorithm is None:
        return set()
    usable = {known.layer.name: {candidate.algorithm.name for candidate in known.candidates
                                 if math.isfinite(candidate.cost)} for known in regions}
    return {name for region in forced_regions([known.layer for known in regions], usable,
                                              Policy(only=algorithm))
            for name in region.covers}


def _is_allowed(candidate: Candidate, layers: Sequence[MeasuredLayer], algorithm: str | None, *,
                is_forced: bool) -> bool:
    """Returns whether a plan may compute layers in one step by a candidate. is_forced: whether one
    of them is computed by the plan's algorithm in some region."""
    if algorithm is None:
        return candidate.algorithm.dense
    return candidate.algorithm.name == algorithm or not (is_forced or any(
        alone.algorithm.name == algorithm for layer in layers for alone in layer.candidates))


def _least_alone(known: MeasuredLayer, algorithm: str | None) -> float:
    """Returns the least time of a layer alone, by the plan's algorithm where that can be used."""
    taken = _least([candidate for candidate in known.candidates if (
        candidate.algorithm.dense if algorithm is None else candidate.algorithm.name == algorithm)])
    return taken if math.isfinite(taken) else _least(known.candidates)


def _least(candidates: Sequence[Candidate]) -> float:
    return min((candidate.cost for candidate in candidates), default=math.inf)
