"""Which regions of a network are measured together with its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

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
    region. regions: the regions in the order in which they are asked for.
    """

    def __init__(self, regions: Sequence[Layer], layers: Mapping[str, Layer], device: Device,
                 allowed: Callable[[Layer], Sequence[Algorithm]]) -> None:
        self.regions = sorted(regions, key=lambda region: len(region.covers), reverse=True)
        self._layers = layers
        self._device = device
        self._allowed = allowed
        self._requested: dict[str, Layer] = {}

    def largest(self, regions: Sequence[Layer]) -> list[Request]:
        """Returns the requests for some of `regions`, without those that are within another region
        that was requested. It is called for one part of `regions` after another, in their order.
        """
        return self._outermost([region for region in regions
                                if not self._is_within(region, self._requested.values())])

    def within(self, best_us: Callable[[Layer], float]) -> list[Request]:
        """Returns the requests for the largest regions that were not requested yet, without those
        within a requested region that leaves its parts out. It may be called again when more times
        are known."""
        fast = [region for region in self._requested.values() if leaves_parts_out(
            best_us(region), sum(best_us(self._layers[name]) for name in region.covers))]
        return self._outermost([region for region in self.regions
                                if region.name not in self._requested
                                and not self._is_within(region, fast)])

    @staticmethod
    def _is_within(region: Layer, others: Iterable[Layer]) -> bool:
        return any(set(region.covers) < set(other.covers) for other in others)

    def _outermost(self, regions: Sequence[Layer]) -> list[Request]:
        found: list[Request] = []
        for region in regions:
            if not self._is_within(region, (request.layer for request in found)) and (
                    allowed := self._allowed(region)):
                found.append(Request(region, allowed, self._device))
        self._requested |= {request.layer.name: request.layer for request in found}
        return found
