"""A trained network on the host: what it gives out, and how good that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.backprop.reference import Layers, forward
from gossamer.train.data.samples import Samples
from gossamer.train.loop.settings import Settings
from gossamer.train.loop.train_state import TrainState

_ROWS = 8192
"""Rows computed together."""
JUDGED = 10_000
"""Rows that the accuracy of training data is taken from."""


@dataclass(frozen=True)
class TrainedNetwork:
    """problem: says the activations. layers: (weights (units, units before), biases) of each."""

    problem: BackpropProblem
    layers: Layers

    @staticmethod
    def of(state: TrainState) -> TrainedNetwork:
        return TrainedNetwork.with_layers(state.settings,
                                   state.settings.problem(0, 0).split(state.parameters))

    @staticmethod
    def with_layers(settings: Settings, layers: Layers) -> TrainedNetwork:
        return TrainedNetwork(settings.problem(0, 0), layers)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.problem.sizes

    @property
    def activations(self) -> list[str]:
        """Of each layer; "none" for none."""
        hidden = [self.problem.activation] * (len(self.layers) - 1)
        return [*hidden, self.problem.output_activation]

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """(n, outputs) for x (n, inputs), in float32."""
        if len(x) == 0:
            return np.empty((0, self.sizes[-1]), np.float32)
        return np.concatenate([forward(self.problem, self.layers, x[first:first + _ROWS])[-1]
                               for first in range(0, len(x), _ROWS)])

    def loss(self, outputs: np.ndarray, x: np.ndarray, targets: np.ndarray) -> float:
        """The mean loss of the samples."""
        if self.problem.loss == "squared_error":
            return float(0.5 * np.square(targets - outputs, dtype=np.float64).sum(axis=1).mean())
        total = 0.0
        for first in range(0, len(x), _ROWS):
            part = slice(first, first + _ROWS)
            # from the sums, as a softmax may round to 0
            before = forward(self.problem, self.layers, x[part])[-2]
            sums = (before @ self.layers[-1][0].T + self.layers[-1][1]).astype(np.float64)
            sums -= sums.max(axis=1, keepdims=True)
            logarithm = sums - np.log(np.exp(sums).sum(axis=1, keepdims=True))
            total -= float((targets[part] * logarithm).sum())
        return total / len(x)

    def score(self, outputs: np.ndarray, data: Samples) -> float:
        """The accuracy, or for regression the coefficient of determination."""
        if data.labels is None:
            return determination(outputs, data.targets)
        return float((outputs.argmax(axis=1) == data.labels).mean())

    def judged(self, data: Samples, rows: np.ndarray) -> float:
        """The score over those rows, or over 10,000 spread over them where there are more."""
        if len(rows) > JUDGED:
            rows = rows[np.linspace(0, len(rows) - 1, JUDGED).astype(np.intp)]
        some = data.rows(rows)
        return self.score(self.outputs(some.x), some)


def determination(y: np.ndarray, targets: np.ndarray) -> float:
    """R^2 of predictions, averaged over the outputs; of a target that never changes 1 where all
    are met and 0 where not."""
    y, targets = y.astype(np.float64), targets.astype(np.float64)
    missed = np.square(targets - y).sum(axis=0)
    spread = np.square(targets - targets.mean(axis=0)).sum(axis=0)
    constant = spread == 0
    found = 1 - missed / np.where(constant, 1, spread)
    return float(np.where(constant, missed == 0, found).mean())
