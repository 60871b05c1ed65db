"""A network at one batch size, and the programs that are built of choices for its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gossamer.device.base import Device
from gossamer.plan.choose.builder import LayerChoice, ProgramBuilder
from gossamer.plan.fusion import with_fusions
from gossamer.plan.in_place import keep_in_place
from gossamer.plan.program import Layer, Program
from gossamer.tensor import Format, TensorSpec, default_spec


@dataclass(frozen=True)
class Network:
    """A network at one batch size, lowered to layers for which nothing is chosen yet.

    inputs: the specs of the network's inputs by the names of their values.
    outputs: the specs of the network's outputs.
    constants: the arrays of values that are constants.
    names: the names of inputs by the names of the values that hold the callers' arrays, where the
    two names differ.
    """

    layers: Sequence[Layer]
    batch: int
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    constants: Mapping[str, np.ndarray]
    names: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        """The spec of every value. Values other than inputs and outputs have the default layout. An
        input or a constant that is an output, too, has its own spec, not that of the output."""
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
        """Returns the program with the choices that decide() makes. Its concatenations and slices
        copy nothing where the formats allow that.

        decide, reshapes: as in ProgramBuilder. fusions: the fusions that are computed in one step.
        """
        builder = ProgramBuilder(self.batch, self.inputs, self.constants, decide, reshapes,
                                 self.names)
        for layer in with_fusions(self.layers, fusions):
            builder.add(layer)
        return keep_in_place(builder.finish(self.outputs), self.layers, device)
