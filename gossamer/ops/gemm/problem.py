"""The product of a run-time matrix and constant weights, with an epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from gossamer.facts import REAL, ValueFacts, precision_of_products, sums_integers
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.epilogue import epilogue_inputs, operand_arrays
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class GemmProblem(Problem):
    """The product of a run-time matrix and constant weights.

    y[i, j] = epilogue(sum over k of x[i, k] * weight[j, k]). The columns are the channels of the
    epilogue.

    The constants are `weight` of shape (columns, depth) and the epilogue's channel operands.

    facts: value facts of each run-time input; empty if nothing is known.
    result: value facts of the output if it has few distinct values; else REAL.
    """

    op: ClassVar[str] = "gemm"

    rows: int
    columns: int
    depth: int
    epilogue: Epilogue = field(default_factory=Epilogue)
    weights_info: WeightsInfo = field(default_factory=WeightsInfo)
    facts: tuple[ValueFacts, ...] = ()
    result: ValueFacts = REAL

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        x = default_spec((self.rows, self.depth))
        return (x, *epilogue_inputs(self.epilogue, self.outputs[0].shape))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (default_spec((self.rows, self.columns)),)

    @property
    def sums_integers(self) -> bool:
        return sums_integers(self.facts, self.weights_info.facts)

    @property
    def exact_precision(self) -> str:
        return precision_of_products(self.facts, self.weights_info.facts, self.result)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"weight": (self.columns, self.depth)}
        for index, kind in enumerate(self.epilogue.operands):
            if kind == "channel":
                shapes[f"operand{index}"] = (self.columns,)
        return shapes

    @property
    def flops(self) -> int:
        return self.rows * self.columns * (2 * self.depth + self.epilogue.expression.flops)

    def first_images(self, count: int) -> GemmProblem:
        return replace(self, rows=min(count, self.rows))

    def describe(self) -> str:
        return f"{self.rows}x{self.depth} * {self.depth}x{self.columns}"


def reference(problem: GemmProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    constants = {name: np.asarray(a, dtype=np.float64) for name, a in weights.items()}
    x, *tensors = (np.asarray(a, dtype=np.float64) for a in inputs)
    operands = operand_arrays(problem.epilogue, constants, tensors, 2)
    return [problem.epilogue.expression.evaluate(x @ constants["weight"].T, *operands)[0]]
