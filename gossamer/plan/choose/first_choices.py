"""Choices for networks without measurements."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.fused.problem import PartProblem
from gossamer.ops.registry import OPS
from gossamer.plan.choose.program_builder import LayerChoice, Network, ProgramBuilder
from gossamer.plan.fusion import find_fusions, find_parts, may_have_parts, recognising
from gossamer.plan.policy import ANY, Policy, allowed_on, eligibility
from gossamer.plan.program import Layer, Program
from gossamer.plan.tune.space import Space


class FirstChoices:
    """Choices for a network without measurements.

    Each layer takes the first algorithm that supports the problem, in the algorithm's first config.
    If a layer has packed inputs, algorithms that read these inputs without conversion are
    preferred. The formats are those for which the fewest bytes of inputs must be converted; among
    these, packed outputs are preferred. On devices that compile kernels, algorithms on packed bits
    come first: in a network whose values are all packed, they take a small fraction of the time of
    other algorithms. A layer that no algorithm of the device supports runs on the host.
    """

    def __init__(self, network: Network, device: Device, policy: Policy = ANY) -> None:
        self._network = network
        self._device = device
        self._policy = policy
        self._space = Space.unmeasured(policy.threads)

    def program(self) -> Program:
        """Return the program.

        If the algorithm of the policy's `only` can compute fusions, these are computed in one step,
        in the order of the network, each without layers of an earlier one. If there are none, the
        parts (see fusion.py) that a library for whole networks computes are steps. All other layers
        are computed unfused. Raises UnsupportedError if the host cannot compute a layer either.
        """
        network, policy, fusions = self._network, self._policy, list[Layer]()
        if policy.only is not None and not policy.unfused:
            covered: set[str] = set()
            for fusion in find_fusions(network.layers, network.outputs):
                if covered.isdisjoint(fusion.covers) and policy.only in self._able_names(fusion):
                    fusions.append(fusion)
                    covered.update(fusion.covers)
        return network.program(self._device, self.choice, fusions or self._parts(network.layers))

    def _parts(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return the parts that a library for whole networks computes.

        Layers whose algorithm the policy decides are left out. Layers whose weights are all zero
        are left out too, because gossamer computes only their epilogues. If `only` names an
        algorithm for parts, no layers are left out except those listed in the policy's `force`.
        """
        if not may_have_parts(self._policy):
            return []
        if self._policy.only in {algorithm.name for algorithm in OPS[PartProblem.op].algorithms}:
            return find_parts(layers, self._network.outputs, self._device, self._policy.force)
        left_out = [layer.name for layer in layers if layer.density == 0]
        if self._policy.only is not None:
            left_out += [layer.name for layer in layers if not layer.is_reshape
                         and self._policy.only in self._able_names(layer)]
        return find_parts(layers, self._network.outputs, self._device,
                          [*left_out, *self._policy.force])

    def choice(self, builder: ProgramBuilder, layer: Layer, preferred: str = "") -> LayerChoice:
        """Return the choice for a layer or fusion.

        The builder already has the layer's inputs.

        preferred: name of an algorithm that comes first if it supports the problem.
        """
        able, layer_device, reasons = self._able(layer)
        able.sort(key=lambda algorithm: algorithm.name != preferred)
        packed = {name for name in layer.inputs if builder.specs[name].format.is_packed}

        def order(option: tuple[int, Variant]) -> tuple[bool, int, int, bool]:
            place, variant = option
            inputs = list(zip(layer.inputs, variant.inputs, strict=True))
            unpacks = not all(builder.specs[name].same_memory(spec) for name, spec in inputs
                              if name in packed)
            converted = sum(spec.nbytes for name, spec in inputs if not builder.has(name, spec))
            return unpacks, place, converted, not any(
                spec.format.is_packed and name not in self._network.outputs
                for name, spec in zip(layer.outputs, variant.outputs, strict=True))

        place, variant = min(((place, variant) for place, algorithm in enumerate(able)
                              for variant in self._space.within_effort(
                                  algorithm, layer.problem, layer_device)), key=order)
        reasons |= {other.name: f"comes after {able[place].name}" for other in able
                    if layer_device is self._device and other is not able[place]}
        return LayerChoice(able[place], variant, layer_device, reasons)

    def _able(self, layer: Layer) -> tuple[list[Algorithm], Device, dict[str, str]]:
        """Return the algorithms that may compute a layer, in order, and their device.

        The third result gives, by algorithm name, the reason why an algorithm may not compute the
        layer.
        """
        if layer.covers:
            able, reasons = allowed_on(layer, self._device, self._space.refusal_reason,
                                       self._policy, recognising(layer))
            return able, self._device, reasons
        able, layer_device, reasons = eligibility(
            layer, self._device, self._space.refusal_reason, self._policy)
        if layer_device.compiles:
            able.sort(key=lambda algorithm: not algorithm.exact)
        return able, layer_device, dict(reasons)

    def _able_names(self, layer: Layer) -> set[str]:
        return {algorithm.name for algorithm in self._able(layer)[0]}
