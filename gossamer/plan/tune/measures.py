"""The interface between the choice of candidates and their measurement."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Sequence
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


class Measures(abc.ABC):
    """A source of measured candidates. precision: the least precise that is allowed."""

    precision: str

    @abc.abstractmethod
    def refusal_reason(self, algorithm: Algorithm, problem: Problem, device: Device) -> str | None:
        """Returns why an algorithm does not support a problem on a device, or has no variant whose
        precision and build time are allowed; None where it has one."""

    @abc.abstractmethod
    def list_candidates(self, layers: Iterable[Layer], device: Device) -> bool:
        """Starts to list the candidates of layers, so that refusal_reason() and measure() have
        them soon; returns whether that goes on while the caller does something else."""

    @abc.abstractmethod
    def measure_all(self, requests: Sequence[Request], further: Sequence[Further] = ()) -> None:
        """Measures the candidates of several layers together, so that measure() has them.

        further: requests that are made meanwhile. Where there are some, more configs may be added
        after the last of them.
        """

    @abc.abstractmethod
    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                device: Device) -> Sequence[Candidate]:
        """Returns the algorithms' candidates within the effort, in order of preference. Those that
        would take too long to build, or were not tried, are among them as excluded."""

    @abc.abstractmethod
    def conversion_us(self, problem: Problem, device: Device) -> float | None:
        """Returns the least time that a conversion can take, by an estimate; None where it has been
        measured or shall be."""

    @abc.abstractmethod
    def verify(self, chosen: Iterable[Chosen]) -> None:
        """Checks several candidates together, so that verified() knows of them."""

    @abc.abstractmethod
    def verified(self, layer: Layer, candidate: Candidate, device: Device) -> Candidate:
        """Returns the candidate, excluded where it is wrong with the layer's own constants."""


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
