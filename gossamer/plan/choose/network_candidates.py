"""The candidates of a network's layers and regions, measured in one queue where that is of use."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose.region_options import region_eligibility
from gossamer.plan.choose.region_requests import RegionRequests, leaves_parts_out
from gossamer.plan.eligibility import Refusal, able_on, eligibility
from gossamer.plan.in_place import in_place_candidates, layers_in_place
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer, MeasuredLayer
from gossamer.plan.tune.measures import Further, Request, When
from gossamer.plan.tune.tuner import Tuner

_PARTS = 8
"""Parts at most in which a network's regions are listed. Between two of them other candidates are
begun and measured."""


class NetworkCandidates:
    """The candidates of a network's layers and of those regions that may be computed as one.

    The arguments are those of select.Chooser, and regions those of the layers that may be computed
    as one. of_layers: the layers in their order, those that compute something with their
    candidates. of_regions: the regions with their candidates.
    """

    def __init__(self, layers: Sequence[Layer], regions: Sequence[Layer], device: Device,
                 tuner: Tuner, policy: Policy, less_precise: Collection[str] | None) -> None:
        self._device = device
        self._tuner = tuner
        self._policy = policy
        self._less_precise = less_precise
        self._layers = {layer.name: layer for layer in layers}
        self._measure_together([layer for layer in layers if layer.problem is not None], regions)
        self.of_layers: list[MeasuredLayer | Layer] = [
            layer if layer.problem is None else self._candidates_of(layer) for layer in layers]
        in_place = layers_in_place(layers)
        for node in self.of_layers:
            if isinstance(node, MeasuredLayer) and node.layer.name in in_place:
                node.candidates = in_place_candidates(node, in_place, self.of_layers, device)
        self.of_regions = self._measured_regions(regions)

    def _measure_together(self, layers: Sequence[Layer], regions: Sequence[Layer]) -> None:
        """Measures the candidates of all layers in one queue, at first those of gossamer's own
        dense algorithms, while the libraries of vendors are still asked what they offer. Regions
        are among them where many candidates are built at once, as what one of them saves decides
        whether its layers are of interest."""
        restricted = bool(self._policy.only is not None or self._policy.force
                          or self._policy.sparse_threshold is not None)
        of_all = partial(self._requests, layers, self._tuner.refusal_reason)
        first: list[Request] = []
        further: list[Further] = []
        if not self._tuner.list_candidates(layers, self._device):
            first = of_all()
        else:
            further.append(Further(When.LISTED, lambda best_us: of_all()))
            if not restricted:
                first = [request for request in self._requests(layers, self._refusal_of_own)
                         if request.device is self._device]
        if self._device.builds_side_by_side and not restricted:
            of_regions = RegionRequests(regions, self._layers, self._device,
                                        lambda region: self._region_eligibility(
                                            region, self._tuner.refusal_reason)[0])
            # the tiles of some regions after others are listed, so that compilers do not wait; what
            # is within others is looked at again at the end, as layers may have become faster
            further = [*(Further(When.BUILDING, partial(_largest, of_regions, part))
                         for part in _in_parts(of_regions.regions)), *further,
                       *(Further(when, of_regions.within) for when in (When.TIMED, When.LAST))]
        self._tuner.measure_all(first, further)

    def _requests(self, layers: Sequence[Layer], refusal: Refusal) -> list[Request]:
        """Returns what may compute each layer. refusal: returns why an algorithm may not."""
        requests = []
        for layer in layers:
            able, layer_device, _ = eligibility(layer, self._device, self._policy, refusal)
            requests.append(Request(layer, able, layer_device))
        return requests

    def _refusal_of_own(self, algorithm: Algorithm, problem: Problem,
                        device: Device) -> str | None:
        if device is self._device and (algorithm.vendor or not algorithm.dense):
            return "is measured later"
        return self._tuner.refusal_reason(algorithm, problem, device)

    def _candidates_of(self, layer: Layer) -> MeasuredLayer:
        able, layer_device, reasons = eligibility(layer, self._device, self._policy,
                                                  self._tuner.refusal_reason)
        candidates = list(self._tuner.measure(layer, able, layer_device))
        policy = self._policy
        restricted = policy.only is not None or policy.sparse_threshold is not None
        if restricted and all(math.isinf(candidate.cost) for candidate in candidates):
            failures = {candidate.algorithm.name: candidate.measured.failure or ""
                        for candidate in candidates}
            able, layer_device, unrestricted_reasons = eligibility(
                layer, self._device, refusal_reason=self._tuner.refusal_reason)
            able = [algorithm for algorithm in able if algorithm.name not in failures]
            if able:
                candidates = list(self._tuner.measure(layer, able, layer_device))
                reasons = {**unrestricted_reasons, **failures}
        return MeasuredLayer(layer, layer_device, self._precise(layer, candidates), reasons)

    def _measured_regions(self, regions: Sequence[Layer]) -> list[MeasuredLayer]:
        """Returns the regions with their candidates. Those of as many layers are measured in one
        queue, the largest first; one within a larger one that is clearly faster than its layers
        alone is not measured."""
        alone = {region.name: sum(node.least_cost for node in self.of_layers
                                  if isinstance(node, MeasuredLayer)
                                  and node.layer.name in region.covers) for region in regions}
        measured: dict[str, MeasuredLayer] = {}
        for size in sorted({len(region.covers) for region in regions}, reverse=True):
            fast = [node.layer for node in measured.values()
                    if leaves_parts_out(node.least_cost, alone[node.layer.name])]
            found = []
            for region in regions:
                if len(region.covers) == size:
                    larger = next((other for other in fast
                                   if set(region.covers) < set(other.covers)), None)
                    # the configs of what is not measured need not be listed
                    allowed, reasons = self._region_eligibility(
                        region, _unsupported if larger else self._tuner.refusal_reason)
                    if larger is not None:
                        reasons |= {algorithm.name: f"{larger.name} is faster with more layers"
                                    for algorithm in allowed}
                        allowed = []
                    found.append((region, allowed, reasons))
            self._tuner.measure_all([Request(region, allowed, self._device, alone[region.name])
                                     for region, allowed, _ in found if allowed])
            for region, allowed, reasons in found:
                candidates = list(self._tuner.measure(region, allowed, self._device)
                                  if allowed else [])
                measured[region.name] = MeasuredLayer(
                    region, self._device, self._precise(region, candidates), reasons)
        return [measured[region.name] for region in regions]

    def _region_eligibility(self, region: Layer, refusal: Refusal
                            ) -> tuple[list[Algorithm], dict[str, str]]:
        layers = [self._layers[name] for name in region.covers]
        taken_alone = self._policy.only is not None and any(
            self._policy.only in {algorithm.name for algorithm in able_on(
                layer.problem, self._device, self._tuner.refusal_reason)[0]}
            for layer in layers if layer.problem is not None)
        return region_eligibility(region, layers, self._device, self._policy, refusal, taken_alone)

    def _precise(self, layer: Layer, candidates: list[Candidate]) -> list[Candidate]:
        """Returns the candidates, of which those are excluded that are less precise than the layer
        may be."""
        if self._less_precise is None or layer.name in self._less_precise:
            return candidates
        return [candidate if candidate.variant.precision == "fp32" else candidate.with_exclusion(
            "not in float32, which the tolerance asks for here") for candidate in candidates]


def _unsupported(algorithm: Algorithm, problem: Problem, device: Device) -> str | None:
    return algorithm.supports(problem, device)


def _in_parts(regions: Sequence[Layer]) -> list[Sequence[Layer]]:
    """Returns the regions in at most _PARTS parts of equal length."""
    count = max(1, math.ceil(len(regions) / _PARTS))
    return [regions[first:first + count] for first in range(0, len(regions), count)]


def _largest(of_regions: RegionRequests, regions: Sequence[Layer],
             best_us: Callable[[Layer], float]) -> Sequence[Request]:
    """Returns the requests for those of some regions that are not within larger ones, whatever
    times are known."""
    return of_regions.largest(regions)
