"""The planning table: candidates of layers and fusions, and conversion costs.

The candidates are measured together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import starmap

from gossamer.device.base import Device
from gossamer.facts import REAL, ValueFacts
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.ops.conv2d.sparse.formats import DENSEST
from gossamer.ops.host_threads import workers
from gossamer.ops.packed import can_hold
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose.plan_assignment import Conversion
from gossamer.plan.choose.program_builder import Network, conversion_layer
from gossamer.plan.fusion import find_fusions, find_parts, may_have_parts, recognising
from gossamer.plan.in_place import is_likely_in_place
from gossamer.plan.policy import Policy, able_on, allowed_on, eligibility
from gossamer.plan.program import Layer
from gossamer.plan.tune.cost import LEAST_SHARE, conversion_us
from gossamer.plan.tune.rows import LayerCandidates
from gossamer.plan.tune.tuner import Tuner
from gossamer.tensor import Format, TensorSpec

_Change = tuple[TensorSpec, TensorSpec, ValueFacts]
"""A conversion: the specs before and after, and the facts about the value. Values of the same
shape, formats and facts share one measurement."""
_NONE = WeightsInfo()
_FEW_FLOPS = 2**26
"""Maximum number of floating-point operations of a small network. Such a network takes about one
millisecond. Copies and library calls take a considerable part of this time."""
IN_PLACE_SHARE = 0.01
"""Cost of a layer that is likely to copy nothing, as a share of its time. It is not 0, so that the
fastest of the layer's candidates is taken in case the layer does copy."""


class Table:
    """Candidates of layers and fusions, and conversion costs.

    policy: three of its fields restrict the candidates. `only` names an algorithm that is taken
    wherever it can be used; other layers take other algorithms. `sparse_threshold` decides about
    layers that can be computed both by dense algorithms and by algorithms that skip zeros. If the
    sparsity of such a layer is above the threshold, the layer takes an algorithm that skips zeros.
    If not, it takes a dense algorithm. Times of the two kinds of algorithms are then not compared.
    With `unfused` there are no fusions.
    less_precise: names of the layers and fusions that may be less precise than float32 if the tuner
    allows lower precision; None stands for all.
    of_layers: the layers in order, each with its candidates; a reshape has none.
    of_fusions: the parts that a library for whole networks may compute, and the fusions, with their
    candidates.
    """

    def __init__(self, network: Network, device: Device, tuner: Tuner, policy: Policy,
                 less_precise: Collection[str] | None) -> None:
        self.of_layers: list[LayerCandidates] = []
        self.of_fusions: list[LayerCandidates] = []
        self.network, self.device = network, device
        self.tuner, self.policy, self._less_precise = tuner, policy, less_precise
        self.layers = {layer.name: layer for layer in network.layers}
        self._thin = {layer.name for layer in network.layers
                      if (layer.density is not None and layer.density <= DENSEST)
                      or getattr(layer.problem, "weights_info", _NONE).scaled_signs}
        self._is_thin = bool(policy.force or self._thin) or sum(
            layer.problem.flops for layer in network.layers if not layer.is_reshape) <= _FEW_FLOPS
        self._facts = {name: facts for layer in network.layers
                       for name, facts in layer.facts.items()}
        self._conversions: dict[_Change, float] = {}
        self._estimated: dict[_Change, Layer] = {}

    @property
    def nodes(self) -> list[LayerCandidates]:
        """The layers and reshapes, followed by the fusions and parts."""
        return [*self.of_layers, *self.of_fusions]

    def list_nodes(self) -> list[LayerCandidates]:
        """List the layers and fusions, and return those with candidates to measure.

        Fusions are left out if the tuner's time is over.
        """
        network = self.network
        self.of_layers = [self._node(layer) for layer in network.layers]
        if not (self.policy.unfused or self.tuner.is_over):
            self.of_fusions = [self._fusion(each) for each in (
                *self._parts(), *find_fusions(network.layers, network.outputs))]
        return [node for node in self.nodes if not node.layer.is_reshape]

    def _node(self, layer: Layer) -> LayerCandidates:
        """Return a layer with its algorithms, but without candidates yet."""
        if layer.is_reshape:
            return LayerCandidates(layer, [], self.device)
        able, layer_device, reasons = eligibility(layer, self.device, self._refusal, self.policy)
        if self._is_thin and workers(self.policy.threads) > 1 and any(
                algorithm.by_image for algorithm in able):
            reasons |= {algorithm.name: "its threads busy-wait on the cores of generated code"
                        for algorithm in able if algorithm.polls}
            able = [algorithm for algorithm in able if not algorithm.polls]
        return LayerCandidates(layer, able, layer_device, reasons=reasons)

    def refresh(self) -> None:
        """Set each node's candidates to those that the tuner has found so far."""
        for node in self.nodes:
            node.candidates = self._precise(node.layer, self.tuner.candidates(node))

    def _parts(self) -> list[Layer]:
        """Return the parts that a library may compute.

        The network is divided into as few and as large parts as possible, once with and once
        without the thin layers, which may be faster alone. The parts of both divisions are
        returned.
        """
        if not may_have_parts(self.policy):
            return []
        network, forced = self.network, set(self.policy.force)
        return list({part.covers: part for left_out in (forced, forced | self._thin)
                     for part in find_parts(network.layers, network.outputs, self.device,
                                            left_out)}.values())

    def cost_in_plan(self, node: LayerCandidates, candidate: Candidate) -> float:
        """Return a candidate's cost in a plan in microseconds.

        The cost is the measured or estimated time, or a small share of this time if the layer is
        likely to copy nothing.
        """
        is_free = is_likely_in_place(node.layer.problem, candidate.variant)
        return candidate.estimated_cost * (IN_PLACE_SHARE if is_free else 1.0)

    def conversion_us(self, value: str, source: Format, target: Format) -> float:
        """Return the cost of a format conversion in microseconds.

        The cost is the measured time, or a lower bound until the conversion is measured. It is
        infinite if no algorithm supports the conversion.
        """
        change = self._change(value, source, target)
        if change not in self._conversions:
            self._conversions[change] = self._least_us(value, change)
        return self._conversions[change]

    def _change(self, value: str, source: Format, target: Format) -> _Change:
        shape = self.network.specs[value].shape
        return (TensorSpec(shape, source), TensorSpec(shape, target),
                self._facts.get(value, REAL))

    def _least_us(self, value: str, change: _Change) -> float:
        source, target, facts = change
        if source.same_memory(target):
            return 0.0
        is_float = self.network.specs[value].dtype in ("float32", "float16")
        if not can_hold(target.format, facts) or (not is_float and (
                source.format.is_packed or target.format.is_packed)):
            return math.inf
        self._estimated[change] = conversion_layer(value, f"{value} as {target.format}", source,
                                                   target, facts)
        return LEAST_SHARE * conversion_us(source, target, self.device)

    def conversion(self, layer: Layer) -> LayerCandidates:
        """Return a conversion without candidates; packed values are not converted on the host."""
        refusal, device = self.tuner.space.refusal_reason, self.device
        if any(spec.format.is_packed for spec in (*layer.problem.inputs, *layer.problem.outputs)):
            able, reasons = able_on(layer.problem, device, refusal)
        else:
            able, device, reasons = eligibility(layer, device, refusal)
        return LayerCandidates(layer, able, device, reasons=reasons)

    def measure_estimated(self, conversions: Iterable[Conversion]) -> bool:
        """Measure the conversions whose cost is an estimate.

        Returns whether any was measured.
        """
        nodes = {change: self.conversion(self._estimated.pop(change))
                 for change in starmap(self._change, conversions) if change in self._estimated}
        self.tuner.measure_all(nodes.values())
        self._conversions.update((change, node.least_cost) for change, node in nodes.items())
        return bool(nodes)

    def _refusal(self, algorithm: Algorithm, problem: Problem, device: Device) -> str | None:
        """Return why an algorithm is not measured; None if it is."""
        if algorithm.between_thin and not self._is_thin:
            return "the network is not small, and has no pruned or binary layers"
        return self.tuner.space.refusal_reason(algorithm, problem, device)

    def _fusion(self, fusion: Layer) -> LayerCandidates:
        """Return a fusion with the algorithms that may compute it.

        The reasons why other algorithms that recognise the fusion may not compute it are included.
        """
        able, reasons = allowed_on(fusion, self.device, self.tuner.space.refusal_reason,
                                   self.policy, recognising(fusion))
        return LayerCandidates(fusion, able, self.device, reasons=reasons)

    def _precise(self, layer: Layer, candidates: list[Candidate]) -> list[Candidate]:
        """Return the candidates, and mark those that are too imprecise as excluded.

        If the layer must be as precise as float32, less precise candidates are marked.
        """
        if self._less_precise is None or layer.name in self._less_precise:
            return candidates
        return [candidate if candidate.variant.is_as_precise_as_float32(layer.problem)
                else candidate.with_exclusion("not in float32, which the tolerance requires here")
                for candidate in candidates]
