"""Outputs of a trained network, with their loss and score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gossamer.ops.backprop.problem import BackpropProblem, Layers, forward
from gossamer.train.data.samples import Samples
from gossamer.train.loop.settings import Settings
from gossamer.train.loop.train_state import TrainState, Validation

_ROWS = 8192
"""Number of rows that are computed at once."""
JUDGED = 10_000
"""Maximum number of rows of the training data on which a score is computed."""


@dataclass(frozen=True)
class TrainedNetwork:
    """A network with its parameters.

    problem: the back-propagation problem, which names the activations.
    layers: weights (units, units of the layer before) and biases (units,) of each layer.
    """

    problem: BackpropProblem
    layers: Layers

    @staticmethod
    def of(state: TrainState) -> TrainedNetwork:
        """Return the network with the parameters after a state's last epoch."""
        return TrainedNetwork.with_layers(
            state.settings, state.settings.problem(0, 0).split(state.parameters))

    @staticmethod
    def kept_of(state: TrainState) -> TrainedNetwork:
        """Return the network with the parameters of a state's kept epoch."""
        return TrainedNetwork.with_layers(
            state.settings, state.settings.problem(0, 0).split(state.kept_weights))

    @staticmethod
    def with_layers(settings: Settings, layers: Layers) -> TrainedNetwork:
        """Return a network with the settings' activations and these parameters."""
        return TrainedNetwork(settings.problem(0, 0), layers)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.problem.sizes

    @property
    def activations(self) -> list[str]:
        """Name of each layer's activation."""
        hidden = [self.problem.activation] * (len(self.layers) - 1)
        return [*hidden, self.problem.output_activation]

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """Return the outputs for x (n, inputs), as (n, outputs) float32."""
        if len(x) == 0:
            return np.empty((0, self.sizes[-1]), np.float32)
        return np.concatenate([forward(self.problem, self.layers, x[first:first + _ROWS])[-1]
                               for first in range(0, len(x), _ROWS)])

    def loss(self, outputs: np.ndarray, x: np.ndarray, targets: np.ndarray) -> float:
        """Return the mean loss of samples.

        outputs: (n, outputs), the result of outputs() for x.
        x: (n, inputs).
        targets: (n, outputs).
        """
        if self.problem.loss == "squared_error":
            return float(0.5 * np.square(targets - outputs, dtype=np.float64).sum(axis=1).mean())
        total = 0.0
        for first in range(0, len(x), _ROWS):
            part = slice(first, first + _ROWS)
            # the logarithm is computed from the inputs of the softmax, because outputs of the
            # softmax may round to 0
            activations = forward(self.problem, self.layers, x[part])[-2]
            sums = (activations @ self.layers[-1][0].T + self.layers[-1][1]).astype(np.float64)
            sums -= sums.max(axis=1, keepdims=True)
            logarithm = sums - np.log(np.exp(sums).sum(axis=1, keepdims=True))
            total -= float((targets[part] * logarithm).sum())
        return total / len(x)

    def score(self, data: Samples) -> float:
        """Return the accuracy on samples; for regression the coefficient of determination."""
        return self.score_of(self.outputs(data.x), data)

    def score_of(self, outputs: np.ndarray, data: Samples) -> float:
        """Return the score of the outputs for `data.x`, as score() does."""
        if data.labels is None:
            return determination(outputs, data.targets)
        return float((outputs.argmax(axis=1) == data.labels).mean())

    def validated(self, data: Samples) -> Validation:
        """Return the loss and score on validation data."""
        outputs = self.outputs(data.x)
        return Validation(self.loss(outputs, data.x, data.targets), self.score_of(outputs, data))


def judged_rows(rows: np.ndarray) -> np.ndarray:
    """Return at most JUDGED evenly spaced rows of the training data, for a score."""
    if len(rows) <= JUDGED:
        return rows
    return rows[np.linspace(0, len(rows) - 1, JUDGED).astype(np.intp)]


def determination(y: np.ndarray, targets: np.ndarray,
                  weights: np.ndarray | None = None) -> float:
    """Return R^2 of predictions, averaged over the outputs.

    If all targets of an output are equal, its R^2 is 1 if all predictions equal them, else 0.

    y: (n, outputs) predictions.
    targets: (n, outputs).
    weights: (n,) weight of each row; None if all weights are equal.
    """
    y, targets = y.astype(np.float64), targets.astype(np.float64)
    residual = np.average(np.square(targets - y), axis=0, weights=weights)
    mean = np.average(targets, axis=0, weights=weights)
    spread = np.average(np.square(targets - mean), axis=0, weights=weights)
    constant = spread == 0
    scores = 1 - residual / np.where(constant, 1, spread)
    return float(np.where(constant, residual == 0, scores).mean())
