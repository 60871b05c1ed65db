"""The candidates that can be used, and the layers that share measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gossamer.device.base import Device
from gossamer.errors import GossamerError
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.candidate import Candidate
from gossamer.plan.program import Layer


def usable(layer: Layer, candidates: Sequence[Candidate], device: Device) -> list[Candidate]:
    """Return the candidates that are not excluded. Raises GossamerError with the reasons where all
    candidates are excluded."""
    remaining = [candidate for candidate in candidates if candidate.is_usable]
    if not remaining:
        raise GossamerError(
            f"{layer.source or layer.name}: no candidate works on {device.name}: "
            + "; ".join(f"{candidate.algorithm.name}: {candidate.measured.failure}"
                        for candidate in candidates[:3]))
    return remaining


def timed_problem(problem: Problem, algorithm: Algorithm) -> Problem:
    """Return the problem under which an algorithm's times are stored: for a dense algorithm this
    problem is the same for all weights."""
    return without_zeros(problem) if algorithm.dense else problem


def without_zeros(problem: Problem) -> Problem:
    """Return a problem that does not say which of its weights are zero."""
    if isinstance(problem, FusionProblem):
        return replace(problem, parts=tuple(map(without_zeros, problem.parts)))
    info: WeightsInfo | None = getattr(problem, "weights_info", None)
    if info is None:
        return problem
    return replace(problem, weights_info=WeightsInfo(  # type: ignore[type-var]
        facts=info.facts, scaled_signs=info.scaled_signs))


def similar_shape(problem: Problem) -> Problem | None:
    """Return a problem that is equal for problems that differ only in which of their weights are
    zero; None for a problem that does not say which."""
    info: WeightsInfo | None = getattr(problem, "weights_info", None)
    return None if info is None or not info.mask_hash else without_zeros(problem)
