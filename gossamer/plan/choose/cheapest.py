"""The cheapest candidates for a whole network, from the measurements of its layers' candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.facts import REAL
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.ops.packed import formats_for
from gossamer.plan.candidate import Candidate, why_not_others
from gossamer.plan.choose.builder import LayerChoice, is_packed_alike
from gossamer.plan.choose.conversion_costs import Conversion, ConversionCosts
from gossamer.plan.choose.elimination import GraphTooWideError
from gossamer.plan.choose.plan_assignment import (
    AssignmentNode,
    NoAssignmentError,
    NodeOption,
    minimise,
)
from gossamer.plan.choose.reasons import region_reasons
from gossamer.plan.choose.region_options import (
    RegionOption,
    forced_regions,
    region_eligibility,
    region_options,
)
from gossamer.plan.choose.region_requests import RegionRequests, leaves_parts_out
from gossamer.plan.eligibility import Refusal, able_on, eligibility
from gossamer.plan.in_place import in_place_candidates, layers_in_place
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer, MeasuredLayer
from gossamer.plan.tune.measures import Further, Measures, Request, When, usable
from gossamer.tensor import ROW_MAJOR, Format, TensorSpec, default_format, memory_format

_LEFT_OUT_FIRST: tuple[Callable[[Format], bool], ...] = (
    lambda format_: format_.layout not in ("NCHW", "NHWC", ROW_MAJOR),
    lambda format_: format_.dtype == "float16",
    lambda format_: format_.layout == "NHWC",
)
"""Tests of formats that are left out, one after another, where a graph is too entangled for an
exact choice among all formats."""
_ENTANGLED = "the network's graph is too entangled for so many formats"

_Option = tuple[NodeOption, MeasuredLayer | None, Candidate | None]
"""An option of a node, with the layer or region and the candidate that it means."""


@dataclass(frozen=True)
class Choices:
    """The choices for a network.

    by_layer: the choice for each layer and each region that is computed as one, by its name.
    regions: the regions that are computed as one. measured: all layers and regions with the
    candidates that were measured for them.
    """

    by_layer: dict[str, LayerChoice]
    regions: list[Layer]
    measured: list[MeasuredLayer]


class Cheapest:
    """The plan assignment of least cost (see plan_assignment.py) among the candidates of a
    network's layers and regions that compute the right numbers with the layers' own constants.

    regions: those of the layers that may be computed as one. fixed: the names of values that no
    layer writes. The other arguments are those of select.choose.
    """

    def __init__(self, layers: Sequence[Layer], regions: Sequence[Layer],
                 specs: Mapping[str, TensorSpec], fixed: Sequence[str], outputs: Sequence[str],
                 device: Device, tuner: Measures, policy: Policy,
                 less_precise: Collection[str] | None) -> None:
        self._specs = specs
        self._fixed = fixed
        self._outputs = outputs
        self._device = device
        self._tuner = tuner
        self._policy = policy
        self._less_precise = less_precise
        self._conversion_cost = ConversionCosts(layers, specs, device, tuner)
        self._layers = {layer.name: layer for layer in layers}
        self._measure_together([layer for layer in layers if layer.problem is not None], regions)
        self._nodes: list[MeasuredLayer | Layer] = [
            layer if layer.problem is None else self._candidates_of(layer) for layer in layers]
        in_place = layers_in_place(layers)
        for node in self._nodes:
            if isinstance(node, MeasuredLayer) and node.layer.name in in_place:
                node.candidates = in_place_candidates(node, in_place, self._nodes, device)
        self._conversions: set[Conversion] = set()
        self._regions = self._measured_regions(regions)

    def _measure_together(self, layers: Sequence[Layer], regions: Sequence[Layer]) -> None:
        """Measures the candidates of all layers in one queue, at first those of gossamer's own
        dense algorithms, while the libraries of vendors are still asked what they offer. Regions
        are among them where many candidates are built at once, as what one of them saves decides
        whether its layers are of interest."""
        restricted = bool(self._policy.only is not None or self._policy.force
                          or self._policy.zeros_threshold is not None)
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
            # the tiles of one region after another are listed, so that compilers do not wait; what
            # is within others is looked at again at the end, as layers may have become faster
            further = [*(Further(When.BUILDING, partial(_largest, of_regions, region))
                         for region in of_regions.regions), *further,
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
        restricted = policy.only is not None or policy.zeros_threshold is not None
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
        alone = {region.name: sum(node.least_cost for node in self._nodes
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

    def choices(self) -> Choices:
        """Returns the choice for each layer, and the regions that are computed as one."""
        while True:
            assigned = self._assigned()
            # an estimate is the least that a conversion can cost, so that an assignment without
            # estimates is the cheapest of all
            if self._conversion_cost.measure_estimated(self._conversions):
                continue
            self._tuner.verify((node.layer, candidate, node.device)
                               for node, candidate in assigned)
            wrong = False
            for node, candidate in assigned:
                verified = self._tuner.verified(node.layer, candidate, node.device)
                if verified is not candidate:
                    node.candidates[node.candidates.index(candidate)] = verified
                    wrong = wrong or math.isinf(verified.cost)
            if not wrong:
                return self._chosen(assigned)

    def _chosen(self, assigned: Sequence[tuple[MeasuredLayer, Candidate]]) -> Choices:
        measured = [node for node in (*self._nodes, *self._regions)
                    if isinstance(node, MeasuredLayer)]
        reasons = region_reasons(measured, {node.layer.name: candidate
                                            for node, candidate in assigned},
                                 forced=self._policy.only)
        return Choices(
            {node.layer.name: _choice(candidate, node.candidates, node.device,
                                      {**node.reasons, **reasons.get(node.layer.name, {})})
             for node, candidate in assigned},
            [node.layer for node, _ in assigned if node.layer.covers], measured)

    def _assigned(self) -> list[tuple[MeasuredLayer, Candidate]]:
        """Returns the candidate taken for each layer or region, with fewer formats where the graph
        is too entangled for all."""
        try:
            return self._minimised()
        except GraphTooWideError as error:
            entangled = error
        for region in self._regions:
            region.candidates = [candidate.with_exclusion(_ENTANGLED)
                                 for candidate in region.candidates]
        for is_left_out in (lambda format_: False, *_LEFT_OUT_FIRST):
            self._leave_out(is_left_out)
            try:
                return self._minimised()
            except GraphTooWideError as error:
                entangled = error
        raise UnsupportedError(str(entangled))

    def _leave_out(self, is_left_out: Callable[[Format], bool]) -> None:
        for node in self._nodes:
            if isinstance(node, Layer):
                continue
            simpler = [
                candidate.with_exclusion(_ENTANGLED)
                if any(is_left_out(spec.format)
                       for spec in (*candidate.variant.inputs, *candidate.variant.outputs))
                else candidate for candidate in node.candidates]
            if any(candidate.is_usable for candidate in simpler):
                node.candidates = simpler

    def _minimised(self) -> list[tuple[MeasuredLayer, Candidate]]:
        """Returns the candidate taken for each layer or region. Raises GraphTooWideError, and
        UnsupportedError where no formats fit together."""
        options = self._options()
        nodes = []
        for node, node_options in zip(self._nodes, options, strict=True):
            layer = node if isinstance(node, Layer) else node.layer
            nodes.append(AssignmentNode(tuple(option for option, _, _ in node_options),
                                        tuple(layer.inputs), tuple(layer.outputs)))
        fixed, required = ({name: memory_format(self._specs[name]) for name in names}
                           for names in (self._fixed, self._outputs))
        try:
            assignment = minimise(nodes, fixed, self._conversion_cost, required=required)
        except NoAssignmentError as error:
            forced = "" if self._policy.only is None else f"; leave only={self._policy.only!r} out"
            raise UnsupportedError(f"{self._device.name}: {error}{forced}") from None
        self._conversions = _conversions(nodes, assignment.options, fixed, required)
        taken = [node_options[index] for node_options, index
                 in zip(options, assignment.options, strict=True)]
        # the layers of a region have the same candidate
        distinct = {id(node): (node, candidate) for _, node, candidate in taken
                    if node is not None and candidate is not None}
        return list(distinct.values())

    def _options(self) -> list[list[_Option]]:
        """Returns the options of every node: those of the layer alone, then those of regions."""
        usable_of = {node.layer.name: [candidate for candidate in node.candidates
                                       if candidate.is_usable]
                     for node in self._regions}
        region_nodes = {node.layer.name: node for node in self._regions}
        of_regions: dict[str, list[RegionOption]] = {}
        for region in (node.layer for node in self._regions):
            layers = [self._layers[name] for name in region.covers]
            for name, added in region_options(region, layers, usable_of[region.name]).items():
                of_regions.setdefault(name, []).extend(added)
        usable_names = {name: {candidate.algorithm.name for candidate in candidates}
                        for name, candidates in usable_of.items()}
        forced = {name for region in forced_regions([node.layer for node in self._regions],
                                                    usable_names, self._policy)
                  for name in region.covers}
        result: list[list[_Option]] = []
        for node in self._nodes:
            if isinstance(node, Layer):
                result.append([(option, None, None) for option in self._reshapes(node)])
                continue
            alone: list[_Option] = [] if node.layer.name in forced else [
                (NodeOption(candidate.cost, *candidate.formats), node, candidate)
                for candidate in self._usable(node, of_regions)]
            result.append(alone + [
                (option.option, region_nodes[option.region.name], option.candidate)
                for option in of_regions.get(node.layer.name, ())
                if node.layer.name not in forced
                or option.candidate.algorithm.name == self._policy.only])
        return result

    @staticmethod
    def _usable(node: MeasuredLayer,
                of_regions: Mapping[str, Sequence[RegionOption]]) -> list[Candidate]:
        """Returns the candidates of a layer that are not excluded. Raises GossamerError with the
        reasons where there are none, and no region has the layer."""
        if node.least_cost == math.inf and of_regions.get(node.layer.name):
            return []
        return usable(node.layer, node.candidates, node.device)

    def _reshapes(self, layer: Layer) -> list[NodeOption]:
        """Returns the options of a reshape, which leaves the memory as it is: that has to be
        row-major, or packed where both shapes are packed alike."""
        source, target = (self._specs[name].shape for name in (layer.inputs[0], layer.outputs[0]))
        options = [(default_format(source, dtype), default_format(target, dtype))
                   for dtype in self._dtypes(layer.inputs[0])]
        if is_packed_alike(source, target):
            options += [(packed, packed) for packed in formats_for(
                layer.facts.get(layer.outputs[0], REAL))]
        return [NodeOption(0.0, (needs,), (gives,)) for needs, gives in options]

    def _dtypes(self, value: str) -> tuple[str, ...]:
        """Returns the dtypes in which a value of the network may be stored."""
        dtype = self._specs[value].dtype
        may_be_half = dtype == "float32" and self._tuner.precision == "fp16"
        return (dtype, "float16") if may_be_half else (dtype,)


def _conversions(nodes: Sequence[AssignmentNode], taken: Sequence[int],
                 fixed: Mapping[str, Format], required: Mapping[str, Format]) -> set[Conversion]:
    """Returns the conversions of a plan assignment. taken: the number of each node's option."""
    options = [node.options[index] for node, index in zip(nodes, taken, strict=True)]
    given: dict[str, Hashable] = {**fixed}
    for node, option in zip(nodes, options, strict=True):
        given.update(zip(node.outputs, option.gives, strict=True))
    needs = [(name, need) for node, option in zip(nodes, options, strict=True)
             for name, need in zip(node.inputs, option.needs, strict=True)]
    return {(name, given[name], need) for name, need in (*needs, *required.items())
            if given[name] != need}


def _unsupported(algorithm: Algorithm, problem: Problem, device: Device) -> str | None:
    return algorithm.supports(problem, device)


def _largest(of_regions: RegionRequests, region: Layer,
             best_us: Callable[[Layer], float]) -> Sequence[Request]:
    """Returns the request for a region that is not within a larger one, whatever times are known.
    """
    return of_regions.largest(region)


def best_alone(layer: Layer, device: Device, tuner: Measures) -> LayerChoice:
    """Returns the fastest candidate of a change of layout, whose layouts are fixed."""
    able, layer_device, reasons = eligibility(layer, device)
    candidates = tuner.measure(layer, able, layer_device)
    fastest = min(usable(layer, candidates, layer_device), key=lambda candidate: candidate.cost)
    return _choice(fastest, candidates, layer_device, reasons)


def _choice(taken: Candidate, candidates: Sequence[Candidate], layer_device: Device,
            reasons: Mapping[str, str]) -> LayerChoice:
    """Returns the choice of a candidate, with the reason why each other algorithm was not taken."""
    rejected = {**reasons, **why_not_others(candidates, taken)}
    return LayerChoice(taken.algorithm, taken.variant, layer_device, rejected, candidates)
