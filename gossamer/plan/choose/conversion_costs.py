"""The cost of each conversion that a plan assignment may contain."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gossamer.device.base import Device
from gossamer.facts import REAL, ValueFacts
from gossamer.ops.packed import can_hold
from gossamer.plan.choose.network import Network, conversion_layer
from gossamer.plan.choose.plan_assignment import Conversion
from gossamer.plan.policy import able_on, eligibility
from gossamer.plan.program import Layer
from gossamer.plan.tune.measures import MeasurementRequest
from gossamer.plan.tune.tuner import Tuner
from gossamer.tensor import Format, TensorSpec

_Key = tuple[TensorSpec, TensorSpec, ValueFacts]


class ConversionCosts:
    """The cost of copying the values of a network from one format to another: the measured time,
    else the least time that can be expected."""

    def __init__(self, network: Network, device: Device, tuner: Tuner) -> None:
        self._facts = {name: facts for layer in network.layers
                       for name, facts in layer.facts.items()}
        self._specs = network.specs
        self._device = device
        self._tuner = tuner
        self._known: dict[_Key, float] = {}
        self._estimated: dict[_Key, Layer] = {}

    def __call__(self, value: str, source: Format, target: Format) -> float:
        """Return the cost of copying a value from one format to another, in microseconds; infinite
        where no algorithm makes this copy."""
        key = self._key(value, source, target)
        if key not in self._known:
            self._known[key] = 0.0 if key[0].same_memory(key[1]) else self._cost(value, *key)
        return self._known[key]

    def _key(self, value: str, source: Format, target: Format) -> _Key:
        shape = self._specs[value].shape
        return (TensorSpec(shape, source), TensorSpec(shape, target),
                self._facts.get(value, REAL))

    def _cost(self, value: str, source: TensorSpec, target: TensorSpec,
              facts: ValueFacts) -> float:
        is_float = self._specs[value].dtype in ("float32", "float16")
        if not can_hold(target.format, facts) or (not is_float and (
                source.format.is_packed or target.format.is_packed)):
            return math.inf
        layer = conversion_layer(value, f"{value} as {target.format}", source, target, facts)
        least = self._tuner.conversion_us(layer.problem, self._device)
        if least is not None:
            self._estimated[source, target, facts] = layer
            return least
        return self._measured(self._request(layer))

    def _request(self, layer: Layer) -> MeasurementRequest:
        """Return the request to measure the algorithms that may convert a value; packed values are
        not converted on the host."""
        specs = (*layer.problem.inputs, *layer.problem.outputs)
        if any(spec.format.is_packed for spec in specs):
            able, _ = able_on(layer.problem, self._device, self._tuner.space.refusal_reason)
            return MeasurementRequest(layer, able, self._device)
        able, layer_device, _ = eligibility(layer, self._device,
                                            refusal_reason=self._tuner.space.refusal_reason)
        return MeasurementRequest(layer, able, layer_device)

    def _measured(self, request: MeasurementRequest) -> float:
        return min((candidate.cost for candidate in self._tuner.measure(
            request.layer, request.algorithms, request.device)), default=math.inf)

    def measure_estimated(self, conversions: Iterable[Conversion]) -> bool:
        """Measure the conversions whose cost is an estimate. Return whether any was measured."""
        requests: dict[_Key, MeasurementRequest] = {}
        for conversion in conversions:
            key = self._key(*conversion)
            if key in self._estimated:
                requests[key] = self._request(self._estimated.pop(key))
        self._tuner.measure_all(list(requests.values()))
        for key, request in requests.items():
            self._known[key] = self._measured(request)
        return bool(requests)
