"""The choice of an algorithm and a variant for every layer of a program."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose.builder import LayerChoice, ProgramBuilder
from gossamer.plan.choose.cheapest import Cheapest, best_alone
from gossamer.plan.choose.first import FirstChoices
from gossamer.plan.eligibility import ANY
from gossamer.plan.in_place import keep_in_place
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer, Program
from gossamer.plan.region import find_regions, with_regions
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
    problem, in its first config, with the formats that move the fewest bytes (see first.py), and no
    region is computed as one unless the policy forces that. A layer that no algorithm of the device
    supports runs on the host.

    policy: its `only` is the name of an algorithm that is taken wherever it can be; other layers
    take others. Its `zeros_threshold` is a sparsity above which layers take an algorithm that
    skips zeros, while others take a dense one, where there are both; these are not compared with
    each other. With its `unfused` no region is computed as one. less_precise: the names of the
    layers and regions that may be less precise than float32 where the tuner allows that; None
    allows all.

    Raises UnsupportedError where the host cannot compute a layer either, and InputError where a
    layer is forced to take an algorithm that cannot compute it, or is none of the layers.
    """
    outputs = list(outputs)
    _check_forced(layers, policy)
    specs = _default_specs(layers, inputs, constants)
    specs |= {name: _at_boundary(specs[name], policy) for name in (*inputs, *outputs)}
    inputs = {name: specs[name] for name in inputs}
    regions = [] if policy.unfused else find_regions(layers, outputs)
    if tuner is None:
        first = FirstChoices(layers, regions, specs, outputs, device, policy)
        builder = ProgramBuilder(batch, inputs, constants, first.choice)
        taken = first.regions
    else:
        choices = Cheapest(layers, regions, specs, [*inputs, *constants], outputs, device, tuner,
                           policy, less_precise).choices()

        def decide(builder: ProgramBuilder, layer: Layer) -> LayerChoice:
            if layer.name in choices.by_layer:
                return choices.by_layer[layer.name]
            return best_alone(layer, device, tuner)

        builder = ProgramBuilder(batch, inputs, constants, decide)
        builder.program.measured = choices.measured
        builder.program.cost_us = choices.cost_us
        taken = choices.regions
    for layer in with_regions(layers, taken):
        builder.add(layer)
    program = builder.finish({name: specs[name] for name in outputs})
    return keep_in_place(program, layers, device)


def rebuilt(program: Program, candidates: Mapping[str, Candidate], layers: Sequence[Layer],
            device: Device) -> Program:
    """Returns a program of these layers with other candidates for some steps, by the names of their
    layers. Each has the formats of the one in its place."""
    steps = {step.layer.name: step for step in program.steps}

    def decide(builder: ProgramBuilder, layer: Layer) -> LayerChoice:
        step = steps[layer.name]
        taken = candidates.get(layer.name, step)
        return LayerChoice(taken.algorithm, taken.variant, step.device, step.rejected,
                           step.candidates)

    specs = program.specs
    builder = ProgramBuilder(
        program.batch, {name: specs[value] for name, value in program.inputs.items()},
        program.constants, decide)
    builder.program.measured = program.measured
    for layer in with_regions(layers, [step.layer for step in program.steps if step.layer.covers]):
        builder.add(layer)
    return keep_in_place(
        builder.finish({name: specs[value] for name, value in program.outputs.items()}),
        layers, device)


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
