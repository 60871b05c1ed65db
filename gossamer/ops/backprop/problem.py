"""Training a fully connected network by back-propagation, for a run of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from gossamer.ops.algorithm import Problem
from gossamer.tensor import TensorSpec, default_spec

ACTIVATIONS = ("sigmoid", "tanh", "relu")
LOSSES = ("squared_error", "cross_entropy")
DENSITIES = (1.0, 0.5, 0.25, 0.1)
"""Of the inputs: what data count as, so that all that are nearly as dense are measured as one."""
_LOOKED_AT = 1000
"""Rows (or up to twice as many) that tell what data are like."""


@dataclass(frozen=True)
class BackpropProblem(Problem):
    """Updates the parameters of one or more networks of the same sizes, sample after sample.

    sizes: units a layer, inputs first. rows: samples that the data hold. samples: how many are
    trained on, in the given order. batch: samples an update (1: online); the last update takes
    what is left. velocity: whether momentum is used. networks: how many are trained, each alone.

    Times depend on these too, results do not; examples are made so. density: the share of x that
    is not zero. binary: whether that is all 1. decay: whether weights decay.

    Inputs:
    0. x, (rows, sizes[0]) float32.
    1. targets, (rows, sizes[-1]) float32.
    2. order, (networks, samples) int32: which row comes when.
    3. settings, (networks, 3) float32: learning rate, momentum, weight decay.
    4. parameters, (networks, parameter_count) float32: for each layer the weights (units x units
       before), row-major, then the biases; with `velocity`, the velocities after them, likewise.
    Outputs:
    0. the parameters after the last update; may be the memory of input 4.
    1. loss, (networks, samples) float32: of each sample before the update it takes part in.

    Forward, from a = x: z = W a + b, a = activation(z). The last layer's activation is softmax
    for cross_entropy; for squared_error that of the hidden layers, but none for relu.
    The loss is 0.5 sum (t - a)^2, or -sum t log a. With g the gradient of the loss to a parameter,
    averaged over the update's samples, plus weight decay times the parameter for weights (not
    for biases): velocity = momentum * velocity + g, parameter -= learning rate * velocity; one
    sample's published form is w += rate * err * input.

    Source: training by back-propagation on a GPU with everything resident (2013), its online
    form with sigmoid units and squared error; the others are standard.
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

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ValueError(f"sizes {self.sizes}: expected two layers or more of a unit or more")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r}: expected one of "
                             f"{', '.join(ACTIVATIONS)}")
        if self.loss not in LOSSES:
            raise ValueError(f"loss {self.loss!r}: expected one of {', '.join(LOSSES)}")
        if self.batch < 1 or min(self.rows, self.samples, self.networks) < 0:
            raise ValueError(f"batch {self.batch}, rows {self.rows}, samples {self.samples}, "
                             f"networks {self.networks}: expected a batch of 1 or more, and no "
                             "negative count")
        if not 0 < self.density <= 1:
            raise ValueError(f"density {self.density}: expected above 0, and 1 at most")

    @property
    def output_activation(self) -> str:
        """sigmoid, tanh, softmax or none."""
        if self.loss == "cross_entropy":
            return "softmax"
        return "none" if self.activation == "relu" else self.activation

    @property
    def layer_shapes(self) -> list[tuple[int, int]]:
        """(units, units before) of each layer."""
        return [(units, before) for before, units in pairwise(self.sizes)]

    @property
    def weight_count(self) -> int:
        """Weights and biases of one network."""
        return sum(units * (before + 1) for units, before in self.layer_shapes)

    @property
    def parameter_count(self) -> int:
        """Numbers kept of one network, velocities included."""
        return self.weight_count * (2 if self.velocity else 1)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (default_spec((self.rows, self.sizes[0])),
                default_spec((self.rows, self.sizes[-1])),
                default_spec((self.networks, self.samples), "int32"),
                default_spec((self.networks, 3)),
                default_spec((self.networks, self.parameter_count)))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (default_spec((self.networks, self.parameter_count)),
                default_spec((self.networks, self.samples)))

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {}

    @property
    def flops(self) -> int:
        """Multiply-adds of the forward pass, of the errors and of the update."""
        products = sum(units * before for units, before in self.layer_shapes)
        backward = products - self.sizes[0] * self.sizes[1]
        return 2 * (2 * products + backward) * self.samples * self.networks

    @property
    def least_bytes(self) -> int:
        """Each sample that is trained on, and all parameters in and out, once."""
        samples = 4 * min(self.rows, self.samples * self.networks) * (self.sizes[0]
                                                                       + self.sizes[-1])
        return samples + 2 * self.outputs[0].nbytes + self.outputs[1].nbytes

    def example_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Data and settings with which training stays finite. Some inputs are zero more often
        than others, and neighbours alike, as in pictures: at a density of 0.146, as MNIST's when
        binarised, 36% have a one somewhere in eight samples (MNIST's: 35%; all alike they would
        be 72%)."""
        inputs = self.sizes[0]
        place = (np.arange(inputs) + 0.5) / inputs
        x = (rng.random((self.rows, inputs)) < place ** (1 / self.density - 1)).astype(np.float32)
        if not self.binary:
            x *= 1 - rng.random(x.shape, np.float32)
        targets = np.eye(self.sizes[-1], dtype=np.float32)[
            rng.integers(0, self.sizes[-1], self.rows)]
        order = rng.integers(0, max(self.rows, 1), (self.networks, self.samples), np.int32)
        settings = np.empty((self.networks, 3), np.float32)
        settings[:] = 0.05, 0.9 if self.velocity else 0.0, 1e-4 if self.decay else 0.0
        parameters = rng.uniform(-0.05, 0.05, self.inputs[4].shape).astype(np.float32)
        if self.velocity:
            parameters[:, self.weight_count:] = 0
        return [x, targets, order, settings, parameters]

    def split(self, parameters: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Views of one network's (weights, biases), layer by layer; of its velocities where the
        second half is given."""
        found, start = [], 0
        for units, before in self.layer_shapes:
            middle, end = start + units * before, start + units * (before + 1)
            found.append((parameters[start:middle].reshape(units, before),
                          parameters[middle:end]))
            start = end
        return found

    def of_samples(self, count: int) -> BackpropProblem:
        """The same for another number of samples."""
        return replace(self, samples=count)

    def like(self, x: np.ndarray, decay: bool) -> BackpropProblem:
        """The same for data like x (rows, inputs), with weight decay or without; the density is
        the one of DENSITIES that is nearest by ratio."""
        few = x[::max(1, len(x) // _LOOKED_AT)]
        share = max(np.count_nonzero(few) / max(few.size, 1), 1e-6)
        return replace(self, density=min(DENSITIES, key=lambda known: abs(np.log(known / share))),
                       binary=bool(((few == 0) | (few == 1)).all()), decay=decay)

    def describe(self) -> str:
        text = f"{'-'.join(map(str, self.sizes))} {self.activation} {self.loss}"
        if self.batch > 1:
            text += f", batch {self.batch}"
        if self.networks != 1:
            text += f", {self.networks} networks"
        return f"{text}, {self.samples} samples"
