"""Progress: the report that a user's function gets after each epoch of a training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """The report that on_epoch gets after each epoch.

    Attributes
    ----------
    epoch : int
        Number of finished epochs, from 1.
    epochs : int
        Largest number of epochs that are trained.
    loss : float
        Mean loss of the epoch; the loss of a sample is computed before the update to which the
        sample belongs.
    validation_loss : float or None
        Mean loss on the validation data after the epoch; None without validation data.
    validation_score : float or None
        Accuracy on the validation data after the epoch, from 0 to 1, or for regression R^2; None
        without validation data.
    samples_per_second : float
        Samples that were trained on per second.
    device : str
        Name of the device that trains.
    algorithm : str
        Name of the algorithm that trains.
    """

    epoch: int
    epochs: int
    loss: float
    validation_loss: float | None
    validation_score: float | None
    samples_per_second: float
    device: str
    algorithm: str
    _score: Callable[[], float] = field(repr=False, compare=False)

    @property
    def score(self) -> float:
        """Score on the training data with the parameters after the epoch.

        The score is computed when it is read, which is possible until on_epoch returns. Where there
        are more than 10,000 rows, it is computed on 10,000 of them, which are spread over all rows.

        Returns
        -------
        float
            The accuracy, from 0 to 1; for regression R^2.
        """
        return self._score()


OnEpoch = Callable[[Progress], None]
