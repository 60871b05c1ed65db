"""The least time that the layers of a baseline plan take, from the times of candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gossamer.plan.choose.region_options import forced_regions
from gossamer.plan.policy import Policy
from gossamer.plan.program import MeasuredLayer

_LEAST_WEIGHT = 1e-6
"""Microseconds that a layer counts as where its share of a region is computed."""


class BaselineBounds:
    """The least times of the baseline plans of one network.

    measured: all layers and regions of the network, with their candidates.
    """

    def __init__(self, measured: Sequence[MeasuredLayer]) -> None:
        self._layers = {known.layer.name: _Times(known) for known in measured
                        if not known.layer.covers}
        self._regions = [(known.layer, _Times(known)) for known in measured if known.layer.covers]
        self._weights = {name: max(times.least_us, _LEAST_WEIGHT)
                         if math.isfinite(times.least_us) else 1.0
                         for name, times in self._layers.items()}

    def least_us(self, algorithm: str | None) -> float:
        """Returns the least sum of the times that the layers of a plan take, without changes of
        format.

        Each layer has the time of its fastest candidate alone, or a smaller share of a region. A
        region's time is shared among its layers in proportion to the times that they take alone,
        so that no choice of regions takes less than the sum of the least shares.

        algorithm: the algorithm that is taken wherever it can be; None for the plan that takes the
        dense algorithms only.
        """
        forced = self._forced(algorithm)
        least = {name: math.inf if name in forced else times.alone_us(algorithm)
                 for name, times in self._layers.items()}
        for region, times in self._regions:
            # a layer that the algorithm can compute, alone or in a region, is computed by it
            is_bound = any(name in forced or algorithm in self._layers[name].algorithms
                           for name in region.covers)
            time_us = (times.dense_us if algorithm is None else times.least_of.get(
                algorithm, math.inf) if is_bound else times.least_us)
            total = sum(self._weights[name] for name in region.covers)
            for name in region.covers:
                least[name] = min(least[name], time_us * self._weights[name] / total)
        return sum(least.values())

    def layers_of(self, algorithm: str) -> set[str]:
        """Returns the names of the layers that the plan of an algorithm computes by it, alone or in
        a region."""
        alone = {name for name, times in self._layers.items() if algorithm in times.least_of}
        return alone | self._forced(algorithm)

    def _forced(self, algorithm: str | None) -> set[str]:
        """Returns the names of the layers that a plan computes by its algorithm in some region."""
        if algorithm is None:
            return set()
        usable = {region.name: times.least_of.keys() for region, times in self._regions}
        return {name for region in forced_regions([region for region, _ in self._regions], usable,
                                                  Policy(only=algorithm))
                for name in region.covers}


class _Times:
    """The least times of a layer's or region's candidates.

    algorithms: the names of all algorithms that have candidates. least_of: for those that can be
    used the least time, by name. least_us, dense_us: the least of all candidates and of those that
    do not skip zeros.
    """

    def __init__(self, known: MeasuredLayer) -> None:
        self.algorithms = {candidate.algorithm.name for candidate in known.candidates}
        self.least_of: dict[str, float] = {}
        self.dense_us = math.inf
        for candidate in known.candidates:
            if candidate.is_usable:
                name = candidate.algorithm.name
                self.least_of[name] = min(self.least_of.get(name, math.inf), candidate.cost)
                if candidate.algorithm.dense:
                    self.dense_us = min(self.dense_us, candidate.cost)
        self.least_us = min(self.least_of.values(), default=math.inf)

    def alone_us(self, algorithm: str | None) -> float:
        """Returns the least time by a plan's algorithm where that can be used."""
        taken = self.dense_us if algorithm is None else self.least_of.get(algorithm, math.inf)
        return taken if math.isfinite(taken) else self.least_us
