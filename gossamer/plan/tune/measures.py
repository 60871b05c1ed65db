"""The types in which the choice of candidates asks the tuner for measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.device.base import Device
from gossamer.errors import GossamerError
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.plan.candidate import Candidate
from gossamer.plan.program import Layer

Chosen = tuple[Layer, Candidate, Device]
"""A layer, the candidate that is to compute it, and the device of the candidate."""


@dataclass(frozen=True)
class MeasurementRequest:
    """A layer, and the algorithms that may compute it on a device."""

    layer: Layer
    algorithms: Sequence[Algorithm]
    device: Device

    @property
    def problem(self) -> Problem:
        """The layer's problem."""
        return self.layer.problem



def usable(layer: Layer, candidates: Sequence[Candidate], device: Device) -> list[Candidate]:
    """Returns the candidates that are not excluded. Raises GossamerError with the reasons where all
    candidates are excluded."""
    remaining = [candidate for candidate in candidates if candidate.is_usable]
    if not remaining:
        raise GossamerError(
            f"{layer.source or layer.name}: no candidate works on {device.name}: "
            + "; ".join(f"{candidate.algorithm.name}: {candidate.measured.failure}"
                        for candidate in candidates[:3]))
    return remaining
