"""Back-propagation in NumPy: the float64 reference, and parts that the host algorithm shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gossamer.ops.backprop.problem import BETAS, EPSILON, BackpropProblem

Layers = list[tuple[np.ndarray, np.ndarray]]
"""Weights (units, units of the layer before) and biases (units,) of each layer, or gradients or
velocities of the same shapes."""


def reference(problem: BackpropProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the outputs of a problem, computed in float64."""
    x, targets, settings = (np.asarray(inputs[index], np.float64) for index in (0, 1, 3))
    sample_weights = np.asarray(inputs[5], np.float64) if problem.weighted else np.ones(len(x))
    parameters = np.array(inputs[4], np.float64)
    losses = np.zeros((problem.networks, problem.samples))
    for network, order in enumerate(inputs[2]):
        for first in range(0, problem.samples, problem.batch):
            rows = order[first:first + problem.batch]
            layers = problem.split(parameters[network])
            loss, gradients = gradient(problem, layers, x[rows], targets[rows],
                                       sample_weights[rows])
            losses[network, first:first + problem.batch] = loss
            _update(problem, parameters[network], gradients, *settings[network])
    return [parameters, losses]


def gradient(problem: BackpropProblem, layers: Layers, x: np.ndarray, targets: np.ndarray,
             sample_weights: np.ndarray) -> tuple[np.ndarray, Layers]:
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
    error *= sample_weights[:, None]
    gradients: Layers = []
    for index in reversed(range(len(layers))):
        gradients.insert(0, (error.T @ outputs[index] / len(x), error.mean(0)))
        if index:
            error = error @ layers[index][0] * DERIVATIVES[problem.activation](outputs[index])
    return loss * sample_weights, gradients


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
    "linear": lambda z: z,
}

DERIVATIVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": lambda a: a * (1 - a),
    "tanh": lambda a: 1 - a * a,
    "relu": lambda a: (a > 0).astype(a.dtype),
    "linear": np.ones_like,
}
"""Derivative of each activation, as a function of the activation's value."""


def _update(problem: BackpropProblem, parameters: np.ndarray, gradients: Layers, rate: float,
            momentum: float, decay: float) -> None:
    """Changes one network's parameters by gradients."""
    count = problem.weight_count
    weights = parameters[:count]
    change = np.concatenate([part.ravel() for (weight, _), (by_weight, by_bias) in zip(
        problem.split(weights), gradients, strict=True)
        for part in (by_weight + decay * weight, by_bias)])
    if problem.velocity:
        velocity = parameters[count:]
        velocity *= momentum
        velocity += change
        change = velocity
    if problem.adam:
        means, squares = parameters[count:2 * count], parameters[2 * count:3 * count]
        parameters[-1] += 1
        for average, share, value in zip((means, squares), BETAS, (change, change**2),
                                         strict=True):
            average *= share
            average += (1 - share) * value
        change = adam_factor(parameters[-1]) * means / (np.sqrt(squares) + EPSILON)
    weights -= rate * change


def adam_factor(updates: float) -> float:
    """Returns the factor by which Adam multiplies the learning rate in an update. updates: the
    number of the update, counted from 1."""
    by_mean, by_square = BETAS
    return math.sqrt(1 - by_square**updates) / (1 - by_mean**updates)
