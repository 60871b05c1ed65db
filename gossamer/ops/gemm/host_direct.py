"""Products with pruned weights on CPUs, compiled by LLVM.

The input matrix is transposed to an image of height 1 in NCHW. The pixels of the image are the rows
of the matrix. The product is then a pointwise convolution (gossamer.ops.conv2d.host_direct). The
result of the convolution is transposed back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gossamer.device.base import Buffer, Device
from gossamer.device.host import address_of
from gossamer.device.jobs import Job
from gossamer.device.native import processor as native
from gossamer.device.native.processor import function
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.host_direct.algorithm import HostDirect
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.generated import GeneratedCode
from gossamer.ops.weights import Weights


class HostDirectGemm(GeneratedCode):
    """A matrix product by code generated for this CPU.

    Zero weights are skipped. So a NaN or infinity in the input does not propagate to a result if it
    would be multiplied by a zero weight.
    """

    op = "gemm"
    name = "host_direct"
    dense = False
    _convolution = HostDirect()

    def refused(self, problem: GemmProblem) -> str | None:
        if problem.epilogue.tensor_count:
            return "has a second input in its epilogue"
        return self._convolution.refused(_convolution(problem))

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        image = _convolution(problem)
        for variant in self._convolution.variants(image, device):
            yield replace(variant, inputs=problem.inputs, outputs=problem.outputs,
                          workspace=_input_bytes(image, device) + image.outputs[0].nbytes)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        from gossamer.ops.gemm.transposing import transposing

        image, lanes = _convolution(problem), native.processor().lanes
        arrays = {name: array[..., None, None] if name == "weight" else array
                  for name, array in weights.arrays.items()}
        state = self._convolution.prepare(
            Weights(arrays, device, weights.layer), image,
            replace(variant, inputs=image.inputs, outputs=image.outputs), device)
        rows, wide = problem.rows, image.width
        there, back = (Job(function("transpose", native.processor(), transposing, *sizes, lanes),
                           (), -(-sizes[1] // lanes))
                       for sizes in ((rows, problem.depth, problem.depth, wide),
                                     (problem.columns, rows, wide, problem.columns)))
        return State(problem, variant, device, data=_Work(state, state.data.threads, there, back))

    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None, images: int | None = None) -> list[Job]:
        problem: GemmProblem = state.problem  # type: ignore[assignment]
        if problem.outputs[0].size == 0:
            return []
        image, _, there, back = state.data
        assert workspace is not None
        nbytes = _input_bytes(image.problem, state.device)
        x = workspace.view(0, nbytes)
        y = workspace.view(nbytes, workspace.nbytes - nbytes)
        return [replace(there, arguments=(address_of(inputs[0]), address_of(x))),
                *self._convolution.jobs(image, [x], [y], None),
                replace(back, arguments=(address_of(y), address_of(outputs[0])))]


class _Work(NamedTuple):
    """The data of a launch.

    image: the pointwise convolution.
    threads: number of threads.
    there, back: the jobs that transpose the input and the result, without their arguments.
    """

    image: State
    threads: int
    there: Job
    back: Job


def _input_bytes(image: Any, device: Device) -> int:
    """Return the size of the transposed matrix in bytes, rounded up to the device's alignment."""
    nbytes: int = image.inputs[0].nbytes
    return -(-nbytes // device.alignment) * device.alignment


def _convolution(problem: GemmProblem) -> Conv2dProblem:
    """Return the product as a convolution of the transposed matrix.

    The matrix is padded with rows of zeros, so that the number of rows is a multiple of the vector
    length.
    """
    lanes = native.processor().lanes
    return Conv2dProblem(1, problem.depth, 1, -(-problem.rows // lanes) * lanes, problem.columns,
                         (1, 1), epilogue=problem.epilogue, weights_info=problem.weights_info)
