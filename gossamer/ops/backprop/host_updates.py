"""Updates of back-propagation on the host, by single samples or by batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.linalg.blas import saxpy, sger
from scipy.special import expit, log_softmax

from gossamer.ops.backprop.problem import (
    BETAS,
    DERIVATIVES,
    EPSILON,
    BackpropProblem,
    Layers,
    adam_factor,
)


def one_by_one(problem: BackpropProblem, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a problem with one sample per update."""
    x, targets, order, settings = inputs[:4]
    parameters = np.array(inputs[4], np.float32)
    losses = np.zeros((problem.networks, problem.samples), np.float32)
    half = problem.weight_count
    for network, rows in enumerate(order):
        step = _OnlineUpdate(problem, problem.split(parameters[network, :half]),
                             problem.split(parameters[network, half:]) if problem.velocity else [],
                             *map(float, settings[network]))
        for sample, row in enumerate(rows):
            losses[network, sample] = step(x[row], targets[row])
    return [parameters, losses]


def in_batches(problem: BackpropProblem, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a problem with batches, Adam or weighted samples."""
    x, targets, order, settings = inputs[:4]
    sample_weights = inputs[5] if problem.weighted else None
    parameters = np.array(inputs[4], np.float32)
    losses = np.zeros((problem.networks, problem.samples), np.float32)
    for network, network_order in enumerate(order):
        update = BatchUpdate(problem, parameters[network], *map(float, settings[network]))
        for first in range(0, problem.samples, problem.batch):
            part = slice(first, first + problem.batch)
            update(x, targets, network_order[part], losses[network, part], sample_weights)
    return [parameters, losses]


class _OnlineUpdate:
    """The update of a network by one sample, in place.

    Each layer's weights get a rank-1 update, which reads and writes each weight once.
    """

    def __init__(self, problem: BackpropProblem, layers: Layers, velocities: Layers, rate: float,
                 momentum: float, decay: float) -> None:
        self.problem = problem
        self.layers = layers
        self.velocities = velocities
        self.rate, self.momentum, self.decay = rate, momentum, decay
        self.outputs = [np.empty(units, np.float32) for units, _ in problem.layer_shapes]

    def __call__(self, x: np.ndarray, target: np.ndarray) -> float:
        """Update the parameters by one sample, and return the sample's loss before the update."""
        problem = self.problem
        last = len(self.layers) - 1
        values = x
        for index, (weight, bias) in enumerate(self.layers):
            z = self.outputs[index]
            np.dot(weight, values, out=z)
            z += bias
            if index < last:
                ACTIVATE[problem.activation](z)
            values = z
        if problem.loss == "cross_entropy":
            logarithms = log_softmax(values)
            loss = -float(target @ logarithms)
            error = np.exp(logarithms) * target.sum() - target
        else:
            ACTIVATE[problem.output_activation](values)
            error = values - target
            loss = 0.5 * float(error @ error)
            error *= DERIVATIVES[problem.output_activation](values)
        for index in range(last, -1, -1):
            before = self.outputs[index - 1] if index else x
            below = None
            if index:
                below = error @ self.layers[index][0]
                below *= DERIVATIVES[problem.activation](before)
            self._update(index, before, error)
            if below is not None:
                error = below
        return loss

    def _update(self, index: int, before: np.ndarray, error: np.ndarray) -> None:
        """Update the parameters of a layer.

        before: the layer's inputs.
        error: the errors of the layer's units.
        """
        weight, bias = self.layers[index]
        if self.velocities:
            velocity, bias_velocity = self.velocities[index]
            velocity *= self.momentum
            sger(1.0, before, error, a=velocity.T, overwrite_a=True)
            if self.decay:
                saxpy(weight.ravel(), velocity.ravel(), a=self.decay)
            saxpy(velocity.ravel(), weight.ravel(), a=-self.rate)
            bias_velocity *= self.momentum
            bias_velocity += error
            bias -= self.rate * bias_velocity
            return
        if self.decay:
            # multiplying by 1 - rate * decay would repeat this factor's rounding error each time
            weight -= self.rate * self.decay * weight
        # BLAS expects column-major matrices, so the row-major matrix is passed transposed
        sger(-self.rate, before, error, a=weight.T, overwrite_a=True)
        bias -= self.rate * error


ACTIVATE: dict[str, Callable[[np.ndarray], object]] = {
    "sigmoid": lambda z: expit(z, out=z),
    "tanh": lambda z: np.tanh(z, out=z),
    "relu": lambda z: np.maximum(z, 0, out=z),
    "linear": lambda z: z,
}
"""Functions that compute the activations in place."""


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
"""Functions that multiply `error` in place by the derivative of an activation. `value` holds the
results of the activation, and `spare` is a scratch array of the same shape."""


class BatchUpdate:
    """The update of a network by a batch, in place.

    An update spends most of its time on the overhead of NumPy calls. To keep the number of calls
    small, all parameters are in one array and are updated together. Intermediate arrays are
    allocated only once.

    parameters: (parameter_count,) float32, one network of BackpropProblem's input 4.
    rate: learning rate.
    momentum: factor by which the velocity is multiplied at each update.
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
        """Update the parameters by the samples in `rows`.

        losses: (rows,), receives the loss of each sample before the update.
        """
        count = len(rows)
        batch_x, batch_targets = self._x[:count], self._targets[:count]
        # with mode="clip", take() writes to `out` without a buffer; it clips no row, because all
        # rows are in range
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
        """Compute the values of each layer.

        The last layer's values are sums; _output_errors() applies the output activation.
        """
        last = len(self._layers) - 1
        for index, (weight, bias) in enumerate(self._layers):
            z = values[index + 1]
            np.dot(values[index], weight.T, out=z)
            z += bias
            if index < last:
                ACTIVATE[self._problem.activation](z)

    def _output_errors(self, z: np.ndarray, targets: np.ndarray, error: np.ndarray,
                       spare: np.ndarray, losses: np.ndarray) -> None:
        """Compute the errors and losses of the outputs.

        z: the outputs before the activation; overwritten.
        """
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
        """Update the parameters by the gradient."""
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
