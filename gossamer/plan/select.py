"""The choice of an algorithm and a variant for every layer of a program."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gossamer.device import find
from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.ops import OPS
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.plan import labelling
from gossamer.plan.builder import Builder, Choice, conversion_layer
from gossamer.plan.program import Layer, Program
from gossamer.plan.tuner import Trial, Tuner
from gossamer.tensor import TensorSpec, default_spec


def choose(layers: Sequence[Layer], batch: int, inputs: Mapping[str, TensorSpec],
           outputs: Iterable[str], constants: Mapping[str, np.ndarray], device: Device,
           tuner: Tuner | None = None, *, only: str | None = None,
           sparse_threshold: float | None = None,
           less_precise: Collection[str] | None = None) -> Program:
    """A program for the layers.

    With a tuner every candidate is measured, and the layers' choices together with the changes
    of layout between them are the cheapest (see labelling.py). Without one: the first algorithm
    that supports the problem, in its first config, with the layouts that move the fewest bytes.
    only: the name of an algorithm that is taken wherever it can be, others elsewhere.
    sparse_threshold: layers of more sparsity than this take an algorithm that skips zeros, the
    others a dense one, where there are both; these are not compared with each other.
    less_precise: the layers that need not be float32 where the tuner allows that; None: all.
    A layer that no algorithm of the device supports runs on the host; raises UnsupportedError
    when the host cannot compute it either.
    """
    outputs = list(outputs)
    specs = _default_specs(layers, inputs, constants)
    if tuner is None:
        builder = Builder(batch, inputs, constants,
                          lambda builder, layer: first_choice(builder, layer, device, only,
                                                              sparse_threshold))
    else:
        chosen = _cheapest(layers, specs, inputs, outputs, constants, device, tuner, only,
                           sparse_threshold, less_precise)

        def decide(builder: Builder, layer: Layer) -> Choice:
            if layer.name in chosen:
                return chosen[layer.name]
            return _best_alone(layer, device, tuner)

        builder = Builder(batch, inputs, constants, decide)
    for layer in layers:
        builder.add(layer)
    return builder.finish({name: specs[name] for name in outputs})


def _default_specs(layers: Iterable[Layer], inputs: Mapping[str, TensorSpec],
                   constants: Mapping[str, np.ndarray]) -> dict[str, TensorSpec]:
    """Every value of the network as problems state it."""
    specs = dict(inputs)
    specs.update({name: default_spec(array.shape, str(array.dtype))
                  for name, array in constants.items()})
    for layer in layers:
        stated = layer.output_specs if layer.problem is None else layer.problem.outputs
        specs.update({name: default_spec(spec.shape, spec.dtype)
                      for name, spec in zip(layer.outputs, stated, strict=True)})
    return specs


def _supporting(layer: Layer, device: Device, only: str | None = None,
                sparse_threshold: float | None = None
                ) -> tuple[list[Algorithm], Device, dict[str, str]]:
    """The algorithms that can compute the layer on the device, else those of the host; and why
    the device's others cannot. `only`, where it is one of them, stands alone; on which side of
    the sparse threshold the layer is leaves those that skip zeros, or the others."""
    reasons: dict[str, str] = {}
    for place in (device, find("host")):
        able = []
        for algorithm in OPS[layer.op].algorithms:
            reason = algorithm.supports(layer.problem, place)
            if reason is None:
                able.append(algorithm)
            elif place is device:
                reasons[algorithm.name] = reason
        if able:
            forced = [algorithm for algorithm in able if algorithm.name == only]
            reasons.update({algorithm.name: f"{only} is forced" for algorithm in able
                            if forced and algorithm.name != only})
            able = forced or able
            if sparse_threshold is not None and layer.density is not None:
                able = _on_its_side(able, 1 - layer.density, sparse_threshold, reasons)
            return able, place, reasons
    assert layer.problem is not None
    raise UnsupportedError(
        f"{layer.source or layer.name}: nothing computes {layer.problem.describe()}: "
        + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))


def _on_its_side(able: list[Algorithm], sparsity: float, threshold: float,
                 reasons: dict[str, str]) -> list[Algorithm]:
    """The algorithms that a fixed threshold of sparsity leaves, as direct sparse convolution was
    published (Escoin, 2018); all where there are only dense ones, or none. Adds to the reasons."""
    dense = [algorithm for algorithm in able if algorithm.dense]
    sparse = [algorithm for algorithm in able if not algorithm.dense]
    if not dense or not sparse:
        return able
    above = sparsity > threshold
    reason = (f"sparsity {sparsity:.4g} is {'above' if above else 'not above'} the threshold "
              f"{threshold:g}")
    reasons.update({algorithm.name: reason for algorithm in (dense if above else sparse)})
    return sparse if above else dense


def first_choice(builder: Builder, layer: Layer, device: Device, only: str | None = None,
                 sparse_threshold: float | None = None) -> Choice:
    """The first algorithm that supports the problem, in its first config, with the layouts that
    move the fewest bytes. `only` and the threshold leave some of them, as choose() says."""
    able, place, reasons = _supporting(layer, device, only, sparse_threshold)
    first, variants = first_in_order(layer, able, place)
    reasons.update({other.name: f"comes after {first.name}" for other in able
                    if place is device and other is not first})

    def moved(variant: Variant) -> int:
        return sum(spec.nbytes for name, spec in zip(layer.inputs, variant.inputs, strict=True)
                   if not builder.specs[name].same_memory(spec)
                   and (name, spec) not in builder.copies)

    return Choice(first, min(variants, key=moved), place, reasons)


def first_in_order(layer: Layer, algorithms: Iterable[Algorithm],
                   place: Device) -> tuple[Algorithm, list[Variant]]:
    """The first algorithm that computes the layer in strict float32, and its first config in all
    layouts; for a change of precision, the first algorithm. Raises UnsupportedError for none."""
    assert layer.problem is not None
    for algorithm in algorithms:
        strict = [variant for variant in algorithm.variants(layer.problem, place)
                  if variant.precision == "fp32" or layer.inserted]
        if strict:
            return algorithm, [v for v in strict if v.config == strict[0].config]
    raise UnsupportedError(f"{layer.source or layer.name}: nothing on {place.name} computes "
                           f"{layer.problem.describe()} in float32")


def _best_alone(layer: Layer, device: Device, tuner: Tuner) -> Choice:
    """The fastest candidate whatever its layouts: for changes of layout, which state theirs."""
    able, place, reasons = _supporting(layer, device)
    trials = tuner.measure(layer, able, place)
    return _choice(min(trials, key=lambda trial: trial.cost), trials, place, reasons)


def _cheapest(layers: Sequence[Layer], specs: Mapping[str, TensorSpec],
              inputs: Mapping[str, TensorSpec], outputs: Sequence[str],
              constants: Mapping[str, np.ndarray], device: Device,
              tuner: Tuner, only: str | None, sparse_threshold: float | None,
              less_precise: Collection[str] | None) -> dict[str, Choice]:
    """The choice for each layer by name, from the exact least-cost labelling."""
    nodes: list[labelling.Node] = []
    options: list[tuple[Layer, Device, dict[str, str], list[Trial]] | None] = []
    for layer in layers:
        if layer.problem is None:
            # another shape of the same memory, which has to be row-major
            dtype = specs[layer.inputs[0]].dtype
            through = tuple(labelling.Choice(0.0, (("", each),), (("", each),))
                            for each in dict.fromkeys((dtype, *_lower(dtype, tuner))))
            nodes.append(labelling.Node(through, tuple(layer.inputs), tuple(layer.outputs)))
            options.append(None)
            continue
        able, place, reasons = _supporting(layer, device, only, sparse_threshold)
        trials = tuner.measure(layer, able, place)
        if less_precise is not None and layer.name not in less_precise:
            trials = [trial if trial.variant.precision == "fp32" else trial.excluded(
                "not in float32, which the tolerance asks for here") for trial in trials]
        options.append((layer, place, reasons, trials))
        nodes.append(labelling.Node(
            tuple(labelling.Choice(trial.cost, tuple(map(_label, trial.variant.inputs)),
                                   tuple(map(_label, trial.variant.outputs)))
                  for trial in trials),
            tuple(layer.inputs), tuple(layer.outputs)))

    def conversion(value: str, given: Hashable, needed: Hashable) -> float:
        source, target = (_as_labelled(specs[value], label) for label in (given, needed))
        layer = conversion_layer(value, f"{value} as {needed}", source, target)
        able, place, _ = _supporting(layer, device)
        return min(trial.cost for trial in tuner.measure(layer, able, place))

    labels = labelling.minimise(
        nodes, {name: _label(specs[name]) for name in (*inputs, *constants)}, conversion,
        required={name: _label(specs[name]) for name in outputs}).labels
    chosen = {}
    for option, label in zip(options, labels, strict=True):
        if option is not None:
            layer, place, reasons, trials = option
            chosen[layer.name] = _choice(trials[label], trials, place, reasons)
    return chosen


def _label(spec: TensorSpec) -> tuple[str, str]:
    """Layout and dtype as the labelling tells them apart; the layout is "" for all that lies as
    the default does."""
    plain = spec.same_memory(default_spec(spec.shape, spec.dtype))
    return ("" if plain else spec.layout), spec.dtype


def _as_labelled(spec: TensorSpec, label: Hashable) -> TensorSpec:
    assert isinstance(label, tuple)
    layout, dtype = label
    return replace(spec, layout=layout or spec.layout, dtype=dtype)


def _lower(dtype: str, tuner: Tuner) -> tuple[str, ...]:
    """The other dtypes in which a value of the network may lie."""
    return ("float16",) if dtype == "float32" and tuner.precision == "fp16" else ()


def _choice(taken: Trial, trials: Sequence[Trial], place: Device,
            reasons: Mapping[str, str]) -> Choice:
    """The trial taken, and why each other algorithm lost, by its best candidate."""
    rejected = dict(reasons)
    for name in dict.fromkeys(trial.algorithm.name for trial in trials):
        if name != taken.algorithm.name:
            best = min((t for t in trials if t.algorithm.name == name), key=lambda t: t.cost)
            rejected[name] = best.reason(taken)
    return Choice(taken.algorithm, taken.variant, place, rejected, trials)
