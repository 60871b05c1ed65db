"""The choice of an algorithm and a variant for every layer of a program."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np

from gossamer.device import find
from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.ops import OPS
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.copy.problem import convert
from gossamer.plan.program import Layer, Program, Step
from gossamer.tensor import TensorSpec, default_spec


def choose(layers: Iterable[Layer], batch: int, inputs: Mapping[str, TensorSpec],
           outputs: Iterable[str], constants: Mapping[str, np.ndarray],
           device: Device) -> Program:
    """A program for the layers, in a fixed order of algorithms: the first that supports the
    problem, in its first config, with the layouts that move the fewest bytes.

    A layer that no algorithm of the device supports runs on the host; raises UnsupportedError
    when the host cannot compute it either.
    """
    builder = _Builder(batch, device)
    for name, spec in inputs.items():
        builder.specs[name] = spec
        builder.inputs[name] = name
    for name, array in constants.items():
        builder.specs[name] = default_spec(array.shape, str(array.dtype))
        builder.constants[name] = array
    for layer in layers:
        builder.add(layer)
    for name in outputs:
        spec = builder.specs[name]
        builder.outputs[name] = builder.converted(name, default_spec(spec.shape, spec.dtype))
    return builder.program()


class _Builder:
    def __init__(self, batch: int, device: Device) -> None:
        self.batch = batch
        self.device = device
        self.steps: list[Step] = []
        self.specs: dict[str, TensorSpec] = {}
        self.aliases: dict[str, str] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.inputs: dict[str, str] = {}
        self.outputs: dict[str, str] = {}
        self._copies: dict[tuple[str, TensorSpec], str] = {}

    def program(self) -> Program:
        return Program(self.batch, self.steps, self.specs, self.aliases, self.constants,
                       self.inputs, self.outputs)

    def add(self, layer: Layer) -> None:
        if layer.problem is None:
            (name,), (spec,) = layer.outputs, layer.output_specs
            source = self.specs[layer.inputs[0]]
            # the reshaped tensor must be row-major, so its source has to be as well
            self.aliases[name] = self.converted(layer.inputs[0],
                                                default_spec(source.shape, source.dtype))
            self.specs[name] = spec
            return
        algorithm, device, rejected = self._algorithm(layer)
        variant = self._variant(layer, algorithm, device)
        sources = [self.converted(name, spec)
                   for name, spec in zip(layer.inputs, variant.inputs, strict=True)]
        self.steps.append(Step(layer, algorithm, variant, device, sources, layer.outputs,
                               rejected))
        self.specs.update(zip(layer.outputs, variant.outputs, strict=True))

    def converted(self, name: str, spec: TensorSpec) -> str:
        """The value in memory of that spec: itself, or a copy made once."""
        if self.specs[name].same_memory(spec):
            return name
        if (name, spec) not in self._copies:
            target = f"{name} as {spec.layout}"
            while target in self.specs:
                target += "'"
            problem = convert(self.specs[name], spec)
            layer = Layer(target, "copy", [name], [target], [spec], problem,
                          source=f"change of layout of {name!r}", inserted=True)
            algorithm, device, rejected = self._algorithm(layer)
            variant = next(iter(algorithm.variants(problem, device)))
            self.steps.append(Step(layer, algorithm, variant, device, [name], [target], rejected))
            self.specs[target] = spec
            self._copies[name, spec] = target
        return self._copies[name, spec]

    def _algorithm(self, layer: Layer) -> tuple[Algorithm, Device, dict[str, str]]:
        host = find("host")
        reasons: dict[str, str] = {}
        for device in (self.device, host):
            chosen: Algorithm | None = None
            for algorithm in OPS[layer.op].algorithms:
                reason = algorithm.supports(layer.problem, device)
                if reason is None and chosen is None:
                    chosen = algorithm
                elif device is self.device:
                    reasons[algorithm.name] = reason or f"comes after {chosen.name}"  # type: ignore[union-attr]
            if chosen is not None:
                return chosen, device, reasons
        raise UnsupportedError(
            f"{layer.source or layer.name}: nothing computes {layer.problem.describe()}: "  # type: ignore[union-attr]
            + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))

    def _variant(self, layer: Layer, algorithm: Algorithm, device: Device) -> Variant:
        variants = iter(algorithm.variants(layer.problem, device))
        first = next(variants)
        same_config = itertools.takewhile(lambda v: v.config == first.config, variants)

        def moved(variant: Variant) -> int:
            return sum(spec.nbytes for name, spec in zip(layer.inputs, variant.inputs, strict=True)
                       if not self.specs[name].same_memory(spec)
                       and (name, spec) not in self._copies)

        return min([first, *same_config], key=moved)
