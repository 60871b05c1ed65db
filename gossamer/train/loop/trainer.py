"""Trainer: the training of networks on one device, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gossamer.device.base import Buffer
from gossamer.ops.algorithm import State
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec
from gossamer.train.data.samples import Samples
from gossamer.train.loop.algorithm_choice import AlgorithmChoice


class Trainer:
    """Trains networks of the same sizes together on one device.

    Each network has separate parameters, settings and order of samples. An epoch is complete only
    after accept(), so that the caller can return to the parameters before the epoch.

    problem: one epoch over the data.
    parameters: (networks, parameter_count) float32, the parameters before the first epoch.
    choice: device and algorithm of the training.
    begun: number of epochs that run() began.
    accepted: number of epochs that accept() counted.
    Raises OutOfMemoryError if the device has no room.
    """

    def __init__(self, problem: BackpropProblem, data: Samples, parameters: np.ndarray,
                 choice: AlgorithmChoice) -> None:
        self.problem = problem
        self.choice = choice
        self._device = device = choice.device
        self._parts = _parts(problem, choice)
        specs = self._parts[0].variant.inputs
        self._x = data.on(device, "x", data.x, specs[0])
        self._targets = data.on(device, "targets", data.targets_for(problem.loss), specs[1])
        self._sample_weights = ([data.on(device, "sample weights", data.weights, specs[5])]
                                if data.weights is not None and problem.weighted else [])
        self._settings = device.empty(problem.inputs[3].nbytes, "the learning rates")
        self._parameters = device.upload(parameters, "the parameters")
        self._previous = [device.upload(parameters, "the parameters before an epoch")
                          for _ in range(2)]
        space = sum(_aligned(part.problem.inputs[2], device.alignment) for part in self._parts)
        self._order = device.empty(space, "the order of the samples")
        self._losses = device.empty(space, "the samples' losses")
        self._means = device.empty(len(self._parts) * self._mean_bytes, "the mean losses")
        self._written: dict[str, np.ndarray] = {}
        self.begun = self.accepted = 0

    @property
    def _mean_bytes(self) -> int:
        """Bytes of the mean losses of one part, rounded up to the alignment."""
        return _aligned(self._parts[0].mean.outputs[0], self._device.alignment)

    def run(self, order: np.ndarray, settings: np.ndarray) -> np.ndarray:
        """Train one epoch and return the networks' mean losses, (networks,) float64.

        The epoch is complete once accept() is called. If an argument is the same array object as in
        the last call, it is not copied to the device again.

        order: (networks, samples) int32, the indices of the rows in the order of training.
        settings: (networks, 3) float32, learning rate, momentum and weight decay.
        """
        device = self._device
        self._write("order", self._order, order, self._in_parts)
        self._write("settings", self._settings, settings, np.ascontiguousarray)
        size = self._parameters.nbytes
        device.copy(self._previous[1], self._previous[0], size)
        device.copy(self._previous[0], self._parameters, size)
        self.begun += 1
        offset = 0
        for index, part in enumerate(self._parts):
            spec = part.problem.outputs[1]
            losses = self._losses.view(offset, spec.nbytes)
            part.run(self, self._order.view(offset, spec.nbytes), losses)
            part.average(losses, self._means.view(index * self._mean_bytes,
                                                   part.mean.outputs[0].nbytes))
            offset += _aligned(spec, device.alignment)
        means = np.empty((len(self._parts), self._mean_bytes // 4), np.float32)
        device.read(self._means, means)
        shares = [part.problem.samples / self.problem.samples for part in self._parts]
        return np.array(shares) @ means[:, :self.problem.networks].astype(np.float64)

    def losses(self) -> np.ndarray:
        """Return the loss of each sample in the last epoch, (networks, samples) float32."""
        stored = np.empty(self._losses.nbytes // 4, np.float32)
        self._device.read(self._losses, stored)
        losses = np.empty(self.problem.outputs[1].shape, np.float32)
        for memory, columns in self._part_slices():
            losses[:, columns] = stored[memory].reshape(len(losses), -1)
        return losses

    def accept(self) -> None:
        """Mark the epoch that run() trained as complete.

        Until this call, parameters() returns the parameters from before the epoch.
        """
        self.accepted = self.begun

    def parameters(self) -> np.ndarray:
        """Return the parameters after the last accepted epoch, (networks, parameter_count)."""
        self._device.synchronize()
        return self._read(self._previous[0] if self.begun > self.accepted else self._parameters)

    def before(self, epochs: int) -> np.ndarray:
        """Return the parameters from before the last epoch, or before the last two.

        The array is (networks, parameter_count) float32.
        """
        return self._read(self._previous[epochs - 1])

    def launch(self, part: _Part, order: Buffer, losses: Buffer, stream: Any) -> None:
        """Enqueue the launch that trains on a part of an epoch and updates the parameters."""
        self.choice.algorithm.launch(
            part.state, [self._x, self._targets, order, self._settings, self._parameters,
                          *self._sample_weights],
            [self._parameters, losses], part.workspace, stream)

    def _read(self, buffer: Buffer) -> np.ndarray:
        parameters = np.empty(self.problem.outputs[0].shape, np.float32)
        self._device.read(buffer, parameters)
        return parameters

    def _write(self, name: str, buffer: Buffer, array: np.ndarray,
               stored: Callable[[np.ndarray], np.ndarray]) -> None:
        """Write an array to a buffer, unless the same array object was written last.

        stored: function that converts the array to the layout of the buffer.
        """
        if self._written.get(name) is not array:
            self._device.write(buffer, stored(array))
            self._written[name] = array

    def _in_parts(self, order: np.ndarray) -> np.ndarray:
        """Return an epoch's order in the layout of the device buffer.

        The buffer has, for each part in order, an array of shape (networks, samples of the part).
        """
        stored = np.zeros(self._order.nbytes // 4, np.int32)
        for memory, columns in self._part_slices():
            stored[memory] = order[:, columns].ravel()
        return stored

    def _part_slices(self) -> list[tuple[slice, slice]]:
        """Return each part's slice of a buffer's elements, and its slice of the samples."""
        slices, start, column = [], 0, 0
        for part in self._parts:
            spec = part.problem.inputs[2]
            slices.append((slice(start, start + spec.size),
                           slice(column, column + part.problem.samples)))
            start += _aligned(spec, self._device.alignment) // 4
            column += part.problem.samples
        return slices


def compile_kernels(problem: BackpropProblem, choice: AlgorithmChoice) -> None:
    """Compile the kernels with which a Trainer trains a problem, for later trainers."""
    for part in dict.fromkeys(_lengths(problem, choice)):
        _prepared(problem.of_samples(part), choice)


class _Part:
    """The part of an epoch that one launch computes."""

    def __init__(self, problem: BackpropProblem, choice: AlgorithmChoice) -> None:
        device = choice.device
        self.problem = problem
        self.state = _prepared(problem, choice)
        self.variant = self.state.variant
        self.workspace = device.empty(self.variant.workspace, "training's workspace") if (
            self.variant.workspace) else None
        self.mean = ReduceProblem(problem.outputs[1], "mean", (1,), keepdims=False)
        reduce = next(algorithm for algorithm in OPS["reduce"].algorithms
                      if algorithm.supports(self.mean, device) is None)
        self._average = reduce, reduce.prepare(Weights({}, device), self.mean, next(iter(
            reduce.variants(self.mean, device))), device)
        # a graph of a single kernel saves no time
        self.recordable = device.limits.graph and len(self.state.launches) != 1
        self._graph: Callable[..., None] | None = None
        self._runs = 0
        self._graph_buffers: tuple[Buffer, Buffer] | None = None

    def run(self, trainer: Trainer, order: Buffer, losses: Buffer) -> None:
        """Train on the part's samples.

        From the second call on, this replays a captured graph if the part is recordable.
        """
        if not self.recordable or self._runs == 0:
            trainer.launch(self, order, losses, None)
        else:
            self._replay(trainer, order, losses)
        self._runs += 1

    def average(self, losses: Buffer, means: Buffer) -> None:
        """Compute the mean loss of each network."""
        algorithm, state = self._average
        algorithm.launch(state, [losses], [means], None)

    def _replay(self, trainer: Trainer, order: Buffer, losses: Buffer) -> None:
        device = trainer.choice.device
        if self._graph_buffers is None:
            self._graph_buffers = (device.empty(order.nbytes, "the order of a graph's samples"),
                                   device.empty(losses.nbytes, "the losses of a graph's samples"))
        graph_order, graph_losses = self._graph_buffers
        if self._graph is None:
            self._graph = device.capture(
                lambda stream: trainer.launch(self, graph_order, graph_losses, stream))
        device.copy(graph_order, order, order.nbytes)
        self._graph()
        device.copy(losses, graph_losses, losses.nbytes)


def _prepared(problem: BackpropProblem, choice: AlgorithmChoice) -> State:
    """Return the algorithm's kernels for a problem, ready to launch."""
    return choice.algorithm.prepare(Weights({}, choice.device, "training"), problem,
                                    choice.variant(problem), choice.device)


def _parts(problem: BackpropProblem, choice: AlgorithmChoice) -> list[_Part]:
    """Return an epoch's parts in order; parts of equal length are one object."""
    lengths = _lengths(problem, choice)
    parts = {length: _Part(problem.of_samples(length), choice) for length in dict.fromkeys(lengths)}
    return [parts[length] for length in lengths]


def _lengths(problem: BackpropProblem, choice: AlgorithmChoice) -> list[int]:
    """Return the number of samples of each part of an epoch."""
    length = min(choice.samples, problem.samples)
    rest = problem.samples % length
    return [length] * (problem.samples // length) + [rest] * bool(rest)


def _aligned(spec: TensorSpec, alignment: int) -> int:
    """Return a tensor's bytes, rounded up to the alignment."""
    return -(-spec.nbytes // alignment) * alignment
