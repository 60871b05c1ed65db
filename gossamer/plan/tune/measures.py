"""The types in which the choice of candidates asks the tuner for measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from gossamer.device.base import Device
from gossamer.errors import GossamerError
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.plan.candidate import Candidate
from gossamer.plan.program import Layer

Chosen = tuple[Layer, Candidate, Device]
"""A layer, the candidate that is to compute it, and the device on which it does."""


@dataclass(frozen=True)
class Request:
    """A layer, the algorithms that may compute it, and the device on which they may.

    alone_us: for a region, microseconds that its layers take one by one; infinite for other layers.
    """

    layer: Layer
    algorithms: Sequence[Algorithm]
    device: Device
    alone_us: float = math.inf

    @property
    def problem(self) -> Problem:
        """The layer's problem."""
        assert self.layer.problem is not None
        return self.layer.problem


class When(Enum):
    """The moments at which further requests are made while the candidates of others are measured:
    as soon as others are built, when the candidates of list_candidates() are listed, when every
    layer and region that was requested has a time or no candidate that may be of use, and when, in
    addition, no candidate is left that could be begun."""

    BUILDING = auto()
    LISTED = auto()
    TIMED = auto()
    LAST = auto()


@dataclass(frozen=True)
class Further:
    """Requests that are made while the candidates of others are measured, and after those before
    them in a sequence.

    when: the moment. requests: returns them; it is called with a function that returns the best
    time of a layer or region that is known so far in microseconds, infinite where none is.
    """

    when: When
    requests: Callable[[Callable[[Layer], float]], Sequence[Request]]


def usable(layer: Layer, candidates: Sequence[Candidate], device: Device) -> list[Candidate]:
    """Returns the candidates that are not excluded. Raises GossamerError with the reasons where
    there are none."""
    remaining = [candidate for candidate in candidates if candidate.is_usable]
    if not remaining:
        raise GossamerError(
            f"{layer.source or layer.name}: no candidate works on {device.name}: "
            + "; ".join(f"{candidate.algorithm.name}: {candidate.measured.failure}"
                        for candidate in candidates[:3]))
    return remaining
