"""The choice of an algorithm and a variant for every layer of a program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.plan.choose.builder import LayerChoice, ProgramBuilder
from gossamer.plan.choose.cheapest import Cheapest, best_alone
from gossamer.plan.eligibility import eligibility, first_in_order
from gossamer.plan.program import Layer, Program
from gossamer.plan.tune.tuner import Tuner
from gossamer.tensor import TensorSpec, default_spec


def choose(layers: Sequence[Layer], batch: int, inputs: Mapping[str, TensorSpec],
           outputs: Iterable[str], constants: Mapping[str, np.ndarray], device: Device,
           tuner: Tuner | None = None, *, only: str | None = None,
           sparse_threshold: float | None = None,
           less_precise: Collection[str] | None = None) -> Program:
    """Returns a program for the layers.

    With a tuner the candidates within its effort are measured, and the layers' choices together
    with the changes of layout between them are the cheapest (see plan_assignment.py).
    Without one, each layer takes the first algorithm that supports the problem, in its first
    config, with the layouts that move the fewest bytes. A layer that no algorithm of the device
    supports runs on the host.

    only: the name of an algorithm that is taken wherever it can be; other layers take others.
    sparse_threshold: a sparsity above which layers take an algorithm that skips zeros, while
    others take a dense one, where there are both; these are not compared with each other.
    less_precise: the names of the layers that may be less precise than float32 where the tuner
    allows that; None allows all.

    Raises UnsupportedError where the host cannot compute a layer either.
    """
    outputs = list(outputs)
    specs = _default_specs(layers, inputs, constants)
    if tuner is None:
        builder = ProgramBuilder(
            batch, inputs, constants,
            lambda builder, layer: first_choice(builder, layer, device, only, sparse_threshold))
    else:
        choices = Cheapest(layers, specs, [*inputs, *constants], outputs, device, tuner, only,
                          sparse_threshold, less_precise).choices()

        def decide(builder: ProgramBuilder, layer: Layer) -> LayerChoice:
            if layer.name in choices:
                return choices[layer.name]
            return best_alone(layer, device, tuner)

        builder = ProgramBuilder(batch, inputs, constants, decide)
    for layer in layers:
        builder.add(layer)
    return builder.finish({name: specs[name] for name in outputs})


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


def first_choice(builder: ProgramBuilder, layer: Layer, device: Device, only: str | None = None,
                 sparse_threshold: float | None = None) -> LayerChoice:
    """Returns the first algorithm that supports the layer's problem, in its first config, with the
    layouts that move the fewest bytes. `only` and the threshold restrict the algorithms as in
    choose()."""
    able, layer_device, reasons = eligibility(layer, device, only, sparse_threshold)
    first, variants = first_in_order(layer, able, layer_device)
    reasons.update({algorithm.name: f"comes after {first.name}" for algorithm in able
                    if layer_device is device and algorithm is not first})

    def converted_bytes(variant: Variant) -> int:
        return sum(spec.nbytes for name, spec in zip(layer.inputs, variant.inputs, strict=True)
                   if not builder.specs[name].same_memory(spec)
                   and (name, spec) not in builder.copies)

    return LayerChoice(first, min(variants, key=converted_bytes), layer_device, reasons)
