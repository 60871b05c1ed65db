"""Which regions of a network are measured together with its layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm
from gossamer.plan.program import Layer
from gossamer.plan.tune.measures import Request

_PARTS_LEFT_OUT = 0.8
"""Ratio of a region's time to that of its layers alone below which none of its parts is measured as
a region of its own."""


def leaves_parts_out(region_us: float, alone_us: float) -> bool:
    """Returns whether a region is so much faster than its layers alone that none of its parts is
    measured as a region of its own."""
    return region_us < _PARTS_LEFT_OUT * alone_us


class RegionRequests:
    """The requests for a network's regions: at first of the largest, then of those within them.

    layers: the network's layers by name. allowed: returns the algorithms that may compute a
    region.
    """

    def __init__(self, regions: Sequence[Layer], layers: Mapping[str, Layer], device: Device,
                 allowed: Callable[[Layer], Sequence[Algorithm]]) -> None:
        self._regions = sorted(regions, key=lambda region: len(region.covers), reverse=True)
        self._layers = layers
        self._device = device
        self._allowed = allowed
        self._requested: dict[str, Layer] = {}

    def largest(self, best_us: Callable[[Layer], float]) -> list[Request]:
        """Returns those of each region that is not within another one that may be computed."""
        return self._outermost(self._regions)

    def within(self, best_us: Callable[[Layer], float]) -> list[Request]:
        """Returns those of the largest regions within the former ones, unless one of these around
        them leaves them out or has no time yet."""
        fast = [region for region in self._requested.values()
                if math.isinf(best_us(region)) or leaves_parts_out(
                    best_us(region), sum(best_us(self._layers[name]) for name in region.covers))]
        return self._outermost([
            region for region in self._regions
            if region.name not in self._requested and not any(
                set(region.covers) < set(other.covers) for other in fast)])

    def _outermost(self, regions: Sequence[Layer]) -> list[Request]:
        found: list[Request] = []
        for region in regions:
            if not any(set(region.covers) < set(request.layer.covers) for request in found) and (
                    allowed := self._allowed(region)):
                found.append(Request(region, allowed, self._device))
        self._requested |= {request.layer.name: request.layer for request in found}
        return found
