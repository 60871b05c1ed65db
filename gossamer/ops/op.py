"""The declaration of an op: its problem class, its reference and its algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.ops.algorithm import Algorithm, Problem

Reference = Callable[[Any, Sequence[np.ndarray], Mapping[str, np.ndarray]], list[np.ndarray]]
"""A function of (problem, inputs, weights) that returns the outputs in float64."""


@dataclass(frozen=True)
class Op:
    """An operation of a network with all the ways to compute it.

    Attributes
    ----------
    name : str
        The name under which gossamer.ops.registry lists the op.
    problem : type of Problem
        The class of the op's problems.
    reference : callable
        ``reference(problem, inputs, weights)`` takes a list of the inputs and a mapping of names to
        constants, and returns a list of the outputs. Arrays are logical: activations of rank 4 are
        (N, C, H, W). The function computes in float64, whatever the dtype of the inputs; integers
        and booleans stay exact.
    algorithms : tuple of Algorithm
        The algorithms in the order in which they are tried where nothing was measured.
    """

    name: str
    problem: type[Problem]
    reference: Reference
    algorithms: tuple[Algorithm, ...]
