"""The declaration of an op: its problem class, its reference and its algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.tensor import TensorSpec

Constant = TypeVar("Constant")
Input = TypeVar("Input")
Reference = Callable[[Any, Sequence[np.ndarray], Mapping[str, np.ndarray]], list[np.ndarray]]
"""A function of (problem, inputs, weights) that returns the outputs in float64."""


@dataclass(frozen=True)
class Op:
    """An operation of a network, with its reference and its algorithms.

    Attributes
    ----------
    name : str
        The name under which gossamer.ops.registry lists the op.
    problem : type of Problem
        The class of the op's problems.
    reference : callable
        ``reference(problem, inputs, weights)`` returns a list of the outputs for a list of the
        inputs and a mapping of names to constants. Arrays are in the logical layout: activations of
        rank 4 are (N, C, H, W). The function computes floats in float64, and integers and booleans
        exactly.
    algorithms : tuple of Algorithm
        The algorithms in the order in which they are tried if no times were measured.
    """

    name: str
    problem: type[Problem]
    reference: Reference
    algorithms: tuple[Algorithm, ...]


@dataclass(frozen=True)
class UnaryProblem(Problem):
    """A problem whose only run-time input is the field `input`.

    Attributes
    ----------
    input : TensorSpec
        Spec of the input.
    """

    input: TensorSpec

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The only input."""
        return (self.input,)


class OperandProblem(Problem):
    """A problem in which any of the operands may be constants.

    Attributes
    ----------
    operands : tuple of TensorSpec
        Spec of each operand, including constants.
    constants : tuple of int
        Indices of the operands that are constants. In the weights, operand i has the name
        ``operand<i>``. The other operands are the run-time inputs, in the same order.
    """

    operands: tuple[TensorSpec, ...]
    constants: tuple[int, ...]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The operands that are not constants."""
        return tuple(spec for index, spec in enumerate(self.operands)
                     if index not in self.constants)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the constants."""
        return {f"operand{index}": self.operands[index].shape for index in self.constants}

    def arranged(self, constants: Mapping[str, Constant],
                 inputs: Iterable[Input]) -> list[Constant | Input]:
        """Return a value for each operand.

        Parameters
        ----------
        constants : mapping
            Values of the constants by their names in the weights.
        inputs : iterable
            Values of the run-time inputs, in order.

        Returns
        -------
        list
            The values in the order of the operands.
        """
        remaining = iter(inputs)
        return [constants[f"operand{index}"] if index in self.constants else next(remaining)
                for index in range(len(self.operands))]


def in_float64(compute: Reference) -> Reference:
    """Convert a function to a reference that computes in float64.

    Parameters
    ----------
    compute : callable
        A function with the signature of a reference. It computes in the dtypes of its arrays.

    Returns
    -------
    callable
        A function that converts float arrays to float64 and calls `compute`.
    """
    def widened(array: np.ndarray) -> np.ndarray:
        return np.asarray(array, np.float64 if array.dtype.kind == "f" else None)

    def reference(problem: Any, inputs: Sequence[np.ndarray],
                  weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        # NaN from operations such as inf - inf needs no warning, as in HostAlgorithm
        with np.errstate(all="ignore"):
            return compute(problem, [widened(array) for array in inputs],
                           {name: widened(array) for name, array in weights.items()})
    return reference
