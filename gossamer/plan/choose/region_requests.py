"""Which regions of a network are measured together with its layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm
from gossamer.plan.program import Layer
from gossamer.plan.tune.measures import BestUs, Request

_PARTS_LEFT_OUT = 0.8
"""Ratio of a region's time to that of its layers alone below which none of its parts is measured as
a region of its own."""


class RegionRequests:
    """The requests for a network's regions: at first of the largest, then of those within them.

    layers: the network's layers by name.
    allowed: returns the algorithms that may compute a region.
    """

    def __init__(self, regions: Sequence[Layer], layers: Mapping[str, Layer], device: Device,
                 allowed: Callable[[Layer], Sequence[Algorithm]]) -> None:
        self._regions = sorted(regions, key=lambda region: len(region.covers), reverse=True)
        self._layers = layers
        self._device = device
        self._allowed = allowed
        self._requested: dict[str, Layer] = {}
        self._fast: list[Layer] = []
        """The regions that leave their parts out."""

    def in_parts(self, count: int) -> list[Sequence[Layer]]:
        """Returns the regions in at most `count` parts of equal length, the largest regions first.
        """
        length = max(1, math.ceil(len(self._regions) / count))
        return [self._regions[first:first + length]
                for first in range(0, len(self._regions), length)]

    def largest(self, regions: Sequence[Layer]) -> list[Request]:
        """Returns the requests for some regions, without those that are within another one that was
        requested. It is called for one part of the regions after another, in their order."""
        found: list[Request] = []
        for region in regions:
            if not _larger(region, self._requested.values()):
                found += self._request(region)
        return found

    def within(self, best_us: BestUs) -> list[Request]:
        """Returns the requests for the regions that were not requested yet, without those within
        one that leaves its parts out."""
        self._fast = [region for region in self._requested.values()
                      if best_us(region) < _PARTS_LEFT_OUT * sum(
                          best_us(self._layers[name]) for name in region.covers)]
        return [request for region in self._regions if region.name not in self._requested
                and not _larger(region, self._fast) for request in self._request(region)]

    def left_to(self, region: Layer) -> Layer | None:
        """Returns the region to which one is left that was not requested; None where it was
        requested, or nothing may compute it."""
        return None if region.name in self._requested else _larger(region, self._fast)

    def _request(self, region: Layer) -> list[Request]:
        allowed = self._allowed(region)
        if not allowed:
            return []
        self._requested[region.name] = region
        return [Request(region, allowed, self._device)]


def _larger(region: Layer, others: Iterable[Layer]) -> Layer | None:
    """Returns a region that computes all layers of one, and more; None where there is none."""
    return next((other for other in others if set(region.covers) < set(other.covers)), None)
