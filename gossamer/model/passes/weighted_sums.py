"""Finds the weighted sums that element-wise nodes compute: values times factors, plus a constant.

Additions, batch norms, and scales and shifts of channels, one after another in any order, make such
sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.expression import Expression, ExpressionStep
from gossamer.model.graph import Graph, Node
from gossamer.model.infer.shapes_by_batch import ShapesByBatch


@dataclass(frozen=True)
class WeightedSum:
    """The sum of values times factors, plus a constant. The factors and the constant are float64;
    each is one number, or an array (C, 1, 1) with a number for each channel.

    factors: a factor for each value, by its name.
    """

    factors: dict[str, np.ndarray]
    constant: np.ndarray

    @classmethod
    def of_value(cls, name: str) -> WeightedSum:
        return cls({name: np.ones(())}, np.zeros(()))

    @classmethod
    def of_constant(cls, constant: float | np.ndarray) -> WeightedSum:
        return cls({}, np.asarray(constant, np.float64))

    def plus(self, other: WeightedSum) -> WeightedSum:
        factors = dict(self.factors)
        for name, factor in other.factors.items():
            factors[name] = factors[name] + factor if name in factors else factor
        return WeightedSum(factors, self.constant + other.constant)

    def times(self, scale: float | np.ndarray) -> WeightedSum:
        return WeightedSum({name: factor * scale for name, factor in self.factors.items()},
                           self.constant * scale)


def weighted_sums(graph: Graph, shapes: ShapesByBatch,
                  users: dict[str, list[Node]]) -> list[tuple[Node, WeightedSum]]:
    """Returns the element-wise nodes that compute weighted sums of images, each with its sum. A sum
    that only one other sum of the same shape reads is a part of that sum."""
    sums: dict[str, tuple[Node, WeightedSum]] = {}
    for node in graph.nodes:
        if node.op != "elementwise" or len(node.outputs) != 1:
            continue
        name, = node.outputs
        if shapes.rank(name) != 4:
            continue
        channels = shapes.shapes(name)[0][1]
        inner = {value for value in node.inputs if value in sums and len(users[value]) == 1
                 and shapes.equal(value, name)}
        total = evaluated(node.attributes["expression"], [
            sums[value][1] if value in inner else _operand(graph, value, channels)
            for value in node.inputs])
        if total is not None:
            sums[name] = node, total
            for value in inner:
                del sums[value]
    return list(sums.values())


def _operand(graph: Graph, name: str, channels: int) -> WeightedSum:
    """Returns an operand as a sum: a constant where it is one number, or one number for each
    channel, else the value itself."""
    array = graph.constants.get(name)
    if array is None or (1,) * (4 - array.ndim) + array.shape not in (
            (1, 1, 1, 1), (1, channels, 1, 1)):
        return WeightedSum.of_value(name)
    return WeightedSum.of_constant(array.reshape(() if array.size == 1 else (channels, 1, 1)))


def evaluated(expression: Expression, operands: Sequence[WeightedSum]) -> WeightedSum | None:
    """Returns the first result of an expression whose operands are sums, as a sum too. Returns None
    where the result of a step is no such sum."""
    values = list(operands)
    for step in expression.steps:
        value = _applied(step, [values[index] for index in step.arguments])
        if value is None:
            return None
        values.append(value)
    return values[expression.outputs[0]]


def _applied(step: ExpressionStep, arguments: Sequence[WeightedSum]) -> WeightedSum | None:
    match step.function, arguments:
        case "constant", _:
            return WeightedSum.of_constant(step.constants[0])
        case "neg", (value,):
            return value.times(-1)
        case "add", (first, second):
            return first.plus(second)
        case "sub", (first, second):
            return first.plus(second.times(-1))
        case "mul", (first, second) if not second.factors:
            return first.times(second.constant)
        case "mul", (first, second) if not first.factors:
            return second.times(first.constant)
        case "div", (first, second) if not second.factors:
            return first.times(1 / second.constant)
    return None
