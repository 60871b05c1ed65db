"""What an op's folder declares: its problem class, its reference and its algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.ops.algorithm import Algorithm, Problem

Reference = Callable[[Any, Sequence[np.ndarray], Mapping[str, np.ndarray]], list[np.ndarray]]


@dataclass(frozen=True)
class Op:
    """reference(problem, inputs, weights) takes and returns logical arrays (rank-4 activations
    as N, C, H, W) and computes in float64, whatever the inputs' dtype (integers and booleans
    stay exact). algorithms: in the order they are tried where nothing was measured."""

    name: str
    problem: type[Problem]
    reference: Reference
    algorithms: tuple[Algorithm, ...]
