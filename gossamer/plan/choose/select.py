"""The choice of an algorithm and a variant for every layer of a program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.plan.choose.builder import LayerChoice, ProgramBuilder
from gossamer.plan.choose.cheapest import Cheapest, best_alone
from gossamer.plan.choose.region_options import forced_regions
from gossamer.plan.eligibility import (
    ANY,
    able_on,
    eligibility,
    first_in_order,
    refusal_reason,
)
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer, Program
from gossamer.plan.region import find_regions, recognising, with_regions
from gossamer.plan.tune.measures import Measures
from gossamer.tensor import TensorSpec, default_spec


def choose(layers: Sequence[Layer], batch: int, inputs: Mapping[str, TensorSpec],
           outputs: Iterable[str], constants: Mapping[str, np.ndarray], device: Device,
           tuner: Measures | None = None, policy: Policy = ANY, *,
           less_precise: Collection[str] | None = None) -> Program:
    """Returns a program for the layers.

    With a tuner the candidates within its effort are measured, and the choices for layers and
    regions together with the changes of format between them are the cheapest (see
    plan_assignment.py). Without one, each layer takes the first algorithm that supports the
    problem, in its first config, with the layouts that move the fewest bytes, and no region is
    computed as one unless the policy forces that. A layer that no algorithm of the device supports
    runs on the host.

    policy: its `only` is the name of an algorithm that is taken wherever it can be; other layers
    take others. Its `zeros_threshold` is a sparsity above which layers take an algorithm that
    skips zeros, while others take a dense one, where there are both; these are not compared with
    each other. less_precise: the names of the layers and regions that may be less precise than
    float32 where the tuner allows that; None allows all.

    Raises UnsupportedError where the host cannot compute a layer either.
    """
    outputs = list(outputs)
    specs = _default_specs(layers, inputs, constants)
    regions = find_regions(layers, outputs)
    if tuner is None:
        forced = _first_regions(regions, device, policy)
        builder = ProgramBuilder(
            batch, inputs, constants,
            lambda builder, layer: forced[layer.name] if layer.name in forced
            else first_choice(builder, layer, device, policy))
        taken = [region for region in regions if region.name in forced]
    else:
        choices = Cheapest(layers, regions, specs, [*inputs, *constants], outputs, device, tuner,
                           policy, less_precise).choices()

        def decide(builder: ProgramBuilder, layer: Layer) -> LayerChoice:
            if layer.name in choices.by_layer:
                return choices.by_layer[layer.name]
            return best_alone(layer, device, tuner)

        builder = ProgramBuilder(batch, inputs, constants, decide)
        builder.program.measured = choices.measured
        taken = choices.regions
    for layer in with_regions(layers, taken):
        builder.add(layer)
    return builder.finish({name: specs[name] for name in outputs})


def _first_regions(regions: Sequence[Layer], device: Device,
                   policy: Policy) -> dict[str, LayerChoice]:
    """Returns the choice for each region that the policy's `only` forces, by the region's name: the
    algorithm's first variant."""
    possible: dict[str, LayerChoice] = {}
    for region in regions if policy.only is not None else ():
        assert region.problem is not None
        able, reasons = able_on(region.problem, device, refusal_reason, recognising(region))
        for algorithm in able:
            if algorithm.name == policy.only:
                _, variants = first_in_order(region, [algorithm], device)
                possible[region.name] = LayerChoice(algorithm, variants[0], device, reasons)
    forced = forced_regions(regions, {name: [choice.algorithm.name]
                                      for name, choice in possible.items()}, policy)
    return {region.name: possible[region.name] for region in forced}


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


def first_choice(builder: ProgramBuilder, layer: Layer, device: Device,
                 policy: Policy = ANY) -> LayerChoice:
    """Returns the first algorithm that supports the layer's problem, in its first config, with the
    layouts that move the fewest bytes. The policy restricts the algorithms as in choose()."""
    able, layer_device, reasons = eligibility(layer, device, policy)
    first, variants = first_in_order(layer, able, layer_device)
    reasons.update({algorithm.name: f"comes after {first.name}" for algorithm in able
                    if layer_device is device and algorithm is not first})

    def converted_bytes(variant: Variant) -> int:
        return sum(spec.nbytes for name, spec in zip(layer.inputs, variant.inputs, strict=True)
                   if not builder.specs[name].same_memory(spec)
                   and (name, spec) not in builder.copies)

    return LayerChoice(first, min(variants, key=converted_bytes), layer_device, reasons)
