"""What the kernels of back-propagation share: their macros, buffers and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gossamer.device.base import Argument, Buffer, Device
from gossamer.ops.algorithm import Algorithm
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.launch import input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile

_FUNCTIONS = {
    "sigmoid": ("QUICK_SIGMOID(z)", "((a) * (1.0f - (a)))"),
    "tanh": ("tanh(z)", "(1.0f - (a) * (a))"),
    "relu": ("MAXIMUM(z, 0.0f)", "((a) > 0.0f ? 1.0f : 0.0f)"),
    "none": ("(z)", "1.0f"),
    "softmax": ("(z)", "1.0f"),
}
"""Each activation as C over z, and its derivative over what it gave out."""

X, TARGETS, ORDER, SETTINGS, PARAMETERS = range(5)
"""A problem's inputs."""
TRAINED, LOSSES = range(2)
"""Its outputs."""


class KernelBackprop(Algorithm):
    """Back-propagation by kernels, in float32."""

    op = "backprop"

    def supports(self, problem: BackpropProblem, device: Device) -> str | None:
        return cannot_compile(problem, device)


def activation_macros(problem: BackpropProblem) -> dict[str, object]:
    """ACTIVATE and SLOPE of hidden units, ACTIVATE_OUTPUT and OUTPUT_SLOPE of outputs (which a
    softmax leaves as they are), and whether SOFTMAX comes after."""
    activate, slope = _FUNCTIONS[problem.activation]
    activate_output, output_slope = _FUNCTIONS[problem.output_activation]
    return {"ACTIVATE(z)": activate, "SLOPE(a)": slope,
            "ACTIVATE_OUTPUT(z)": activate_output, "OUTPUT_SLOPE(a)": output_slope,
            "SOFTMAX": int(problem.output_activation == "softmax")}


RunTime = Callable[..., Argument]
"""An argument that is known when a launch is queued."""

RUN: tuple[RunTime, ...] = (*map(input_buffer, range(5)), *map(output_buffer, range(2)))
"""All inputs and outputs."""


def part_of_workspace(offset: int, nbytes: int) -> RunTime:
    """So many bytes of the workspace from the offset on."""
    def part(inputs: object, outputs: object, workspace: Buffer) -> Argument:
        return workspace.view(offset, nbytes)
    return part


ALIGNMENT = 4096
"""Where parts of a workspace start: a multiple of every device's alignment."""


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def registers_of(threads: int) -> int:
    """Registers that a work-item of an NVIDIA GPU may use in a group of so many: warps are dealt
    to four schedulers, which have 16384 each."""
    return min(255, 16384 // (32 * -(-threads // 128)) // 8 * 8)


def padded(count: int) -> int:
    """Rounded up to fours."""
    return -(-count // 4) * 4


def table(numbers: Iterable[int]) -> str:
    """The elements of an array in C."""
    return ", ".join(map(str, numbers))
