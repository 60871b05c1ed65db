"""One update of a network by a batch of samples, in NumPy, without temporary arrays.

An update computes so little that calls of NumPy take most of its time. All parameters therefore lie
in one array and are changed by a few calls, and the arrays of all intermediates are allocated once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg.blas import saxpy
from scipy.special import expit

from gossamer.ops.backprop.problem import BETAS, EPSILON, BackpropProblem
from gossamer.ops.backprop.reference import adam_factor

ACTIVATE: dict[str, Callable[[np.ndarray], object]] = {
    "sigmoid": lambda z: expit(z, out=z),
    "tanh": lambda z: np.tanh(z, out=z),
    "relu": lambda z: np.maximum(z, 0, out=z),
    "linear": lambda z: z,
}
"""For each activation, the function that computes the activation in place."""


def _sigmoid_slope(error: np.ndarray, value: np.ndarray, spare: np.ndarray) -> None:
    np.subtract(1, value, out=spare)
    spare *= value
    error *= spare


def _tanh_slope(error: np.ndarray, value: np.ndarray, spare: np.ndarray) -> None:
    np.multiply(value, value, out=spare)
    np.subtract(1, spare, out=spare)
    error *= spare


def _relu_slope(error: np.ndarray, value: np.ndarray, spare: np.ndarray) -> None:
    error *= value > 0


_TIMES_SLOPE: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], None]] = {
    "sigmoid": _sigmoid_slope,
    "tanh": _tanh_slope,
    "relu": _relu_slope,
    "linear": lambda error, value, spare: None,
}
"""For each activation, the function that multiplies `error` by the activation's derivative. `value`
has the results of the activation, and the array `spare` of the same shape is overwritten."""


class BatchUpdate:
    """Changes one network's parameters, in place, by the mean gradient of a batch.

    parameters: (parameter_count,) float32, as BackpropProblem has them for one network.
    rate: learning rate.
    momentum: share of the velocity that an update keeps.
    decay: weight decay.
    """

    def __init__(self, problem: BackpropProblem, parameters: np.ndarray, rate: float,
                 momentum: float, decay: float) -> None:
        count = problem.weight_count
        self._problem = problem
        self._weights, self._kept = parameters[:count], parameters[count:]
        self._rate, self._momentum, self._decay = rate, momentum, decay
        self._layers = problem.split(self._weights)
        self._gradient, self._spare = np.empty(count, np.float32), np.empty(count, np.float32)
        self._gradients = problem.split(self._gradient)
        batch = max(1, min(problem.batch, problem.samples))
        self._x, *self._values = (np.empty((batch, units), np.float32) for units in problem.sizes)
        self._errors, self._spares = ([np.empty_like(values) for values in self._values]
                                      for _ in range(2))
        self._targets = np.empty_like(self._values[-1])

    def __call__(self, x: np.ndarray, targets: np.ndarray, rows: np.ndarray, losses: np.ndarray,
                 sample_weights: np.ndarray | None) -> None:
        """Changes the parameters by the samples in `rows` of the data, and writes the loss of each
        sample before the change to `losses` (rows,)."""
        count = len(rows)
        batch_x, batch_targets = self._x[:count], self._targets[:count]
        # "clip" makes take() write to `out` without a buffer; no row is out of range
        x.take(rows, axis=0, out=batch_x, mode="clip")
        targets.take(rows, axis=0, out=batch_targets, mode="clip")
        values = [batch_x, *(array[:count] for array in self._values)]
        errors, spares = ([array[:count] for array in arrays]
                          for arrays in (self._errors, self._spares))
        self._forward(values)
        self._output_errors(values[-1], batch_targets, errors[-1], spares[-1], losses)
        scale = np.float32(1 / count)
        if sample_weights is None:
            errors[-1] *= scale
        else:
            of_rows = sample_weights[rows]
            losses *= of_rows
            errors[-1] *= (of_rows * scale)[:, None]
        for index in range(len(self._layers) - 1, -1, -1):
            by_weight, by_bias = self._gradients[index]
            np.dot(errors[index].T, values[index], out=by_weight)
            errors[index].sum(axis=0, out=by_bias)
            if index:
                np.dot(errors[index], self._layers[index][0], out=errors[index - 1])
                _TIMES_SLOPE[self._problem.activation](errors[index - 1], values[index],
                                                       spares[index - 1])
        if self._decay:
            for (weight, _), (by_weight, _) in zip(self._layers, self._gradients, strict=True):
                saxpy(weight.ravel(), by_weight.ravel(), a=self._decay)
        self._change()

    def _forward(self, values: list[np.ndarray]) -> None:
        """Computes the values of each layer from the values of the layer before. The values of the
        last layer stay sums: _output_errors() applies the output activation."""
        last = len(self._layers) - 1
        for index, (weight, bias) in enumerate(self._layers):
            z = values[index + 1]
            np.dot(values[index], weight.T, out=z)
            z += bias
            if index < last:
                ACTIVATE[self._problem.activation](z)

    def _output_errors(self, z: np.ndarray, targets: np.ndarray, error: np.ndarray,
                       spare: np.ndarray, losses: np.ndarray) -> None:
        """Computes the errors and losses of the outputs from the outputs' sums z, and overwrites
        z."""
        if self._problem.loss == "cross_entropy":
            z -= z.max(axis=1, keepdims=True)
            np.exp(z, out=error)
            total = error.sum(axis=1)
            wanted = targets.sum(axis=1)
            np.multiply(targets, z, out=spare)
            np.subtract(np.log(total) * wanted, spare.sum(axis=1), out=losses)
            error *= (wanted / total)[:, None]
            error -= targets
            return
        activation = self._problem.output_activation
        ACTIVATE[activation](z)
        np.subtract(z, targets, out=error)
        np.einsum("ij,ij->i", error, error, out=losses)
        losses *= 0.5
        _TIMES_SLOPE[activation](error, z, spare)

    def _change(self) -> None:
        """Changes the parameters by the gradient."""
        gradient, spare, count = self._gradient, self._spare, len(self._weights)
        if self._problem.adam:
            means, squares = self._kept[:count], self._kept[count:-1]
            self._kept[-1] += 1
            for average, share in zip((means, squares), BETAS, strict=True):
                average *= share
                np.multiply(gradient, 1 - share, out=spare)
                if average is squares:
                    spare *= gradient
                average += spare
            np.sqrt(squares, out=spare)
            spare += EPSILON
            np.divide(means, spare, out=spare)
            saxpy(spare, self._weights, a=-self._rate * adam_factor(float(self._kept[-1])))
            return
        if self._problem.velocity:
            self._kept *= self._momentum
            self._kept += gradient
            gradient = self._kept
        saxpy(gradient, self._weights, a=-self._rate)
