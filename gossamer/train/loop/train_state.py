"""The state of a network's training, and its reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from gossamer.errors import TrainingError
from gossamer.train.loop.settings import Settings


@dataclass(frozen=True)
class Progress:
    """The report that is passed to on_epoch() after each epoch.

    Attributes
    ----------
    epoch : int
        Number of finished epochs, from 1.
    epochs : int
        Maximum number of epochs of the training.
    loss : float
        Mean loss of the epoch. The loss of a sample is computed before the sample's update.
    validation_loss : float or None
        Mean loss on the validation data after the epoch; None without validation data.
    validation_score : float or None
        Accuracy on the validation data after the epoch, from 0 to 1, or for regression R^2; None
        without validation data.
    samples_per_second : float
        Number of training samples per second.
    device : str
        Name of the training device.
    algorithm : str
        Name of the training algorithm.
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
        """Score on the training data after the epoch.

        The score is computed on access, on at most 10,000 evenly spaced rows. It can be accessed
        only until on_epoch returns.

        Returns
        -------
        float
            The accuracy, from 0 to 1; for regression R^2.
        """
        return self._score()


OnEpoch = Callable[[Progress], None]


_LEAST_GAIN = 1e-4
"""Minimum decrease of a loss that is treated as an improvement."""


@dataclass(frozen=True)
class Validation:
    """The result of a network on its validation data.

    loss: mean loss.
    score: accuracy, or R^2.
    """

    loss: float
    score: float

    def is_better(self, other: Validation) -> bool:
        """Return whether the score is higher, or equal with a smaller loss.

        The loss must be smaller by at least _LEAST_GAIN.
        """
        return self.score > other.score or (
            self.score == other.score and self.loss <= other.loss - _LEAST_GAIN)


@dataclass(frozen=True, eq=False)
class Best:
    """The epoch with the best result on the validation data.

    epoch: number of the epoch, from 1.
    validation: the result after the epoch.
    weights: (weight_count,) float32, the parameters after the epoch.
    """

    epoch: int
    validation: Validation
    weights: np.ndarray


@dataclass(eq=False)
class TrainState:
    """One network's training so far.

    settings: the settings of the training.
    rng: generator that draws the order of the next epoch.
    parameters: (parameter_count,) float32, after the finished epochs.
    epochs_done: number of finished epochs.
    curve: mean loss of each epoch.
    first: mean loss of the first samples (see train_loop.py) of the first epoch; None before that
    epoch.
    validation: the result after the last epoch; None without validation data.
    best: the best epoch so far; None without validation data, or if the last epoch is kept.
    idle: number of epochs since the last improvement.
    least: mean loss of the last epoch that note_loss() counted as an improvement.
    failure: text that says how training diverged, or "". After a divergence, the other fields have
    the values from before the epoch that diverged.
    trained_by: names of the device and of the algorithm that trained last; None before training.
    """

    settings: Settings
    rng: np.random.Generator
    parameters: np.ndarray
    epochs_done: int = 0
    curve: list[float] = field(default_factory=list)
    first: float | None = None
    validation: Validation | None = None
    best: Best | None = None
    idle: int = 0
    least: float = math.inf
    failure: str = ""
    trained_by: tuple[str, str] | None = None

    @staticmethod
    def start(settings: Settings) -> TrainState:
        """Return the state before the first epoch."""
        rng = np.random.default_rng(settings.seed)
        return TrainState(settings, rng, settings.start(rng))

    def under(self, settings: Settings) -> TrainState:
        """Return a state with other settings and the kept parameters.

        The optimiser's state (velocities or Adam's moments) is kept if it has the same size with
        both settings. If it has another size, it becomes 0.
        """
        problem, before = settings.problem(0, 0), self.settings.problem(0, 0)
        parameters = np.zeros(problem.parameter_count, np.float32)
        if problem.parameter_count == before.parameter_count:
            parameters[:] = self.parameters
        parameters[:problem.weight_count] = self.kept_weights
        return replace(self, settings=settings, parameters=parameters, curve=list(self.curve),
                       validation=None, best=None, idle=0, failure="")

    @property
    def kept_weights(self) -> np.ndarray:
        """The weights and biases after the kept epoch, (weight_count,) float32."""
        if self.best is not None and self.settings.keep == "best":
            return self.best.weights
        return self.parameters[:self.settings.problem(0, 0).weight_count]

    @property
    def kept_epoch(self) -> int:
        """Number of the kept epoch: the best if it is to be kept and is known, else the last."""
        if self.best is not None and self.settings.keep == "best":
            return self.best.epoch
        return self.epochs_done

    @property
    def reached(self) -> bool:
        """Whether the last epoch's mean loss met the target error."""
        target = self.settings.target_error
        return target is not None and bool(self.curve) and self.curve[-1] <= target

    @property
    def out_of_patience(self) -> bool:
        """Whether the epochs since the last improvement reached the patience."""
        return self.settings.patience is not None and self.idle >= self.settings.patience

    @property
    def ended(self) -> bool:
        """Whether training has ended."""
        return (bool(self.failure) or self.reached or self.out_of_patience
                or self.epochs_done >= self.settings.epochs)

    def note_loss(self) -> None:
        """Record whether the last epoch's mean loss improved."""
        improved = self.curve[-1] <= self.least - _LEAST_GAIN
        self.idle = 0 if improved else self.idle + 1
        if improved:
            self.least = self.curve[-1]

    def note_validation(self, validation: Validation) -> None:
        """Record the last epoch's result on the validation data.

        If the best epoch is to be kept and the last epoch is the best so far, its parameters are
        copied.
        """
        self.validation = validation
        if self.settings.keep != "best":
            self.note_loss()
            return
        self.idle += 1
        if self.best is None or validation.is_better(self.best.validation):
            count = self.settings.problem(0, 0).weight_count
            self.best = Best(self.epochs_done, validation, self.parameters[:count].copy())
            self.idle = 0

    def check(self) -> None:
        """Raise TrainingError if training diverged."""
        if self.failure:
            rate = self.settings.learning_rate
            scheduled_rate = self.settings.numbers(self.epochs_done)[0]
            raise TrainingError(
                f"training {self.failure}; the network has the parameters after epoch "
                f"{self.kept_epoch}: try a learning_rate below {rate:g}"
                + (f" (the schedule changed it to {scheduled_rate:g} in this epoch)"
                   if scheduled_rate != rate else "")
                + ", or scale x to values closer to 0")
