"""The cheapest choice for a whole network, from the measurements of its layers' candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.plan.choose import plan_assignment
from gossamer.plan.choose.builder import Choice, conversion_layer
from gossamer.plan.choose.eligibility import eligible
from gossamer.plan.choose.elimination import EntangledError
from gossamer.plan.program import Layer
from gossamer.plan.tune.tuner import Trial, Tuner, usable
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
    place: Device
    reasons: dict[str, str]
    trials: list[Trial]


class Cheapest:
    """The exact least-cost labelling of a network (see labelling.py), of candidates that are right
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
        able, place, reasons = eligible(layer, self._device, only, sparse_threshold,
                                        self._tuner.refusal)
        trials = list(self._tuner.measure(layer, able, place))
        wished = only is not None or sparse_threshold is not None
        if wished and all(math.isinf(trial.cost) for trial in trials):
            failures = {trial.algorithm.name: trial.measured.failure or "" for trial in trials}
            able, place, others = eligible(layer, self._device, refusal=self._tuner.refusal)
            able = [algorithm for algorithm in able if algorithm.name not in failures]
            if able:
                trials = list(self._tuner.measure(layer, able, place))
                reasons = {**others, **failures}
        if less_precise is not None and layer.name not in less_precise:
            trials = [trial if trial.variant.precision == "fp32" else trial.excluded(
                "not in float32, which the tolerance asks for here") for trial in trials]
        return _Option(layer, place, reasons, trials)

    def choices(self) -> dict[str, Choice]:
        """The choice for each layer by name."""
        while True:
            taken = self._labelled()
            wrong = False
            for option, trial in taken:
                verified = self._tuner.verified(option.layer, trial, option.place)
                if verified is not trial:
                    option.trials[option.trials.index(trial)] = verified
                    wrong = wrong or math.isinf(verified.cost)
            if not wrong:
                return {option.layer.name: _choice(trial, option.trials, option.place,
                                                   option.reasons)
                        for option, trial in taken}

    def _labelled(self) -> list[tuple[_Option, Trial]]:
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
                trial.excluded("the network's graph is too entangled for so many layouts")
                if any(map(given_up, (*trial.variant.inputs, *trial.variant.outputs))) else trial
                for trial in option.trials]
            if any(math.isfinite(trial.cost) for trial in simpler):
                option.trials = simpler

    def _options(self) -> list[_Option]:
        return [node for node in self._nodes if isinstance(node, _Option)]

    def _minimised(self) -> list[tuple[_Option, Trial]]:
        nodes = []
        candidates: list[list[Trial]] = []
        for node in self._nodes:
            if isinstance(node, Layer):
                # another shape of the same memory, which has to be row-major
                choices = tuple(plan_assignment.Choice(0.0, (("", dtype),), (("", dtype),))
                                for dtype in self._dtypes(node.inputs[0]))
                nodes.append(plan_assignment.Node(choices, tuple(node.inputs), tuple(node.outputs)))
                candidates.append([])
                continue
            candidates.append(usable(node.layer, node.trials, node.place))
            nodes.append(plan_assignment.Node(
                tuple(plan_assignment.Choice(trial.cost, tuple(map(_label, trial.variant.inputs)),
                                       tuple(map(_label, trial.variant.outputs)))
                      for trial in candidates[-1]),
                tuple(node.layer.inputs), tuple(node.layer.outputs)))
        labels = plan_assignment.minimise(
            nodes, {name: _label(self._specs[name]) for name in self._given}, self._conversion,
            required={name: _label(self._specs[name]) for name in self._outputs}).labels
        return [(node, trials[label]) for node, trials, label
                in zip(self._nodes, candidates, labels, strict=True) if isinstance(node, _Option)]

    def _conversion(self, value: str, given: Hashable, needed: Hashable) -> float:
        source, target = (_as_labelled(self._specs[value], label) for label in (given, needed))
        if (source, target) not in self._conversions:
            self._conversions[source, target] = self._converted(value, source, target)
        return self._conversions[source, target]

    def _converted(self, value: str, source: TensorSpec, target: TensorSpec) -> float:
        layer = conversion_layer(value, f"{value} as {_label(target)}", source, target)
        able, place, _ = eligible(layer, self._device)
        return min(trial.cost for trial in self._tuner.measure(layer, able, place))

    def _dtypes(self, value: str) -> tuple[str, ...]:
        """In which a value of the network may lie."""
        dtype = self._specs[value].dtype
        both = dtype == "float32" and self._tuner.precision == "fp16"
        return (dtype, "float16") if both else (dtype,)


def best_alone(layer: Layer, device: Device, tuner: Tuner) -> Choice:
    """The fastest candidate whatever its layouts: for changes of layout, which state theirs."""
    able, place, reasons = eligible(layer, device)
    trials = tuner.measure(layer, able, place)
    taken = min(usable(layer, trials, place), key=lambda trial: trial.cost)
    return _choice(taken, trials, place, reasons)


def _label(spec: TensorSpec) -> tuple[str, str]:
    """Layout and dtype as the labelling tells them apart; the layout is "" for all that lies as
    the default does."""
    plain = spec.same_memory(default_spec(spec.shape, spec.dtype))
    return ("" if plain else spec.layout), spec.dtype


def _as_labelled(spec: TensorSpec, label: Hashable) -> TensorSpec:
    assert isinstance(label, tuple)
    layout, dtype = label
    return replace(spec, layout=layout or spec.layout, dtype=dtype)


def _choice(taken: Trial, trials: Sequence[Trial], place: Device,
            reasons: Mapping[str, str]) -> Choice:
    """The trial taken, and why each other algorithm lost, by its best candidate."""
    rejected = dict(reasons)
    for name in dict.fromkeys(trial.algorithm.name for trial in trials):
        if name != taken.algorithm.name:
            best = min((t for t in trials if t.algorithm.name == name), key=lambda t: t.cost)
            rejected[name] = best.reason(taken)
    return Choice(taken.algorithm, taken.variant, place, rejected, trials)
