"""The cheapest choice for a whole network, from the measurements of its layers' candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.plan.choose import plan_assignment
from gossamer.plan.choose.builder import LayerChoice, conversion_layer
from gossamer.plan.choose.eligibility import eligibility
from gossamer.plan.choose.elimination import EntangledError
from gossamer.plan.program import Layer
from gossamer.plan.tune.tuner import Candidate, Tuner, usable
from gossamer.tensor import TensorSpec, default_spec

_SIMPLER: tuple[tuple[str, Callable[[TensorSpec], bool]], ...] = (
    ("CHWN", lambda spec: spec.layout == "CHWN"),
    ("float16", lambda spec: spec.dtype == "float16"),
    ("NHWC", lambda spec: spec.layout == "NHWC"),
)
"""What is given up, one after another, where a graph is too entangled to weigh all layouts."""


@dataclass
class _Option:
    """A layer, what it may be computed by, where, and why not by others."""

    layer: Layer
    device: Device
    reasons: dict[str, str]
    candidates: list[Candidate]


class Cheapest:
    """The exact least-cost plan assignment of a network (see plan assignment.py), of candidates that are right
    with the layers' own constants.

    given: values that no layer writes. The other arguments are those of select.choose.
    """

    def __init__(self, layers: Sequence[Layer], specs: Mapping[str, TensorSpec],
                 given: Sequence[str], outputs: Sequence[str], device: Device, tuner: Tuner,
                 only: str | None, sparse_threshold: float | None,
                 less_precise: Collection[str] | None) -> None:
        self._specs = specs
        self._given = given
        self._outputs = outputs
        self._device = device
        self._tuner = tuner
        self._conversions: dict[tuple[TensorSpec, TensorSpec], float] = {}
        self._nodes: list[_Option | Layer] = [
            layer if layer.problem is None
            else self._option(layer, only, sparse_threshold, less_precise) for layer in layers]

    def _option(self, layer: Layer, only: str | None, sparse_threshold: float | None,
                less_precise: Collection[str] | None) -> _Option:
        able, layer_device, reasons = eligibility(layer, self._device, only, sparse_threshold,
                                        self._tuner.refusal)
        candidates = list(self._tuner.measure(layer, able, layer_device))
        wished = only is not None or sparse_threshold is not None
        if wished and all(math.isinf(candidate.cost) for candidate in candidates):
            failures = {candidate.algorithm.name: candidate.measured.failure or "" for candidate in candidates}
            able, layer_device, others = eligibility(layer, self._device, refusal=self._tuner.refusal)
            able = [algorithm for algorithm in able if algorithm.name not in failures]
            if able:
                candidates = list(self._tuner.measure(layer, able, layer_device))
                reasons = {**others, **failures}
        if less_precise is not None and layer.name not in less_precise:
            candidates = [candidate if candidate.variant.precision == "fp32" else candidate.excluded(
                "not in float32, which the tolerance asks for here") for candidate in candidates]
        return _Option(layer, layer_device, reasons, candidates)

    def choices(self) -> dict[str, LayerChoice]:
        """The choice for each layer by name."""
        while True:
            taken = self._assigned()
            wrong = False
            for option, candidate in taken:
                verified = self._tuner.verified(option.layer, candidate, option.device)
                if verified is not candidate:
                    option.candidates[option.candidates.index(candidate)] = verified
                    wrong = wrong or math.isinf(verified.cost)
            if not wrong:
                return {option.layer.name: _choice(candidate, option.candidates, option.device,
                                                   option.reasons)
                        for option, candidate in taken}

    def _assigned(self) -> list[tuple[_Option, Candidate]]:
        for _, given_up in (("", None), *_SIMPLER):
            if given_up is not None:
                self._give_up(given_up)
            try:
                return self._minimised()
            except EntangledError as error:
                entangled = error
        raise UnsupportedError(str(entangled))

    def _give_up(self, given_up: Callable[[TensorSpec], bool]) -> None:
        for option in self._options():
            simpler = [
                candidate.excluded("the network's graph is too entangled for so many layouts")
                if any(map(given_up, (*candidate.variant.inputs, *candidate.variant.outputs))) else candidate
                for candidate in option.candidates]
            if any(math.isfinite(candidate.cost) for candidate in simpler):
                option.candidates = simpler

    def _options(self) -> list[_Option]:
        return [node for node in self._nodes if isinstance(node, _Option)]

    def _minimised(self) -> list[tuple[_Option, Candidate]]:
        nodes = []
        candidates: list[list[Candidate]] = []
        for node in self._nodes:
            if isinstance(node, Layer):
                # another shape of the same memory, which has to be row-major
                choices = tuple(plan_assignment.NodeOption(0.0, (("", dtype),), (("", dtype),))
                                for dtype in self._dtypes(node.inputs[0]))
                nodes.append(plan_assignment.OptionNode(choices, tuple(node.inputs), tuple(node.outputs)))
                candidates.append([])
                continue
            candidates.append(usable(node.layer, node.candidates, node.device))
            nodes.append(plan_assignment.OptionNode(
                tuple(plan_assignment.NodeOption(candidate.cost, tuple(map(_form, candidate.variant.inputs)),
                                       tuple(map(_form, candidate.variant.outputs)))
                      for candidate in candidates[-1]),
                tuple(node.layer.inputs), tuple(node.layer.outputs)))
        options = plan_assignment.minimise(
            nodes, {name: _form(self._specs[name]) for name in self._given}, self._conversion,
            required={name: _form(self._specs[name]) for name in self._outputs}).options
        return [(node, candidates[form]) for node, candidates, form
                in zip(self._nodes, candidates, options, strict=True) if isinstance(node, _Option)]

    def _conversion(self, value: str, given: Hashable, needed: Hashable) -> float:
        source, target = (_spec_of_form(self._specs[value], form) for form in (given, needed))
        if (source, target) not in self._conversions:
            self._conversions[source, target] = self._converted(value, source, target)
        return self._conversions[source, target]

    def _converted(self, value: str, source: TensorSpec, target: TensorSpec) -> float:
        layer = conversion_layer(value, f"{value} as {_form(target)}", source, target)
        able, layer_device, _ = eligibility(layer, self._device)
        return min(candidate.cost for candidate in self._tuner.measure(layer, able, layer_device))

    def _dtypes(self, value: str) -> tuple[str, ...]:
        """In which a value of the network may lie."""
        dtype = self._specs[value].dtype
        both = dtype == "float32" and self._tuner.precision == "fp16"
        return (dtype, "float16") if both else (dtype,)


def best_alone(layer: Layer, device: Device, tuner: Tuner) -> LayerChoice:
    """The fastest candidate whatever its layouts: for changes of layout, which state theirs."""
    able, layer_device, reasons = eligibility(layer, device)
    candidates = tuner.measure(layer, able, layer_device)
    taken = min(usable(layer, candidates, layer_device), key=lambda candidate: candidate.cost)
    return _choice(taken, candidates, layer_device, reasons)


def _form(spec: TensorSpec) -> tuple[str, str]:
    """Layout and dtype as the plan assignment tells them apart; the layout is "" for all that lies as
    the default does."""
    plain = spec.same_memory(default_spec(spec.shape, spec.dtype))
    return ("" if plain else spec.layout), spec.dtype


def _spec_of_form(spec: TensorSpec, form: Hashable) -> TensorSpec:
    assert isinstance(form, tuple)
    layout, dtype = form
    return replace(spec, layout=layout or spec.layout, dtype=dtype)


def _choice(taken: Candidate, candidates: Sequence[Candidate], layer_device: Device,
            reasons: Mapping[str, str]) -> LayerChoice:
    """The candidate taken, and why each other algorithm lost, by its best candidate."""
    rejected = dict(reasons)
    for name in dict.fromkeys(candidate.algorithm.name for candidate in candidates):
        if name != taken.algorithm.name:
            best = min((t for t in candidates if t.algorithm.name == name), key=lambda t: t.cost)
            rejected[name] = best.reason(taken)
    return LayerChoice(taken.algorithm, taken.variant, layer_device, rejected, candidates)
