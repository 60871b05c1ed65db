"""The candidates of a network's layers and fusions. Most candidates are measured together."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import wait

import numpy as np

from gossamer.device.base import Device
from gossamer.measure import SLACK
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.ops.fused.problem import PartProblem
from gossamer.ops.part.host import problem_times
from gossamer.ops.zero_weights import ZeroWeights
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose.network import Network
from gossamer.plan.choose.plan_assignment import load_solver
from gossamer.plan.fusion import find_fusions, find_parts, may_have_parts, recognising
from gossamer.plan.in_place import in_place_candidates, layers_in_place
from gossamer.plan.policy import (
    Policy,
    Refusal,
    able_on,
    eligibility,
    forced_otherwise,
    is_above,
    is_asked_for,
)
from gossamer.plan.program import Layer, MeasuredLayer
from gossamer.plan.store.keys import problem_key
from gossamer.plan.tune.measures import MeasurementRequest
from gossamer.plan.tune.profile import LISTING
from gossamer.plan.tune.tuner import Tuner
from gossamer.tensor import pack


class NetworkCandidates:
    """The candidates of a network's layers, and of the fusions that one algorithm may compute in
    one step.

    For the arguments see Assigner.
    of_layers: the layers in order, each with its candidates; a reshape has none.
    of_fusions: the parts that a library for whole networks may compute, and the fusions, with their
    candidates.
    """

    def __init__(self, network: Network, device: Device, tuner: Tuner, policy: Policy,
                 less_precise: Collection[str] | None) -> None:
        self._device = device
        self._tuner = tuner
        self._policy = policy
        self._less_precise = less_precise
        layers = network.layers
        fusions = [] if policy.unfused else find_fusions(layers, network.outputs)
        self._layers = {layer.name: layer for layer in layers}
        self._measure_together([layer for layer in layers if not layer.is_reshape], fusions)
        self.of_layers = [MeasuredLayer(layer, device, [], {}) if layer.is_reshape
                          else self._candidates_of(layer) for layer in layers]
        in_place = layers_in_place(layers)
        for node in self.of_layers:
            if node.layer.name in in_place:
                node.candidates = in_place_candidates(node, in_place, self.of_layers, device)
        parts = self._measured_parts(network) if may_have_parts(policy) else []
        self.of_fusions = [*parts, *(self._measured_fusion(fusion) for fusion in fusions)]

    def _measured_parts(self, network: Network) -> list[MeasuredLayer]:
        """Return the parts that a library for whole networks may compute, as few and as large as
        possible. Some layers may be faster alone, with another algorithm, than within such a part;
        the parts without these layers are returned too."""
        def measured(left_out: Collection[str]) -> list[MeasuredLayer]:
            return [self._measured_fusion(part)
                    for part in find_parts(network.layers, network.outputs, self._device,
                                           left_out)]

        parts = measured(())
        alone = {node.layer.name: node.least_cost for node in self.of_layers}
        for part in parts:
            if math.isfinite(part.least_cost):
                part.within = _times_within(part)
        faster = {name for part in parts for name, us in part.within.items()
                  if alone.get(name, math.inf) * (1 + SLACK) < us}
        if faster:
            parts += measured(faster)
        return parts

    def _measure_together(self, layers: Sequence[Layer], fusions: Sequence[Layer]) -> None:
        """Measure the candidates of all layers and fusions together, since the time that a fusion
        saves decides whether candidates of its layers are worth measuring. The first candidates of
        gossamer's own dense algorithms are built while the fusions are listed, and candidates of
        both while the vendors' libraries are asked for their variants."""
        policy, tuner = self._policy, self._tuner
        problems = [problem_key(layer.problem) for layer in (*layers, *fusions)]
        tuner.ask(layers, self._device)

        def first() -> Iterator[list[MeasurementRequest]]:
            with tuner.profile.stage(LISTING):
                is_free = (policy.only is None and policy.sparse_threshold is None
                           and not policy.force)
                of_layers = self._requests(layers, self._refusal_of_own) if is_free else []
            yield of_layers
            of_fusions = []
            for fusion in fusions:
                with tuner.profile.stage(LISTING):
                    if not tuner.is_over and (allowed := self._fusion_eligibility(fusion)[0]):
                        of_fusions.append(MeasurementRequest(fusion, allowed, self._device))
                yield []  # the search goes on to build candidates of layers
            yield of_fusions

        def others() -> list[MeasurementRequest]:
            # the assignment needs the solver, whose import takes a few tenths of a second
            load_solver()
            wait(tuner.space.answers)
            return self._requests(layers, tuner.space.refusal_reason)

        tuner.measure_network(first(), others, json.dumps(
            [problems, policy.only, policy.sparse_threshold, dict(policy.force)]))

    def _requests(self, layers: Sequence[Layer], refusal: Refusal) -> list[MeasurementRequest]:
        """Return the requests to measure the algorithms that may compute each layer on the device.
        refusal: returns why an algorithm may not compute a problem."""
        requests = []
        for layer in layers:
            able, layer_device, _ = eligibility(layer, self._device, self._policy, refusal)
            if layer_device is self._device:
                requests.append(MeasurementRequest(layer, able, layer_device))
        return requests

    def _refusal_of_own(self, algorithm: Algorithm, problem: Problem,
                        device: Device) -> str | None:
        """Return why an algorithm is not among the first that are measured; None where it is.
        ZeroWeights is among them, since no other algorithm may compute a layer that it supports."""
        is_asked_later = algorithm.vendor and device.compiles
        skips_zeros = not (algorithm.dense or isinstance(algorithm, ZeroWeights))
        if device is self._device and (is_asked_later or skips_zeros):
            return "is measured later"
        return self._tuner.space.refusal_reason(algorithm, problem, device)

    def _candidates_of(self, layer: Layer) -> MeasuredLayer:
        able, layer_device, reasons = eligibility(layer, self._device, self._policy,
                                                  self._tuner.space.refusal_reason)
        candidates = list(self._tuner.measure(layer, able, layer_device))
        policy = self._policy
        restricted = policy.only is not None or policy.sparse_threshold is not None
        if restricted and all(math.isinf(candidate.cost) for candidate in candidates):
            failures = {candidate.algorithm.name: candidate.measured.failure or ""
                        for candidate in candidates}
            able, layer_device, unrestricted_reasons = eligibility(
                layer, self._device, refusal_reason=self._tuner.space.refusal_reason)
            able = [algorithm for algorithm in able if algorithm.name not in failures]
            if able:
                candidates = list(self._tuner.measure(layer, able, layer_device))
                reasons = {**unrestricted_reasons, **failures}
        return MeasuredLayer(layer, layer_device, self._precise(layer, candidates), reasons)

    def _measured_fusion(self, fusion: Layer) -> MeasuredLayer:
        """Return a fusion with its candidates."""
        allowed, reasons = self._fusion_eligibility(fusion)
        candidates = list(self._tuner.measure(fusion, allowed, self._device) if allowed else [])
        return MeasuredLayer(fusion, self._device, self._precise(fusion, candidates), reasons)

    def _fusion_eligibility(self, fusion: Layer) -> tuple[list[Algorithm], dict[str, str]]:
        """Return the algorithms that may compute a fusion, and for each other algorithm that
        recognises the fusion the reason why it may not."""
        policy, refusal = self._policy, self._tuner.space.refusal_reason
        layers = [self._layers[name] for name in fusion.covers]
        taken_alone = policy.only is not None and any(
            policy.only in {algorithm.name for algorithm in able_on(
                layer.problem, self._device, refusal)[0]}
            for layer in layers if not layer.is_reshape)
        able, reasons = able_on(fusion.problem, self._device, refusal, recognising(fusion))
        above = set() if policy.sparse_threshold is None else {
            is_above(1 - layer.density, policy.sparse_threshold) for layer in layers
            if layer.density is not None}
        for algorithm in able:
            reason = None
            if not is_asked_for(algorithm, policy):
                reason = "is taken where it is asked for by its name"
            elif taken_alone and algorithm.name != policy.only:
                reason = f"{policy.only} is forced"
            elif other := forced_otherwise(fusion, algorithm, policy):
                reason = other
            elif above - {not algorithm.dense}:
                reason = f"the threshold {policy.sparse_threshold:g} decided otherwise"
            if reason is not None:
                reasons[algorithm.name] = reason
        return [algorithm for algorithm in able if algorithm.name not in reasons], reasons

    def _precise(self, layer: Layer, candidates: list[Candidate]) -> list[Candidate]:
        """Return the candidates of a layer. Where the layer must be as precise as float32, a
        candidate that is less precise is excluded."""
        if self._less_precise is None or layer.name in self._less_precise:
            return candidates
        return [candidate if candidate.variant.is_as_precise_as_float32(layer.problem)
                else candidate.with_exclusion("not in float32, which the tolerance asks for here")
                for candidate in candidates]


def _times_within(part: MeasuredLayer) -> dict[str, float]:
    """Return the microseconds that a library takes for each layer of a part while it computes the
    whole part."""
    layer = part.layer
    assert isinstance(layer.problem, PartProblem)
    fastest = min(part.candidates, key=lambda candidate: candidate.cost)
    arrays = layer.problem.example_inputs(np.random.default_rng(0))
    times = problem_times(layer.problem, layer.weights, fastest.variant, [
        pack(array, spec) for array, spec in zip(arrays, fastest.variant.inputs, strict=True)])
    return dict(zip(layer.covers, times, strict=True))
