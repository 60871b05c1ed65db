"""The declaration of an op: its problem class, its reference and its algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.tensor import TensorSpec

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
