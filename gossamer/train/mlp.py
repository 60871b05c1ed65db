"""MLP: a fully connected network that is trained on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.device.base import Device
from gossamer.train.schedule import Schedule

if TYPE_CHECKING:
    from gossamer.model.graph import Graph


@dataclass(frozen=True)
class Progress:
    """What on_epoch is told after a pass.

    epoch: passes done, from 1. epochs: passes wanted. loss: mean over the pass, of each sample
    before its update. validation_loss, validation_accuracy: over the validation data after the
    pass; None where none are given, the accuracy also for regression. device, algorithm: what
    trained.
    """

    epoch: int
    epochs: int
    loss: float
    validation_loss: float | None
    validation_accuracy: float | None
    samples_per_second: float
    device: str
    algorithm: str

    @property
    def accuracy(self) -> float | None:
        """Of the training data with the parameters after the pass, computed when it is asked
        for, which may be until on_epoch returns; None for regression."""
        raise NotImplementedError


class MLP:
    """A fully connected network, by the conventions of scikit-learn."""

    def __init__(self, sizes: Sequence[int] = (), *, activation: str = "sigmoid",
                 loss: str = "squared_error", learning_rate: float = 0.3,
                 schedule: Schedule = "constant", momentum: float = 0.0,
                 weight_decay: float = 0.0, batch: int = 1, epochs: int = 10,
                 target_error: float | None = None, shuffle: bool = False,
                 initial: str = "uniform", seed: int | None = 0,
                 device: str | Device | None = None, effort: str | None = None,
                 algorithm: str | None = None) -> None:
        self.sizes = sizes
        self.activation = activation
        self.loss = loss
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.batch = batch
        self.epochs = epochs
        self.target_error = target_error
        self.shuffle = shuffle
        self.initial = initial
        self.seed = seed
        self.device = device
        self.effort = effort
        self.algorithm = algorithm

    coefs_: list[np.ndarray]
    intercepts_: list[np.ndarray]
    loss_curve_: list[float]
    n_iter_: int
    classes_: np.ndarray

    def fit(self, x: Any, y: Any, *, validation: tuple[Any, Any] | None = None,
            on_epoch: Callable[[Progress], None] | None = None,
            checkpoint: str | Path | None = None, resume: bool = False) -> MLP:
        raise NotImplementedError

    def partial_fit(self, x: Any, y: Any, classes: Any = None) -> MLP:
        raise NotImplementedError

    def predict(self, x: Any) -> np.ndarray:
        raise NotImplementedError

    def predict_proba(self, x: Any) -> np.ndarray:
        raise NotImplementedError

    def score(self, x: Any, y: Any) -> float:
        raise NotImplementedError

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        raise NotImplementedError

    def set_params(self, **params: Any) -> MLP:
        raise NotImplementedError

    def to_graph(self) -> Graph:
        raise NotImplementedError

    def save_onnx(self, path: str | Path) -> None:
        raise NotImplementedError
