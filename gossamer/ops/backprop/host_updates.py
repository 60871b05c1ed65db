"""The updates of back-propagation on the host, one sample or one batch after another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg.blas import saxpy, sger
from scipy.special import log_softmax

from gossamer.ops.backprop.batch_update import ACTIVATE, BatchUpdate
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.backprop.reference import DERIVATIVES, Layers


def one_by_one(problem: BackpropProblem, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the outputs of a problem with one sample per update."""
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
    """Returns the outputs of a problem with several samples per update, or with Adam or weighted
    samples."""
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
    """Trains a network on one sample, in place: a rank-1 update per layer reads and writes each
    weight once."""

    def __init__(self, problem: BackpropProblem, layers: Layers, velocities: Layers, rate: float,
                 momentum: float, decay: float) -> None:
        self.problem = problem
        self.layers = layers
        self.velocities = velocities
        self.rate, self.momentum, self.decay = rate, momentum, decay
        self.outputs = [np.empty(units, np.float32) for units, _ in problem.layer_shapes]

    def __call__(self, x: np.ndarray, target: np.ndarray) -> float:
        """Changes the parameters by one sample, and returns the sample's loss before the change."""
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
        """Changes the parameters of a layer by its inputs `before` and its errors."""
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
            # a product with a factor just below 1 would round in the same direction at each sample
            weight -= self.rate * self.decay * weight
        # BLAS takes column-major matrices, so it gets the transpose of a row-major matrix
        sger(-self.rate, before, error, a=weight.T, overwrite_a=True)
        bias -= self.rate * error
