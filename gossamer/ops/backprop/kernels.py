"""Shared host code of back-propagation kernels: macros, arguments, shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from gossamer.device.base import Argument, Buffer, Device
from gossamer.ops.algorithm import Algorithm
from gossamer.ops.backprop.problem import BETAS, EPSILON, BackpropProblem
from gossamer.ops.launch import input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile

_FUNCTIONS = {
    "sigmoid": ("SIGMOID(z)", "((a) * (1.0f - (a)))"),
    "tanh": ("tanh(z)", "(1.0f - (a) * (a))"),
    "relu": ("MAXIMUM(z, 0.0f)", "((a) > 0.0f ? 1.0f : 0.0f)"),
    "linear": ("(z)", "1.0f"),
    "softmax": ("(z)", "1.0f"),
}
"""For each activation a = f(z): C expressions of f, in terms of z, and of f', in terms of a."""

X, TARGETS, ORDER, SETTINGS, PARAMETERS, SAMPLE_WEIGHTS = range(6)
"""Indices of a problem's inputs."""
TRAINED, LOSSES = range(2)
"""Indices of a problem's outputs."""


class KernelBackprop(Algorithm):
    """An algorithm that trains with kernels, in float32."""

    op = "backprop"

    def supports(self, problem: BackpropProblem, device: Device) -> str | None:
        return cannot_compile(problem, device)


def not_plain(problem: BackpropProblem) -> str | None:
    """Return why plain gradient descent cannot solve a problem; None if it can."""
    if problem.adam:
        return "it does not support Adam; use batched or per_step"
    if problem.weighted:
        return ("it does not support sample weights with the loss squared_error; use batched or "
                "per_step")
    return None


def activation_macros(problem: BackpropProblem) -> dict[str, object]:
    """Return the macros of the activations and their derivatives.

    ACTIVATE(z) and SLOPE(a) are for hidden units, ACTIVATE_OUTPUT(z) and OUTPUT_SLOPE(a) for
    outputs. A slope is the derivative, computed from the activation's value a. SOFTMAX is 1 if
    the output activation is softmax; ACTIVATE_OUTPUT is then the identity.
    """
    activate, slope = _FUNCTIONS[problem.activation]
    activate_output, output_slope = _FUNCTIONS[problem.output_activation]
    return {"ACTIVATE(z)": activate, "SLOPE(a)": slope,
            "ACTIVATE_OUTPUT(z)": activate_output, "OUTPUT_SLOPE(a)": output_slope,
            "SOFTMAX": int(problem.output_activation == "softmax")}


def adam_macros() -> dict[str, object]:
    """Return the constants of Adam as macros."""
    return {"NEW_1": f"{1 - BETAS[0]!r}f", "NEW_2": f"{1 - BETAS[1]!r}f",
            "LOG_BETA_1": f"{math.log(BETAS[0])!r}f", "LOG_BETA_2": f"{math.log(BETAS[1])!r}f",
            "EPSILON": f"{EPSILON!r}f"}


RunTime = Callable[..., Argument]
"""A function that returns a kernel argument that is known only when a launch is queued."""

BUFFERS: tuple[RunTime, ...] = (*map(input_buffer, range(5)), *map(output_buffer, range(2)))
"""All inputs and outputs of a problem without sample weights, as kernel arguments."""


def part_of_workspace(offset: int, nbytes: int) -> RunTime:
    """Return a kernel argument for a range of the workspace.

    offset, nbytes: start and length of the range in bytes.
    """
    def part(inputs: object, outputs: object, workspace: Buffer) -> Argument:
        return workspace.view(offset, nbytes)
    return part


ALIGNMENT = 4096
"""Alignment in bytes of the arrays in a workspace; a multiple of every device's alignment."""


def aligned(nbytes: int) -> int:
    """Round a number of bytes up to a multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def registers_of(threads: int) -> int:
    """Return the maximum number of registers per work-item on NVIDIA GPUs.

    The warps of a work-group of `threads` work-items are divided among four sub-partitions with
    16384 registers each.
    """
    return min(255, 16384 // (32 * -(-threads // 128)) // 8 * 8)


def padded(count: int) -> int:
    """Round a number up to a multiple of four."""
    return -(-count // 4) * 4


def table(numbers: Iterable[int]) -> str:
    """Return the initializer of a C array of integers."""
    return ", ".join(map(str, numbers))


class SharedMemoryLayout:
    """Offsets in shared memory, in floats, and other macros of upper_layers.h.

    Two samples' outputs and errors of all units are in shared memory at once.

    partial: number of partial sums of the first layer.
    macros: the macros. Subclasses add their own, and reserve memory with take().
    """

    def __init__(self, problem: BackpropProblem, threads: int, partial: int) -> None:
        sizes, layers = problem.sizes, len(problem.sizes) - 1
        width, outputs = sum(map(padded, sizes[1:])), padded(sizes[-1])
        copies = 2 if problem.velocity else 1
        self._end = 0
        self.macros: dict[str, object] = {
            "LAYERS": layers, "SIZES": table(sizes), "OUTPUTS": sizes[-1], "WIDTH": width,
            "VELOCITY": int(problem.velocity), "THREADS": threads,
            "NARROW": int(max(sizes[1:]) <= 32),
            "UNIT_AT": table([sum(map(padded, sizes[1:layer])) for layer in
                              range(1, layers + 1)]),
            "PARAMETER_AT": table([sum(units * (before + 1) for units, before in
                                       problem.layer_shapes[:layer])
                                   for layer in range(layers + 1)]),
            "OUT_AT": self.take(2 * width), "ERROR_AT": self.take(2 * width),
            "TERM_AT": self.take(2 * outputs), "TARGET_AT": self.take(2 * outputs),
            "EXPONENTIAL_AT": self.take(outputs),
            "PARTIAL_AT": self.take(max(threads, partial)), "BIAS_AT": self.take(copies * width),
            **activation_macros(problem),
        }
        start = self._end
        weights = [self.take(padded(before) * (padded(units) + 1))
                   for units, before in problem.layer_shapes[1:]]
        self.macros["WEIGHT_AT"] = table([0, *weights])
        self.macros["UPPER_VELOCITY"] = self._end - start
        if problem.velocity:
            self.take(self._end - start)

    def take(self, floats: int) -> int:
        """Reserve floats and return their offset, a multiple of four."""
        start = self._end
        self._end += padded(floats)
        return start

    @property
    def floats(self) -> int:
        """Number of floats of shared memory reserved so far."""
        return self._end

    @property
    def nbytes(self) -> int:
        """Number of bytes of shared memory reserved so far."""
        return 4 * self._end
