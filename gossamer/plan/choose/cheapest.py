"""The cheapest candidates for a whole network, from the measurements of its layers' candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose.builder import LayerChoice, conversion_layer
from gossamer.plan.choose.elimination import GraphTooWideError
from gossamer.plan.choose.plan_assignment import AssignmentNode, NodeOption, minimise
from gossamer.plan.eligibility import eligibility
from gossamer.plan.program import Layer
from gossamer.plan.tune.tuner import Tuner, usable
from gossamer.tensor import Format, TensorSpec, default_format, default_spec

_SIMPLER: tuple[tuple[str, Callable[[TensorSpec], bool]], ...] = (
    ("CHWN", lambda spec: spec.layout == "CHWN"),
    ("float16", lambda spec: spec.dtype == "float16"),
    ("NHWC", lambda spec: spec.layout == "NHWC"),
)
"""Kinds of tensors that are left out, one after another, where a graph is too entangled for an
exact choice among all layouts. Each is a name and a test of a tensor's spec."""


@dataclass
class _LayerCandidates:
    """The candidates of a layer, the device on which they run, and for each algorithm that is not
    among them the reason."""

    layer: Layer
    device: Device
    reasons: dict[str, str]
    candidates: list[Candidate]


class Cheapest:
    """The plan assignment of least cost (see plan_assignment.py) among the candidates of a
    network's layers that compute the right numbers with the layers' own constants.

    fixed: the names of values that no layer writes. The other arguments are those of
    select.choose.
    """

    def __init__(self, layers: Sequence[Layer], specs: Mapping[str, TensorSpec],
                 fixed: Sequence[str], outputs: Sequence[str], device: Device, tuner: Tuner,
                 only: str | None, sparse_threshold: float | None,
                 less_precise: Collection[str] | None) -> None:
        self._specs = specs
        self._fixed = fixed
        self._outputs = outputs
        self._device = device
        self._tuner = tuner
        self._conversions: dict[tuple[TensorSpec, TensorSpec], float] = {}
        self._nodes: list[_LayerCandidates | Layer] = [
            layer if layer.problem is None
            else self._candidates_of(layer, only, sparse_threshold, less_precise)
            for layer in layers]

    def _candidates_of(self, layer: Layer, only: str | None, sparse_threshold: float | None,
                       less_precise: Collection[str] | None) -> _LayerCandidates:
        able, layer_device, reasons = eligibility(layer, self._device, only, sparse_threshold,
                                                  self._tuner.refusal_reason)
        candidates = list(self._tuner.measure(layer, able, layer_device))
        restricted = only is not None or sparse_threshold is not None
        if restricted and all(math.isinf(candidate.cost) for candidate in candidates):
            failures = {candidate.algorithm.name: candidate.measured.failure or ""
                        for candidate in candidates}
            able, layer_device, unrestricted_reasons = eligibility(
                layer, self._device, refusal_reason=self._tuner.refusal_reason)
            able = [algorithm for algorithm in able if algorithm.name not in failures]
            if able:
                candidates = list(self._tuner.measure(layer, able, layer_device))
                reasons = {**unrestricted_reasons, **failures}
        if less_precise is not None and layer.name not in less_precise:
            candidates = [
                candidate if candidate.variant.precision == "fp32" else candidate.with_exclusion(
                    "not in float32, which the tolerance asks for here")
                for candidate in candidates]
        return _LayerCandidates(layer, layer_device, reasons, candidates)

    def choices(self) -> dict[str, LayerChoice]:
        """Returns the choice for each layer by the layer's name."""
        while True:
            assigned = self._assigned()
            wrong = False
            for node, candidate in assigned:
                verified = self._tuner.verified(node.layer, candidate, node.device)
                if verified is not candidate:
                    node.candidates[node.candidates.index(candidate)] = verified
                    wrong = wrong or math.isinf(verified.cost)
            if not wrong:
                return {node.layer.name: _choice(candidate, node.candidates, node.device,
                                                 node.reasons)
                        for node, candidate in assigned}

    def _assigned(self) -> list[tuple[_LayerCandidates, Candidate]]:
        """Returns the candidate taken for each layer, with fewer layouts where the graph is too
        entangled for all."""
        for _, is_left_out in (("", None), *_SIMPLER):
            if is_left_out is not None:
                self._leave_out(is_left_out)
            try:
                return self._minimised()
            except GraphTooWideError as error:
                entangled = error
        raise UnsupportedError(str(entangled))

    def _leave_out(self, is_left_out: Callable[[TensorSpec], bool]) -> None:
        for node in self._nodes:
            if isinstance(node, Layer):
                continue
            simpler = [
                candidate.with_exclusion("the network's graph is too entangled for so many layouts")
                if any(map(is_left_out, (*candidate.variant.inputs, *candidate.variant.outputs)))
                else candidate for candidate in node.candidates]
            if any(math.isfinite(candidate.cost) for candidate in simpler):
                node.candidates = simpler

    def _minimised(self) -> list[tuple[_LayerCandidates, Candidate]]:
        """Returns the candidate taken for each layer. Raises GraphTooWideError."""
        nodes = []
        candidates: list[list[Candidate]] = []
        for node in self._nodes:
            if isinstance(node, Layer):
                # a reshape leaves the memory as it is, which has to be row-major
                source, target = (self._specs[name].shape
                                  for name in (node.inputs[0], node.outputs[0]))
                options = tuple(NodeOption(0.0, (default_format(source, dtype),),
                                           (default_format(target, dtype),))
                                for dtype in self._dtypes(node.inputs[0]))
                nodes.append(AssignmentNode(options, tuple(node.inputs), tuple(node.outputs)))
                candidates.append([])
                continue
            candidates.append(usable(node.layer, node.candidates, node.device))
            options = tuple(NodeOption(candidate.cost, tuple(map(_format, candidate.variant.inputs)),
                                       tuple(map(_format, candidate.variant.outputs)))
                            for candidate in candidates[-1])
            nodes.append(AssignmentNode(options, tuple(node.layer.inputs),
                                    tuple(node.layer.outputs)))
        assignment = minimise(
            nodes, {name: _format(self._specs[name]) for name in self._fixed}, self._conversion,
            required={name: _format(self._specs[name]) for name in self._outputs})
        return [(node, node_candidates[option]) for node, node_candidates, option
                in zip(self._nodes, candidates, assignment.options, strict=True)
                if isinstance(node, _LayerCandidates)]

    def _conversion(self, value: str, source_format: Hashable, target_format: Hashable) -> float:
        """Returns the cost of copying a value from one format to another, in microseconds."""
        assert isinstance(source_format, Format) and isinstance(target_format, Format)
        shape = self._specs[value].shape
        source, target = TensorSpec(shape, source_format), TensorSpec(shape, target_format)
        if (source, target) not in self._conversions:
            self._conversions[source, target] = self._measured(value, source, target)
        return self._conversions[source, target]

    def _measured(self, value: str, source: TensorSpec, target: TensorSpec) -> float:
        layer = conversion_layer(value, f"{value} as {target.format}", source, target)
        able, layer_device, _ = eligibility(layer, self._device)
        return min(candidate.cost for candidate in self._tuner.measure(layer, able, layer_device))

    def _dtypes(self, value: str) -> tuple[str, ...]:
        """Returns the dtypes in which a value of the network may be stored."""
        dtype = self._specs[value].dtype
        may_be_half = dtype == "float32" and self._tuner.precision == "fp16"
        return (dtype, "float16") if may_be_half else (dtype,)


def best_alone(layer: Layer, device: Device, tuner: Tuner) -> LayerChoice:
    """Returns the fastest candidate of a change of layout, whose layouts are fixed."""
    able, layer_device, reasons = eligibility(layer, device)
    candidates = tuner.measure(layer, able, layer_device)
    fastest = min(usable(layer, candidates, layer_device), key=lambda candidate: candidate.cost)
    return _choice(fastest, candidates, layer_device, reasons)


def _format(spec: TensorSpec) -> Format:
    """Returns the format by which plan assignments tell specs apart: the default one for all
    specs that lie in memory as it does."""
    if spec.format.is_packed:
        return spec.format
    default = default_spec(spec.shape, spec.dtype)
    return default.format if spec.same_memory(default) else spec.format


def _choice(taken: Candidate, candidates: Sequence[Candidate], layer_device: Device,
            reasons: Mapping[str, str]) -> LayerChoice:
    """Returns the choice of a candidate, with the reason why each other algorithm was not taken:
    that of its best candidate."""
    rejected = dict(reasons)
    for name in dict.fromkeys(candidate.algorithm.name for candidate in candidates):
        if name != taken.algorithm.name:
            best = min((candidate for candidate in candidates
                        if candidate.algorithm.name == name),
                       key=lambda candidate: candidate.cost)
            rejected[name] = best.reason(taken)
    return LayerChoice(taken.algorithm, taken.variant, layer_device, rejected, candidates)
