"""Element-wise arithmetic over operands that broadcast against each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer.expression import DISCONTINUOUS, ROUNDINGS, Expression, identity
from gossamer.facts import REAL, ValueFacts, precision_of_values
from gossamer.ops.algorithm import Variant
from gossamer.ops.op import OperandProblem
from gossamer.tensor import Format, TensorSpec, default_spec

DTYPES = ("float32", "int32", "int64", "int8", "uint8", "int16", "uint16", "bool")


@dataclass(frozen=True)
class ElementwiseProblem(OperandProblem):
    """An expression, evaluated for every element of the broadcast shape.

    operands: spec of each input of the expression.
    constants: indices of the operands that are constants. In the weights, operand i has the name
    `operand<i>`. The other operands are the run-time inputs, in the same order.
    dtypes: dtype of each output of the expression. A conversion to bool tests for nonzero; a
    conversion of floats to integers truncates.
    formats: for each run-time input, the only format in which variants read it (for example bytes
    in NHWC, for photos), or None if any format is allowed. Empty if any format is allowed for all
    inputs.
    facts: value facts of each run-time input; empty if nothing is known.
    result: value facts of the output if it is the only output and has few distinct values; REAL for
    all other problems.

    The arithmetic is float32 if any operand is a float, else int64 if any operand is int64, else
    int32.
    Raises ValueError if the shapes do not broadcast or if a dtype is not in DTYPES.
    """

    op: ClassVar[str] = "elementwise"
    operands: tuple[TensorSpec, ...]
    expression: Expression
    dtypes: tuple[str, ...] = ("float32",)
    constants: tuple[int, ...] = ()
    formats: tuple[Format | None, ...] = ()
    facts: tuple[ValueFacts, ...] = ()
    result: ValueFacts = REAL

    def __post_init__(self) -> None:
        if len(self.operands) != self.expression.inputs or not self.operands:
            raise ValueError(f"{len(self.operands)} operands for {self.expression.inputs} inputs")
        if len(self.dtypes) != len(self.expression.outputs):
            raise ValueError(f"{len(self.dtypes)} dtypes for "
                             f"{len(self.expression.outputs)} outputs")
        for dtype in (*self.dtypes, *(spec.dtype for spec in self.operands)):
            if dtype not in DTYPES:
                raise ValueError(f"element-wise ops support {', '.join(DTYPES)}, not {dtype}")
        np.broadcast_shapes(*[spec.shape for spec in self.operands])
        if len(self.formats) not in (0, len(self.operands) - len(self.constants)):
            raise ValueError(f"{len(self.formats)} formats for "
                             f"{len(self.operands) - len(self.constants)} run-time inputs")

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*[spec.shape for spec in self.operands])

    @property
    def arithmetic(self) -> str:
        """The dtype in which the expression is computed."""
        dtypes = {spec.dtype for spec in self.operands}
        return next((dtype for dtype in ("float32", "int64") if dtype in dtypes), "int32")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.in_formats(super().inputs)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(default_spec(self.shape, dtype) for dtype in self.dtypes)

    @property
    def is_conversion(self) -> bool:
        """Whether the problem only changes the format of one tensor."""
        return bool(self.formats) and len(self.operands) == 1 and self.expression.is_identity

    @property
    def is_continuous(self) -> bool:
        """Whether the only result is a continuous function of float32 numbers in any format.

        Roundings to fewer bits count as continuous.
        """
        return (self.dtypes == ("float32",) and not self.formats
                and all(operand.dtype == "float32" for operand in self.operands)
                and not any(step.function in DISCONTINUOUS - ROUNDINGS
                            for step in self.expression.steps))

    def in_formats(self, specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specs of the run-time inputs with `formats` applied.

        An input whose format is None keeps its spec.
        """
        if not self.formats:
            return tuple(specs)
        return tuple(spec if own is None else TensorSpec(spec.shape, own)
                     for spec, own in zip(specs, self.formats, strict=True))

    def reading(self, variant: Variant) -> Variant:
        """Return the variant with `formats` applied to its inputs."""
        return replace(variant, inputs=self.in_formats(variant.inputs))

    @property
    def exact_precision(self) -> str:
        return precision_of_values((*self.facts, self.result))

    @property
    def flops(self) -> int:
        return self.expression.flops * self.outputs[0].size

    def first_images(self, count: int) -> ElementwiseProblem:
        shape = self.shape
        has_images = [len(spec.shape) == len(shape) > 0 and spec.shape[0] == shape[0]
                      for spec in self.operands]
        if any(has_images[index] for index in self.constants):
            return self
        return replace(self, operands=tuple(
            spec.first(count) if by_image else spec
            for spec, by_image in zip(self.operands, has_images, strict=True)))

    def describe(self) -> str:
        steps = "+".join(step.function for step in self.expression.steps
                         if step.function != "constant" or not self.formats) or "cast"
        own = ", ".join(str(format_) for format_ in self.formats if format_ is not None)
        return f"{f'{own} -> ' if own else ''}{steps} {self.outputs[0]}"


def cast(source: TensorSpec, dtype: str) -> ElementwiseProblem:
    """Return the conversion of a tensor to another dtype."""
    return ElementwiseProblem((source,), identity(), (dtype,))


def reference(problem: ElementwiseProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    arithmetic = "float64" if problem.arithmetic == "float32" else problem.arithmetic
    return compute(problem, inputs, weights, arithmetic)


def compute(problem: ElementwiseProblem, inputs: Sequence[np.ndarray],
            weights: Mapping[str, np.ndarray], arithmetic: str) -> list[np.ndarray]:
    """Evaluate the expression in the dtype `arithmetic`.

    If `arithmetic` is a float dtype, the problem's float32 outputs are returned with this dtype.
    """
    values = problem.expression.evaluate(
        *[np.asarray(operand).astype(arithmetic, copy=False)
          for operand in problem.arranged(weights, inputs)])
    return [np.broadcast_to(_converted(value, dtype), problem.shape)
            for value, dtype in zip(values, problem.dtypes, strict=True)]


def _converted(value: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bool":
        return value != 0
    if dtype == "float32" and value.dtype.kind == "f":
        return value
    with np.errstate(invalid="ignore"):
        if dtype == "uint8" and value.dtype.kind == "f":
            value = value.astype(np.int32)
        return value.astype(dtype)
