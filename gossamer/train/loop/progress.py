"""What is told of training while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """What on_epoch is told after a epoch.

    epoch: epochs done, from 1. epochs: epochs wanted. loss: mean over the epoch, of each sample
    before its update. validation_loss, validation_accuracy: over the validation data after the
    epoch; None where there are none, the accuracy also for regression. device, algorithm: what
    trains.
    """

    epoch: int
    epochs: int
    loss: float
    validation_loss: float | None
    validation_accuracy: float | None
    samples_per_second: float
    device: str
    algorithm: str
    _accuracy: Callable[[], float | None] = field(repr=False, compare=False)

    @property
    def accuracy(self) -> float | None:
        """Of the training data (of 10,000 rows spread over them, where they have more) with the
        parameters after the epoch; computed when it is asked for, which may be until on_epoch
        returns. None for regression."""
        return self._accuracy()


OnEpoch = Callable[[Progress], None]
