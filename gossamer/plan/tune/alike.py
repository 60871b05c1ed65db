"""Decides which layers share the measured times of candidates, and which layers are so alike that
the best candidates of one layer are expected to be the best candidates of the other layer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.weights import WeightsInfo

_DENSITIES = 10
"""Number of equal steps from density 0 to 1; layers whose densities round to the same step are
alike."""


def timed_problem(problem: Problem, algorithm: Algorithm) -> Problem:
    """Returns the problem under which an algorithm's times are stored: for a dense algorithm this
    problem is the same for all weights."""
    return without_zeros(problem) if algorithm.dense else problem


def without_zeros(problem: Problem) -> Problem:
    """Returns a problem that does not say which of its weights are zero."""
    if isinstance(problem, FusionProblem):
        return replace(problem, parts=tuple(map(without_zeros, problem.parts)))
    info: WeightsInfo | None = getattr(problem, "weights_info", None)
    if info is None:
        return problem
    return replace(problem, weights_info=WeightsInfo(  # type: ignore[type-var]
        facts=info.facts, scaled_signs=info.scaled_signs))


def likeness(problem: Problem) -> Hashable | None:
    """Returns a value that is equal for the problems of layers that are alike, with the same shapes
    and the same density, rounded to a tenth. Returns None where no weight is zero."""
    info: WeightsInfo | None = getattr(problem, "weights_info", None)
    if info is None or not info.mask_hash:
        return None
    return without_zeros(problem), round(info.density * _DENSITIES)
