"""The cost of each conversion that a plan assignment may contain."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.facts import REAL, ValueFacts
from gossamer.plan.choose.builder import conversion_layer
from gossamer.plan.choose.region_options import RegionFormat
from gossamer.plan.eligibility import able_on, eligibility
from gossamer.plan.program import Layer
from gossamer.plan.tune.tuner import Measures
from gossamer.tensor import Format, TensorSpec


class ConversionCosts:
    """The measured cost of copying the values of a network from one format to another.

    layers: the network's layers. specs: the spec of each value in the default format.
    """

    def __init__(self, layers: Sequence[Layer], specs: Mapping[str, TensorSpec], device: Device,
                 tuner: Measures) -> None:
        self._facts = {name: facts for layer in layers for name, facts in layer.facts.items()}
        self._specs = specs
        self._device = device
        self._tuner = tuner
        self._known: dict[tuple[TensorSpec, TensorSpec, ValueFacts], float] = {}

    def __call__(self, value: str, source_format: Hashable, target_format: Hashable) -> float:
        """Returns the cost of copying a value from one format to another, in microseconds; infinite
        where there is no such copy."""
        if isinstance(source_format, RegionFormat):
            source_format = source_format.written
            if source_format == target_format:
                return 0.0
        if not isinstance(source_format, Format) or not isinstance(target_format, Format):
            return math.inf
        shape = self._specs[value].shape
        source, target = TensorSpec(shape, source_format), TensorSpec(shape, target_format)
        if source.same_memory(target):
            return 0.0
        key = source, target, self._facts.get(value, REAL)
        if key not in self._known:
            self._known[key] = self._measured(value, source, target)
        return self._known[key]

    def _measured(self, value: str, source: TensorSpec, target: TensorSpec) -> float:
        facts = self._facts.get(value, REAL)
        layer = conversion_layer(value, f"{value} as {target.format}", source, target, facts)
        assert layer.problem is not None
        if not (source.format.is_packed or target.format.is_packed):
            able, layer_device, _ = eligibility(layer, self._device)
            return min(candidate.cost
                       for candidate in self._tuner.measure(layer, able, layer_device))
        if not can_hold(target.format, facts):
            return math.inf
        able, _ = able_on(layer.problem, self._device, self._tuner.refusal_reason)
        return min((candidate.cost for candidate in self._tuner.measure(layer, able, self._device)
                    ), default=math.inf) if able else math.inf


def can_hold(format_: Format, facts: ValueFacts) -> bool:
    """Returns whether a format can hold all values that the facts allow, other than by rounding
    floats."""
    if not format_.is_packed:
        return True
    if facts.count is None or not facts.few_values:
        return False
    return format_.holds(facts.low + facts.step * np.arange(facts.count))
