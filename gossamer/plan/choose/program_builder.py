"""A network at one batch size, and the builder of its programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from gossamer.device.base import Device
from gossamer.facts import REAL, ValueFacts
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.copy.problem import convert
from gossamer.plan.candidate import Candidate
from gossamer.plan.fusion import with_fusions
from gossamer.plan.in_place import keep_in_place
from gossamer.plan.program import Layer, Program, Step
from gossamer.tensor import (
    Format,
    TensorSpec,
    default_format,
    default_spec,
    image_shape,
    memory_format,
)


@dataclass(frozen=True)
class Network:
    """A network at one batch size, lowered to layers.

    No algorithms are chosen yet.

    inputs: specs of the network's inputs by the names of their values.
    outputs: specs of the network's outputs.
    constants: arrays of the values that are constants, by name.
    names: for each input that has another name than the value with the caller's array: the input's
    name, by the value's name.
    """

    layers: Sequence[Layer]
    batch: int
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    constants: Mapping[str, np.ndarray]
    names: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        """The spec of every value.

        Values other than inputs and outputs have the default layout. An input or constant that is
        also an output has its own spec, not that of the output.
        """
        specs: dict[str, TensorSpec] = {}
        for layer in self.layers:
            specs.update({name: default_spec(spec.shape, spec.dtype)
                          for name, spec in zip(layer.outputs, layer.problem.outputs, strict=True)})
        constants = {name: default_spec(array.shape, str(array.dtype))
                     for name, array in self.constants.items()}
        return {**specs, **self.outputs, **self.inputs, **constants}

    def program(self, device: Device, decide: Callable[[ProgramBuilder, Layer], LayerChoice],
                fusions: Sequence[Layer] = (),
                reshapes: Mapping[str, Format] | None = None) -> Program:
        """Return the program with the choices that decide() makes.

        Concatenations and slices of the program copy nothing if their formats allow that.

        decide, reshapes: as in ProgramBuilder.
        fusions: the fusions that are computed in one step.
        """
        builder = ProgramBuilder(self, decide, reshapes)
        for layer in with_fusions(self.layers, fusions):
            builder.add(layer)
        return keep_in_place(builder.finish(self.outputs), device)


@dataclass(frozen=True)
class LayerChoice:
    """The algorithm, variant and device that compute a layer.

    rejected: for every other algorithm, by name, the reason why it does not compute the layer.
    candidates: all candidates of the layer, also those that were left out.
    """

    algorithm: Algorithm
    variant: Variant
    device: Device
    rejected: dict[str, str] = field(default_factory=dict)
    candidates: Sequence[Candidate] = ()


class ProgramBuilder:
    """Builds a program layer by layer.

    decide: a function of this builder and a layer that returns the choice for the layer.
    reshapes: formats in which reshapes read their inputs, by the names of the layers; for other
    reshapes _kept() returns the format.
    """

    def __init__(self, network: Network, decide: Callable[[ProgramBuilder, Layer], LayerChoice],
                 reshapes: Mapping[str, Format] | None = None) -> None:
        self.program = Program(network.batch, [], {}, {}, dict(network.constants), {}, {},
                               reshapes=dict(reshapes or {}))
        self.specs = self.program.specs
        self.copies: dict[tuple[str, TensorSpec], str] = {}
        self._decide = decide
        self._facts: dict[str, ValueFacts] = {}
        for name, spec in network.inputs.items():
            self.specs[name] = spec
            self.program.inputs[network.names.get(name, name)] = name
        for name, array in network.constants.items():
            self.specs[name] = default_spec(array.shape, str(array.dtype))

    def add(self, layer: Layer) -> None:
        """Add a layer, after the conversions that it needs."""
        self._facts.update(layer.facts)
        if layer.is_reshape:
            (name,), (spec,) = layer.outputs, layer.problem.outputs
            source = self.specs[layer.inputs[0]]
            read = self.program.reshapes.get(layer.name) or _kept(source, spec)
            self.program.aliases[name] = self.converted(layer.inputs[0],
                                                        replace(source, format=read))
            self.specs[name] = replace(spec, format=read if read.is_packed else default_format(
                spec.shape, read.dtype))
            return
        choice = self._decide(self, layer)
        sources = [self.converted(name, spec)
                   for name, spec in zip(layer.inputs, choice.variant.inputs, strict=True)]
        self._append(layer, choice, sources)

    def finish(self, outputs: Mapping[str, TensorSpec]) -> Program:
        """Return the program, with its outputs converted to these specs."""
        for name, spec in outputs.items():
            self.program.outputs[name] = self.converted(name, spec)
        return self.program

    def converted(self, name: str, spec: TensorSpec) -> str:
        """Return the name of a value converted to a spec.

        If the value already has the spec, this is `name` itself. If not, a conversion is added,
        which all readers share.
        """
        if self.has(name, spec):
            return self.copies.get((name, _canonical(spec)), name)
        # Several formats may describe the same layout in memory. Readers that require any of these
        # formats share one conversion to the canonical format. The cost of the plan assignment
        # includes this conversion.
        present, spec = _canonical(self.specs[name]), _canonical(spec)
        changes = spec.format.differences(present.format) or [spec.layout]
        target = f"{name} as {' '.join(changes)}"
        while target in self.specs:
            target += "'"
        layer = conversion_layer(name, target, present, spec, self._facts.get(name, REAL))
        self._append(layer, self._decide(self, layer), [name])
        self.copies[name, spec] = target
        return target

    def has(self, name: str, spec: TensorSpec) -> bool:
        """Return whether a value exists in a spec's format."""
        return self.specs[name].same_memory(spec) or (name, _canonical(spec)) in self.copies

    def _append(self, layer: Layer, choice: LayerChoice, sources: list[str]) -> None:
        self.program.steps.append(Step(layer, choice.algorithm, choice.variant, choice.device,
                                       sources, layer.outputs, choice.rejected,
                                       choice.candidates))
        self.specs.update(zip(layer.outputs, choice.variant.outputs, strict=True))


def _kept(source: TensorSpec, target: TensorSpec) -> Format:
    """Return the format in which a reshape reads a value.

    A value that is not packed is read row-major, in its dtype. A packed value is read unchanged if
    both shapes of the reshape have the same packed layout. If not, it is read row-major, in the
    dtype of the reshaped tensor.
    """
    if not source.format.is_packed:
        return default_format(source.shape, source.dtype)
    if has_same_packing(source.shape, target.shape):
        return source.format
    return default_format(source.shape, target.dtype)


def _canonical(spec: TensorSpec) -> TensorSpec:
    """Return the spec with its memory_format().

    Formats that describe the same layout in memory have the same memory_format().
    """
    return replace(spec, format=memory_format(spec))


def has_same_packing(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether two shapes have the same packed layout.

    A matrix is packed like images of one pixel.
    """
    return all(len(each) in (2, 4) for each in (shape, other)) and (
        image_shape(shape) == image_shape(other))


def may_be_conversion(name: str, values: Iterable[str]) -> bool:
    """Return whether a layer's name may be the name of a conversion.

    values: names of the values that may be converted.
    """
    return any(name.startswith(f"{value} as ") for value in values)


def conversion_layer(name: str, target: str, source: TensorSpec, spec: TensorSpec,
                     facts: ValueFacts) -> Layer:
    """Return the layer that copies a value into another format.

    facts: the facts about the value.
    """
    property_changed = "layout" if source.dtype == spec.dtype else "precision"
    known: tuple[ValueFacts, ...] = ()
    if source.format.is_packed or spec.format.is_packed:
        property_changed, known = "packing", (facts,)
    return Layer(target, [name], [target], convert(source, spec, known),
                 source=f"change of {property_changed} of {name!r}", inserted=True)
