"""Training of fully connected networks by back-propagation: the problem and its reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from gossamer.errors import one_of
from gossamer.ops.algorithm import Problem
from gossamer.tensor import TensorSpec, default_spec

ACTIVATIONS = ("sigmoid", "tanh", "relu")
LOSSES = ("squared_error", "cross_entropy")
OUTPUTS = ("linear", "sigmoid", "tanh")
"""Activations of the outputs with the loss "squared_error"."""
BETAS = (0.9, 0.999)
"""Adam's decay rates of the running means of the gradients and of the squared gradients."""
EPSILON = 1e-8
"""The number that Adam adds to each square root, to avoid division by 0."""
DENSITIES = (1.0, 0.5, 0.25, 0.1)
"""The density of the data (the fraction of nonzero inputs) is rounded to one of these numbers, so
that measured times are shared by data of similar density."""
_SAMPLED_ROWS = 1000
"""Approximate number of rows from which the density of the data is estimated; up to twice as many
may be used."""


@dataclass(frozen=True)
class BackpropProblem(Problem):
    """Training of one or more networks of the same sizes by back-propagation.

    sizes: number of units of each layer, inputs first.
    rows: number of samples in the data.
    samples: number of samples per network to train on, in the order of input 2.
    activation: activation of the hidden layers, one of ACTIVATIONS.
    loss: one of LOSSES; with "cross_entropy" the outputs are a softmax.
    batch: number of samples per update (1: online); the last update takes the remaining samples.
    velocity: True if momentum is used.
    adam: True if parameters are updated by Adam; excludes `velocity`.
    output: activation of the outputs with the loss "squared_error", one of OUTPUTS. None means
    "linear" if the hidden layers have relu, else the activation of the hidden layers.
    weighted: True if each row has a weight, which multiplies the loss and the gradient of the row.
    networks: number of networks, which are trained independently.

    The following fields affect times and example_inputs(), but not results:
    density: fraction of nonzero elements of x.
    binary: True if all elements of x are 0 or 1.
    decay: True if the weight decay is not 0.

    Inputs:
    0. x, (rows, sizes[0]) float32.
    1. targets, (rows, sizes[-1]) float32.
    2. order, (networks, samples) int32: the row of each sample, in the order of training.
    3. settings, (networks, 3) float32: learning rate, momentum, weight decay.
    4. parameters, (networks, parameter_count) float32: for each layer the weights, (units, units
       of the layer before), row-major, then the biases. With `velocity`, the velocities follow in
       the same order. With `adam`, the means of the gradients, the means of the squared gradients,
       and the number of updates so far follow.
    5. only if `weighted`: the weight of each row, (rows,) float32.
    Outputs:
    0. parameters after the last update; this output may share the memory of input 4.
    1. losses, (networks, samples) float32: the loss of each sample before its update.

    Starting from a = x, each layer computes z = W a + b and a = activation(z). The activation of
    the last layer is `output_activation`. The loss is 0.5 sum (t - a)^2, or -sum t log a. Let g be
    the gradient of the loss with respect to a parameter, averaged over the update's samples. For
    weights, but not for biases, g also contains weight decay * weight. Then
    velocity = momentum * velocity + g, parameter -= learning rate * velocity. For one sample, and
    without momentum and weight decay, this is the published update w += rate * err * input. With
    Adam, m and v are the running means of g and g^2: m = b m + (1 - b) g and
    v = c v + (1 - c) g^2, where BETAS = (b, c). At update t,
    parameter -= learning rate * sqrt(1 - c^t) / (1 - b^t) * m / (sqrt(v) + EPSILON).

    Sources: online training with sigmoid units and squared error is from a publication of 2013 on
    back-propagation on a GPU with all data in GPU memory. Adam is from Kingma and Ba (2015), in the
    form that the last lines before their section 2.1 give. All other methods are standard.
    """

    op: ClassVar[str] = "backprop"

    sizes: tuple[int, ...]
    rows: int
    samples: int
    activation: str = "sigmoid"
    loss: str = "squared_error"
    batch: int = 1
    velocity: bool = False
    networks: int = 1
    density: float = 0.25
    binary: bool = False
    decay: bool = True
    adam: bool = False
    output: str | None = None
    weighted: bool = False

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ValueError(f"sizes {self.sizes}: expected at least two layers, each of at least "
                             "one unit")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r}: "
                             f"{one_of(self.activation, ACTIVATIONS)}")
        if self.loss not in LOSSES:
            raise ValueError(f"loss {self.loss!r}: {one_of(self.loss, LOSSES)}")
        if self.output not in (None, *OUTPUTS):
            raise ValueError(f"output {self.output!r}: {one_of(self.output, OUTPUTS)}")
        if self.output is not None and self.loss != "squared_error":
            raise ValueError(f"output {self.output!r}: requires the loss squared_error; with "
                             "cross_entropy the outputs are a softmax")
        if self.adam and self.velocity:
            raise ValueError("adam and velocity: expected at most one of them")
        if self.batch < 1 or min(self.rows, self.samples, self.networks) < 0:
            raise ValueError(f"batch {self.batch}, rows {self.rows}, samples {self.samples}, "
                             f"networks {self.networks}: expected a batch of 1 or more, and no "
                             "negative count")
        if not 0 < self.density <= 1:
            raise ValueError(f"density {self.density}: expected a number above 0 and at most 1")

    @property
    def output_activation(self) -> str:
        """Activation of the outputs: sigmoid, tanh, softmax or linear."""
        if self.loss == "cross_entropy":
            return "softmax"
        return self.output or ("linear" if self.activation == "relu" else self.activation)

    @property
    def layer_shapes(self) -> list[tuple[int, int]]:
        """Shape of each layer's weights: (units, units of the layer before)."""
        return [(units, before) for before, units in pairwise(self.sizes)]

    @property
    def weight_count(self) -> int:
        """Number of weights and biases of one network."""
        return sum(units * (before + 1) for units, before in self.layer_shapes)

    @property
    def parameter_count(self) -> int:
        """Number of parameters of one network, including velocities, or Adam's means and count."""
        if self.adam:
            return 3 * self.weight_count + 1
        return self.weight_count * (2 if self.velocity else 1)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (default_spec((self.rows, self.sizes[0])),
                default_spec((self.rows, self.sizes[-1])),
                default_spec((self.networks, self.samples), "int32"),
                default_spec((self.networks, 3)),
                default_spec((self.networks, self.parameter_count)),
                *([default_spec((self.rows,))] if self.weighted else []))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (default_spec((self.networks, self.parameter_count)),
                default_spec((self.networks, self.samples)))

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {}

    @property
    def flops(self) -> int:
        """Floating-point operations of the forward pass, the errors and the updates.

        A multiply-add counts as two.
        """
        products = sum(units * before for units, before in self.layer_shapes)
        backward = products - self.sizes[0] * self.sizes[1]
        return 2 * (2 * products + backward) * self.samples * self.networks

    @property
    def least_bytes(self) -> int:
        """Minimum traffic in bytes: samples read, losses written, parameters read and written."""
        samples = 4 * min(self.rows, self.samples * self.networks) * (self.sizes[0]
                                                                       + self.sizes[-1])
        return samples + 2 * self.outputs[0].nbytes + self.outputs[1].nbytes

    def example_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return data and settings with which training stays finite.

        As in pictures, some inputs are zero more often than others, and neighbouring inputs are
        zero about equally often. This matters for exact blocking, which skips inputs that are zero
        in all samples of a block. At the density of binarised MNIST, 0.146, exact blocking in
        blocks of eight samples must process 36% of the example's inputs, and 35% of MNIST's. If
        all inputs were zero equally often, it would have to process 72%.
        """
        inputs = self.sizes[0]
        position = (np.arange(inputs) + 0.5) / inputs
        x = (rng.random((self.rows, inputs)) < position ** (1 / self.density - 1)).astype(
            np.float32)
        if not self.binary:
            x *= 1 - rng.random(x.shape, np.float32)
        targets = np.eye(self.sizes[-1], dtype=np.float32)[
            rng.integers(0, self.sizes[-1], self.rows)]
        order = rng.integers(0, max(self.rows, 1), (self.networks, self.samples), np.int32)
        settings = np.empty((self.networks, 3), np.float32)
        settings[:] = 0.05, 0.9 if self.velocity else 0.0, 1e-4 if self.decay else 0.0
        parameters = rng.uniform(-0.05, 0.05, self.inputs[4].shape).astype(np.float32)
        parameters[:, self.weight_count:] = 0
        weights = [rng.uniform(0.5, 1.5, self.rows).astype(np.float32)] if self.weighted else []
        return [x, targets, order, settings, parameters, *weights]

    def split(self, parameters: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return views of one network's (weights, biases), layer by layer.

        parameters: the weights and biases, or other values in the same order, such as velocities.
        """
        layers, start = [], 0
        for units, before in self.layer_shapes:
            middle, end = start + units * before, start + units * (before + 1)
            layers.append((parameters[start:middle].reshape(units, before),
                           parameters[middle:end]))
            start = end
        return layers

    def of_samples(self, count: int) -> BackpropProblem:
        """Return the same problem with another number of samples."""
        return replace(self, samples=count)

    def like(self, x: np.ndarray, decay: bool) -> BackpropProblem:
        """Return the same problem with `density`, `binary` and `decay` set for the given data.

        The density is rounded to the element of DENSITIES that is closest to it on a log scale.

        x: the data (rows, inputs).
        decay: True if weight decay is not 0.
        """
        sampled = x[::max(1, len(x) // _SAMPLED_ROWS)]
        share = max(np.count_nonzero(sampled) / max(sampled.size, 1), 1e-6)
        return replace(
            self, density=min(DENSITIES, key=lambda density: abs(np.log(density / share))),
            binary=bool(((sampled == 0) | (sampled == 1)).all()), decay=decay)

    def describe(self) -> str:
        text = f"{'-'.join(map(str, self.sizes))} {self.activation} {self.loss}"
        if self.output_activation != replace(self, output=None).output_activation:
            text += f", {self.output} outputs"
        if self.adam:
            text += ", Adam"
        if self.weighted:
            text += ", weighted samples"
        if self.batch > 1:
            text += f", batch {self.batch}"
        if self.networks != 1:
            text += f", {self.networks} networks"
        return f"{text}, {self.samples} samples"


Layers = list[tuple[np.ndarray, np.ndarray]]
"""Weights (units, units of the layer before) and biases (units,) of each layer; also gradients or
velocities of the same shapes."""


def reference(problem: BackpropProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a problem, computed in float64."""
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
    """Return the losses (samples,) and the mean gradient over samples x (samples, inputs)."""
    outputs = forward(problem, layers, x)
    y = outputs[-1]
    if problem.loss == "cross_entropy":
        # the log-softmax is finite even if the softmax underflows to 0
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
    """Return a list of x (samples, inputs) followed by the outputs of each layer."""
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
    """Update one network's parameters in place."""
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
    """Return the factor by which Adam multiplies the learning rate in an update.

    updates: number of updates, including this one.
    """
    by_mean, by_square = BETAS
    return math.sqrt(1 - by_square**updates) / (1 - by_mean**updates)
