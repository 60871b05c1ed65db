"""Back-propagation in NumPy: the float64 reference, and parts that the host algorithm shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gossamer.ops.backprop.problem import BackpropProblem

Layers = list[tuple[np.ndarray, np.ndarray]]
"""Weights (units, units of the layer before) and biases (units,) of each layer, or gradients or
velocities of the same shapes."""


def reference(problem: BackpropProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the outputs of a problem, computed in float64."""
    return train(problem, inputs, np.dtype(np.float64))


def train(problem: BackpropProblem, inputs: Sequence[np.ndarray],
          dtype: np.dtype) -> list[np.ndarray]:
    """Returns the outputs of a problem, computed in a floating-point type."""
    x, targets = (np.asarray(array, dtype) for array in inputs[:2])
    order, settings = inputs[2], np.asarray(inputs[3], dtype)
    parameters = np.array(inputs[4], dtype)
    losses = np.zeros((problem.networks, problem.samples), dtype)
    half = problem.weight_count
    for network in range(problem.networks):
        layers = problem.split(parameters[network, :half])
        velocities = problem.split(parameters[network, half:]) if problem.velocity else None
        for first in range(0, problem.samples, problem.batch):
            rows = order[network, first:first + problem.batch]
            loss, gradients = gradient(problem, layers, x[rows], targets[rows])
            losses[network, first:first + problem.batch] = loss
            _update(layers, velocities, gradients, *settings[network])
    return [parameters, losses]


def gradient(problem: BackpropProblem, layers: Layers, x: np.ndarray,
             targets: np.ndarray) -> tuple[np.ndarray, Layers]:
    """Returns the loss of each sample, and the gradient of the loss, averaged over the samples."""
    outputs = forward(problem, layers, x)
    y = outputs[-1]
    if problem.loss == "cross_entropy":
        # the logarithm of the softmax, which is finite where the softmax itself is 0
        loss = -(targets * _log_softmax(outputs[-2] @ layers[-1][0].T + layers[-1][1])).sum(1)
        error = y * targets.sum(1, keepdims=True) - targets
    else:
        loss = 0.5 * ((targets - y) ** 2).sum(1)
        error = (y - targets) * DERIVATIVES[problem.output_activation](y)
    gradients: Layers = []
    for index in reversed(range(len(layers))):
        gradients.insert(0, (error.T @ outputs[index] / len(x), error.mean(0)))
        if index:
            error = error @ layers[index][0] * DERIVATIVES[problem.activation](outputs[index])
    return loss, gradients


def forward(problem: BackpropProblem, layers: Layers, x: np.ndarray) -> list[np.ndarray]:
    """Returns the inputs, then the outputs of each layer."""
    outputs = [x]
    for index, (weight, bias) in enumerate(layers):
        last = index == len(layers) - 1
        activation = problem.output_activation if last else problem.activation
        outputs.append(FUNCTIONS[activation](outputs[-1] @ weight.T + bias))
    return outputs


def _sigmoid(z: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + e), e / (1 + e))


def _log_softmax(z: np.ndarray) -> np.ndarray:
    shifted = z - z.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "relu": lambda z: np.maximum(z, 0),
    "softmax": lambda z: np.exp(_log_softmax(z)),
    "none": lambda z: z,
}

DERIVATIVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": lambda a: a * (1 - a),
    "tanh": lambda a: 1 - a * a,
    "relu": lambda a: (a > 0).astype(a.dtype),
    "none": np.ones_like,
}
"""Derivative of each activation, as a function of the activation's value."""


def _update(layers: Layers, velocities: Layers | None, gradients: Layers, rate: float,
            momentum: float, decay: float) -> None:
    """Changes the parameters, and the velocities where there are any, by gradients."""
    for index, ((weight, bias), (by_weight, by_bias)) in enumerate(
            zip(layers, gradients, strict=True)):
        changes = [by_weight + decay * weight, by_bias]
        if velocities is not None:
            for velocity, change in zip(velocities[index], changes, strict=True):
                velocity *= momentum
                velocity += change
            changes = list(velocities[index])
        weight -= rate * changes[0]
        bias -= rate * changes[1]
