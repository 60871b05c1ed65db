"""Scales samples to a mean of 0 and a standard deviation of 1, and changes the parameters of a
trained network so that the network takes and gives unscaled numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_ROUNDING = 1e-6
"""A column counts as constant where its standard deviation is at most this share of its mean: such
a deviation may come from the rounding of float32."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """The change of samples before training: from each column its mean is subtracted, and the
    difference is divided by the column's standard deviation.

    x: mean and deviation of each column of x, (2, columns) float32; None where x is not scaled.
    y: mean and deviation of each column of the targets, (2, columns) float32; None where the
    targets are not scaled.
    """

    x: np.ndarray | None = None
    y: np.ndarray | None = None

    @staticmethod
    def of(x: np.ndarray | None, targets: np.ndarray | None) -> Scaling:
        """Returns the scaling of these columns; None leaves x, or the targets, as they are."""
        return Scaling(*(None if values is None else _mean_and_deviation(values)
                         for values in (x, targets)))

    @property
    def is_trivial(self) -> bool:
        """Whether nothing is changed."""
        return self.x is None and self.y is None

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Returns x (n, inputs) as it is trained on."""
        return x if self.x is None else (x - self.x[0]) / self.x[1]

    def targets(self, targets: np.ndarray) -> np.ndarray:
        """Returns targets (n, outputs) as they are trained on."""
        return targets if self.y is None else (targets - self.y[0]) / self.y[1]

    def folded(self, layers: list[tuple[np.ndarray, np.ndarray]]) -> list[
            tuple[np.ndarray, np.ndarray]]:
        """Returns weights (units, units of the layer before) and biases (units,) of layers that
        take unscaled x and give unscaled targets, computed in float64.

        Targets are scaled only where the outputs are linear.
        """
        layers = list(layers)
        if self.x is not None:
            mean, deviation = self.x.astype(np.float64)
            weight, bias = layers[0]
            divided = weight / deviation
            layers[0] = divided.astype(np.float32), (bias - divided @ mean).astype(np.float32)
        if self.y is not None:
            mean, deviation = self.y.astype(np.float64)
            weight, bias = layers[-1]
            layers[-1] = ((weight * deviation[:, None]).astype(np.float32),
                          (bias * deviation + mean).astype(np.float32))
        return layers


UNSCALED = Scaling()
"""The scaling that changes nothing."""


def _mean_and_deviation(values: np.ndarray) -> np.ndarray:
    """Returns the mean and the standard deviation of each column, (2, columns) float32; the
    deviation of a constant column is 1."""
    mean = values.mean(axis=0, dtype=np.float64)
    deviation = values.std(axis=0, dtype=np.float64)
    deviation[deviation <= _ROUNDING * np.abs(mean)] = 1
    return np.stack([mean, deviation]).astype(np.float32)
