"""Fusions under construction, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.expression import Composer, Value
from gossamer.ops.algorithm import Problem
from gossamer.ops.copy.problem import expand, slice_, transpose
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import FusionProblem, ReshapeProblem, Source, entry
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.tensor import TensorSpec, default_spec


class Layers:
    """The layers of a fusion under construction.

    Values are named by their sources; constants are given by their shapes.
    """

    def __init__(self) -> None:
        self.parts: list[Problem] = []
        self.sources: list[tuple[Source, ...]] = []
        self._entries: list[TensorSpec] = []

    def input(self, shape: Sequence[int]) -> Source:
        self._entries.append(default_spec(tuple(shape)))
        return entry(len(self._entries) - 1)

    def spec(self, source: Source) -> TensorSpec:
        part, output = source
        return self._entries[output] if part < 0 else self.parts[part].outputs[output]

    def add(self, part: Problem, *sources: Source) -> Source:
        self.parts.append(part)
        self.sources.append(sources)
        return len(self.parts) - 1, 0

    def reduce(self, kind: str, x: Source, axes: Sequence[int], *, keepdims: bool = True) -> Source:
        return self.add(ReduceProblem(self.spec(x), kind, tuple(axes), keepdims), x)

    def reshape(self, x: Source, *shape: int) -> Source:
        return self.add(ReshapeProblem(self.spec(x), shape), x)

    def expand(self, x: Source, shape: Sequence[int]) -> Source:
        return self.add(expand(self.spec(x), shape), x)

    def transpose(self, x: Source, *permutation: int) -> Source:
        return self.add(transpose(self.spec(x), permutation), x)

    def slice(self, x: Source, axis: int, start: int, end: int) -> Source:
        return self.add(slice_(self.spec(x), [start], [end], [axis]), x)

    def product(self, a: Source, b: Source, transposed: tuple[int, ...] = ()) -> Source:
        return self.add(MatmulProblem(self.spec(a), self.spec(b), transposed=transposed), a, b)

    def softmax(self, x: Source) -> Source:
        return self.add(SoftmaxProblem(self.spec(x), len(self.spec(x).shape) - 1), x)

    def compute(self, value: Value, **operands: Source | tuple[int, ...]) -> Source:
        """Add an element-wise layer.

        operands: the source of each operand that the value reads, or the shape of a constant;
        sources are pairs, and shapes have another number of sizes.
        """
        names, expression = value.composer.build(value)
        given = [operands[name] for name in names]
        constants = tuple(index for index, operand in enumerate(given) if len(operand) != 2)
        specs = tuple(default_spec(operand) if index in constants else self.spec(operand)
                      for index, operand in enumerate(given))
        return self.add(ElementwiseProblem(specs, expression, constants=constants),
                        *(operand for index, operand in enumerate(given)
                          if index not in constants))

    def fusion(self, *exits: Source) -> FusionProblem:
        return FusionProblem(tuple(self.parts), tuple(self.sources), exits)


def operand(name: str) -> Value:
    return Composer().operand(name)
