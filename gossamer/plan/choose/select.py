"""The choice of an algorithm and a variant for every layer of a program."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.plan.choose.builder import LayerChoice, ProgramBuilder
from gossamer.plan.choose.first import FirstChoices
from gossamer.plan.choose.restriction import FREE, Restriction
from gossamer.plan.eligibility import ANY
from gossamer.plan.in_place import keep_in_place
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer, Program
from gossamer.plan.region import find_regions, with_regions
from gossamer.tensor import Format, TensorSpec, default_spec

if TYPE_CHECKING:
    from gossamer.plan.choose.assigner import Assigned, Assigner
    from gossamer.plan.tune.tuner import Tuner


@dataclass(frozen=True)
class Network:
    """A network at one batch size, lowered to layers of which nothing is chosen yet.

    inputs: the specs of its inputs by the names of their values. outputs: the specs of its outputs.
    constants: the arrays of values that are constants. names: the names of inputs whose values,
    which hold what callers give, have other names.
    """

    layers: Sequence[Layer]
    batch: int
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    constants: Mapping[str, np.ndarray]
    names: Mapping[str, str] = field(default_factory=dict)


class Chooser:
    """Makes programs of a network on a device.

    With a tuner the candidates within its effort are measured, and the choices for layers and
    regions together with the changes of format between them are the cheapest (see
    plan_assignment.py). Without one, each layer takes the first algorithm that supports the
    problem, in its first config, with the formats that move the fewest bytes (see first.py), and no
    region is computed as one unless the policy forces that. A layer that no algorithm of the device
    supports runs on the host.

    policy: its `only` is the name of an algorithm that is taken wherever it can be; other layers
    take others. Its `sparse_threshold` is a sparsity above which layers take an algorithm that
    skips zeros, while others take a dense one, where there are both; these are not compared with
    each other. With its `unfused` no region is computed as one. less_precise: the names of the
    layers and regions that may be less precise than float32 where the tuner allows that; None
    allows all.

    Raises InputError where a layer is forced to take an algorithm that cannot compute it, or is
    none of the layers.
    """

    def __init__(self, network: Network, device: Device, tuner: Tuner | None = None,
                 policy: Policy = ANY, *, less_precise: Collection[str] | None = None) -> None:
        _check_forced(network.layers, policy)
        self._network = network
        self._device = device
        self._tuner = tuner
        specs = _default_specs(network.layers, network.inputs, network.constants)
        self._specs = specs | {name: _at_boundary(spec, policy) for name, spec in (
            *network.inputs.items(), *network.outputs.items())}
        # where nothing is measured a region is computed as one only where the policy forces that
        may_have_regions = not policy.unfused and not (tuner is None and policy.only is None)
        regions = find_regions(network.layers, network.outputs) if may_have_regions else []
        self._first = FirstChoices(network.layers, regions, self._specs, network.outputs, device,
                                   policy) if tuner is None else None
        self.assigner: Assigner | None = None
        """The plan assignments; None where nothing is measured."""
        if tuner is not None:
            from gossamer.plan.choose.assigner import Assigner

            self.assigner = Assigner(
                network.layers, regions, self._specs, [*network.inputs, *network.constants],
                list(network.outputs), device, tuner, policy, less_precise)

    def program(self, restriction: Restriction = FREE, why: str = "",
                first: Assigned | None = None) -> Program:
        """Returns the cheapest program within a restriction. why: that of Comparison. first: what
        the assigner has returned for the restriction.

        Raises UnsupportedError where the host cannot compute a layer either.
        """
        if self.assigner is None:
            assert self._first is not None
            return self._built(self._first.choice, self._first.regions, {})
        from gossamer.plan.choose.assigner import best_alone

        choices, tuner = self.assigner.choices(restriction, why, first), self._tuner
        assert tuner is not None

        def decide(builder: ProgramBuilder, layer: Layer) -> LayerChoice:
            if layer.name in choices.by_layer:
                return choices.by_layer[layer.name]
            return best_alone(layer, self._device, tuner)

        program = self._built(decide, choices.regions, choices.reshapes)
        program.measured = choices.measured
        # which parts of tensors copy nothing is known for sure only now
        program.cost_us = choices.cost_us + sum(
            step.candidate_of(step.candidates).cost
            - step.candidate_of(choices.by_layer[step.layer.name].candidates).cost
            for step in program.steps if step.layer.name in choices.by_layer)
        return program

    def _built(self, decide: Callable[[ProgramBuilder, Layer], LayerChoice],
               regions: Sequence[Layer], reshapes: Mapping[str, Format]) -> Program:
        network, specs = self._network, self._specs
        builder = ProgramBuilder(
            network.batch, {name: specs[name] for name in network.inputs}, network.constants,
            decide, reshapes, network.names)
        for layer in with_regions(network.layers, regions):
            builder.add(layer)
        program = builder.finish({name: specs[name] for name in network.outputs})
        return keep_in_place(program, network.layers, self._device)


def _check_forced(layers: Sequence[Layer], policy: Policy) -> None:
    """Raises InputError where a layer whose algorithm is forced is none of the layers."""
    names = [layer.name for layer in layers if layer.problem is not None]
    for name in policy.force:
        if name not in names:
            close = difflib.get_close_matches(name, names, 5, 0.4)
            raise InputError(f"force {name}: the network has no such layer" + (
                f"; close to it: {', '.join(map(repr, close))}" if close else ""))


def _at_boundary(spec: TensorSpec, policy: Policy) -> TensorSpec:
    """Returns how a policy wants an input or output of the network, given in the default layout."""
    if policy.boundary is None or len(spec.shape) != 4 or spec.dtype != "float32":
        return spec
    return TensorSpec(spec.shape, policy.boundary)


def _default_specs(layers: Iterable[Layer], inputs: Mapping[str, TensorSpec],
                   constants: Mapping[str, np.ndarray]) -> dict[str, TensorSpec]:
    """Returns the spec of every value of the network, in the default layout."""
    specs = dict(inputs)
    specs.update({name: default_spec(array.shape, str(array.dtype))
                  for name, array in constants.items()})
    for layer in layers:
        output_specs = layer.output_specs if layer.problem is None else layer.problem.outputs
        specs.update({name: default_spec(spec.shape, spec.dtype)
                      for name, spec in zip(layer.outputs, output_specs, strict=True)})
    return specs
