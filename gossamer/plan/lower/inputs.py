"""Layers that compute a network's inputs from callers' tensors: bytes, float16, and images in
NHWC."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gossamer.expression import Expression, ExpressionStep
from gossamer.model.graph import StaticGraph, ValueInfo, names_of, unused_name
from gossamer.model.input_format import InputFormat
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.weights import WeightsStore
from gossamer.plan.program import Layer
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class GivenInputs:
    """The inputs of a network at one batch size as callers give them.

    layers: the layer that computes an input from the caller's tensor, for each input that needs
    such a layer.
    specs: the specs of the values that hold callers' tensors, by their names.
    names: the names of the inputs with such a layer, by the names of the values that hold callers'
    tensors.
    """

    layers: list[Layer] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


def given_inputs(static: StaticGraph, store: WeightsStore) -> GivenInputs:
    """Return the inputs of a graph as callers give them. store: the packed weights of the
    network's layers."""
    result = GivenInputs()
    taken, layers = names_of(static.graph), {node.name for node in static.graph.nodes}
    for info in static.graph.inputs:
        spec = default_spec(static.shapes[info.name], static.dtypes[info.name])
        if info.given is None:
            result.specs[info.name] = spec
            continue
        value = unused_name(taken, f"given {info.name}")
        result.specs[value] = TensorSpec(spec.shape, info.given.format(len(spec.shape)))
        result.names[value] = info.name
        name = unused_name(layers, f"input {info.name}")
        result.layers.append(_layer(name, info, info.given, value, spec, store))
    return result


def _layer(name: str, info: ValueInfo, given: InputFormat, value: str,
           spec: TensorSpec, store: WeightsStore) -> Layer:
    """Return the layer that computes an input from the value that holds the caller's tensor."""
    expression, constants = _affine(given, spec)
    problem = ElementwiseProblem(
        (spec, *(default_spec(array.shape) for array in constants)), expression,
        constants=tuple(range(1, len(constants) + 1)),
        formats=(given.format(len(spec.shape)),))
    weights = {f"operand{index + 1}": array for index, array in enumerate(constants)}
    return Layer(name, [value], [info.name], problem,
                 weights, source=f"input {info.name!r} as {given}", store=store)


def _affine(given: InputFormat, spec: TensorSpec) -> tuple[Expression, list[np.ndarray]]:
    """Return the expression that multiplies by the format's factors and adds its shifts, with the
    arrays of its further inputs. A number that all channels share is a constant of the expression;
    numbers that differ between channels are further inputs."""
    steps: list[ExpressionStep] = []
    constants: list[np.ndarray] = []
    used = [(name, numbers) for name, numbers, neutral in (
        ("mul", given.factors, (1.0,)), ("add", given.shifts, (0.0,))) if numbers != neutral]
    inputs = 1 + sum(len(numbers) > 1 for _, numbers in used)
    value = 0
    for name, numbers in used:
        if len(numbers) > 1:
            constants.append(np.array(numbers, np.float32).reshape(
                -1, *(1,) * (len(spec.shape) - 2)))
            other = len(constants)
        else:
            steps.append(ExpressionStep("constant", (), numbers))
            other = inputs + len(steps) - 1
        steps.append(ExpressionStep(name, (value, other)))
        value = inputs + len(steps) - 1
    return Expression(inputs, tuple(steps)), constants
