"""Back-propagation with one launch per step, as published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gossamer.device.base import Argument, Device, Kernel
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.backprop.kernels import (
    LOSSES,
    ORDER,
    PARAMETERS,
    SAMPLE_WEIGHTS,
    SETTINGS,
    TARGETS,
    TRAINED,
    KernelBackprop,
    X,
    activation_macros,
    adam_macros,
)
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer.ops.strided import WORK_GROUP_SIZE, groups_for
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("per_step.cl")
_GROUPS = (256, 128, 64)
_LARGEST_GRID = 65535

MOST_LAUNCHES = 1 << 16
"""Maximum number of launches per call; Python takes time to record or queue each launch."""


class PerStep(KernelBackprop):
    """Training with a launch for each step of each layer.

    In each update, separate launches compute each layer's outputs, each layer's errors, and the
    changes of each layer's parameters.

    Source: kernels 9 to 13 of a publication of 2013 on back-propagation on a GPU with all data in
    GPU memory. Unlike in that publication, a layer may have any number of inputs. Adam follows
    Kingma and Ba (2015).
    """

    name = "per_step"

    def supports(self, problem: BackpropProblem, device: Device) -> str | None:
        if (reason := super().supports(problem, device)) is not None:
            return reason
        launches = _launches_per_update(problem)
        updates = -(-problem.samples // problem.batch)
        if launches * updates > MOST_LAUNCHES:
            return (f"it needs {launches * updates} launches per call, at most {MOST_LAUNCHES} are "
                    "allowed: train on at most "
                    f"{MOST_LAUNCHES // launches * problem.batch} samples per call")
        chunks = max(problem.sizes[:-1]) // min(_group_sizes(device)) + 1
        if max(problem.networks, min(problem.batch, problem.samples), chunks) > _LARGEST_GRID:
            return (f"it supports at most {_LARGEST_GRID} networks, samples per batch and "
                    "work-groups per unit")
        if (count := 2 * problem.networks * problem.batch * sum(problem.sizes[1:])) >= 2**31:
            return (f"its units have {count} outputs and errors, too many for 32-bit indices: use "
                    "a smaller batch or fewer networks")
        return None

    def variants(self, problem: BackpropProblem, device: Device) -> Iterator[Variant]:
        workspace = 8 * problem.networks * problem.batch * sum(problem.sizes[1:])
        for threads in _group_sizes(device):
            yield Variant((("threads", threads),), problem.inputs, problem.outputs,
                          workspace=workspace)

    def prepare(self, weights: Weights, problem: BackpropProblem, variant: Variant,
                device: Device) -> State:
        if problem.outputs[0].size == 0:
            return State(problem, variant, device)
        launches = [carry(problem, device)]
        steps = _UpdateLaunches(problem, variant["threads"], device)
        for first in range(0, problem.samples, problem.batch):
            launches += steps.of_update(first, min(problem.batch, problem.samples - first))
        if problem.adam:
            launches.append(steps.count_updates())
        return State(problem, variant, device, launches)


def carry(problem: BackpropProblem, device: Device) -> Launch:
    """Return the launch that copies the parameters to the output.

    Training then updates the copy in place. Input and output may be the same memory.
    """
    count = problem.outputs[0].size
    return Launch(device.compile(KernelSource.of(_SOURCE, "carry")), groups_for(count),
                  (WORK_GROUP_SIZE,), (input_buffer(PARAMETERS), output_buffer(TRAINED), count))


class _UpdateLaunches:
    """Factory of the launches of an update.

    The workspace holds the outputs of all units for all samples of a batch, followed by the units'
    errors for these samples.

    weights: for each layer, the offset of its weights among a network's parameters.
    starts: for each layer, the offset of its inputs among the units of a sample, or -1 for the
    first layer, whose inputs are the data. The last element is the offset of the network's outputs.
    errors: offset of the errors in the workspace, in floats.
    shared: arguments that most kernels take: batch, number of units per sample, and `errors`.
    """

    def __init__(self, problem: BackpropProblem, threads: int, device: Device) -> None:
        self.problem, self.threads, self.device = problem, threads, device
        width = sum(problem.sizes[1:])
        self.errors = problem.networks * problem.batch * width
        self.shared = (problem.batch, width, self.errors)
        self.layers = range(len(problem.layer_shapes))
        self.weights = [sum(units * (before + 1) for units, before in problem.layer_shapes[:layer])
                        for layer in self.layers]
        self.starts = [-1, *(sum(problem.sizes[1:layer]) for layer in range(1, len(problem.sizes)))]
        self.softmax = problem.output_activation == "softmax"
        self.kernels = {name: self._kernel(name, *macro_names) for name, macro_names in {
            "forward": ("ACTIVATE(z)", "ACTIVATE_OUTPUT(z)", "OUTPUT_SLOPE(a)"),
            "softmax_errors": (), "hidden_errors": ("SLOPE(a)",), "update": (),
            "count_updates": ()}.items()}
        self.weights_of_samples = ((input_buffer(SAMPLE_WEIGHTS),) if problem.weighted else ())

    def _kernel(self, name: str, *macro_names: str) -> Kernel:
        """Return a kernel, compiled with the activation macros of the given names."""
        activations = activation_macros(self.problem)
        macros = {name.upper(): 1, "THREADS": self.threads,
                  "WEIGHTED": int(self.problem.weighted), "ADAM": int(self.problem.adam),
                  **adam_macros(), **{key: activations[key] for key in macro_names}}
        return self.device.compile(KernelSource.of(_SOURCE, name, macros))

    def of_update(self, first: int, count: int) -> Iterator[Launch]:
        """Yield the launches of the update by samples first, ..., first + count - 1."""
        for layer in self.layers:
            yield self._forward(layer, first, count)
        if self.softmax:
            yield self._softmax_errors(first, count)
        for layer in reversed(self.layers[1:]):
            yield self._hidden_errors(layer, count)
        for layer in reversed(self.layers):
            yield self._update(layer, first, count)

    def _forward(self, layer: int, first: int, count: int) -> Launch:
        units, before = self.problem.layer_shapes[layer]
        return self._launch(
            "forward", (units, count, self.problem.networks),
            input_buffer(X), input_buffer(TARGETS), input_buffer(ORDER), output_buffer(TRAINED),
            *self.weights_of_samples, workspace_buffer, self.problem.samples, first,
            self.problem.parameter_count, *self.shared, self.weights[layer], before,
            self.starts[layer], self.starts[layer + 1], int(layer == self.layers[-1]))

    def _softmax_errors(self, first: int, count: int) -> Launch:
        return self._launch(
            "softmax_errors", (1, count, self.problem.networks), input_buffer(TARGETS),
            input_buffer(ORDER), workspace_buffer, output_buffer(LOSSES), self.problem.samples,
            first, *self.shared, self.problem.sizes[-1], self.starts[-1])

    def _hidden_errors(self, layer: int, count: int) -> Launch:
        """Return the launch that computes the errors of the layer's inputs."""
        units, before = self.problem.layer_shapes[layer]
        return self._launch(
            "hidden_errors", (-(-before // self.threads), count, self.problem.networks),
            output_buffer(TRAINED), workspace_buffer, self.problem.parameter_count, *self.shared,
            self.weights[layer], before, units, self.starts[layer], self.starts[layer + 1])

    def _update(self, layer: int, first: int, count: int) -> Launch:
        units, before = self.problem.layer_shapes[layer]
        return self._launch(
            "update",
            (units, before // self.threads + 1, self.problem.networks), input_buffer(X),
            input_buffer(TARGETS), input_buffer(ORDER), input_buffer(SETTINGS),
            output_buffer(TRAINED), *self.weights_of_samples, workspace_buffer,
            output_buffer(LOSSES), self.problem.samples, first, count,
            self.problem.parameter_count, *self.shared, self.weights[layer], before,
            self.starts[layer], self.starts[layer + 1],
            self.problem.weight_count if self.problem.velocity or self.problem.adam else 0,
            first // self.problem.batch, int(layer == self.layers[-1] and not self.softmax))

    def count_updates(self) -> Launch:
        """Return the launch that adds the call's number of updates to Adam's count."""
        updates = -(-self.problem.samples // self.problem.batch)
        return self._launch("count_updates", (1, 1, self.problem.networks), output_buffer(TRAINED),
                            self.problem.parameter_count, updates)

    def _launch(self, name: str, groups: tuple[int, ...],
                *arguments: Argument | Callable[..., Argument]) -> Launch:
        return Launch(self.kernels[name], groups, (self.threads, 1, 1), arguments)


def _launches_per_update(problem: BackpropProblem) -> int:
    layers = len(problem.layer_shapes)
    return 3 * layers - 1 + int(problem.output_activation == "softmax")


def _group_sizes(device: Device) -> list[int]:
    """Return the work-group sizes that the device allows, largest first."""
    return [threads for threads in _GROUPS if threads <= device.limits.work_group_size]
