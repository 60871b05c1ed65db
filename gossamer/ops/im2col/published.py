"""The im2col matrix of a convolution by a kernel whose work-items each copy the taps of one channel
of one output pixel, the first step of convolution in OpenCL as it was published."""

from __future__ import annotations

from collections.abc import Iterator

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.vendor.im2col import MatrixPart, gather
from gossamer.ops.im2col.problem import Im2colProblem
from gossamer.ops.launch import output_buffer
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights


class PublishedIm2col(Algorithm):
    """The kernel that the algorithms of convolution with a stored im2col matrix launch."""

    op = "im2col"
    name = "published"

    def supports(self, problem: Im2colProblem, device: Device) -> str | None:
        return cannot_compile(problem, device)

    def variants(self, problem: Im2colProblem, device: Device) -> Iterator[Variant]:
        yield Variant((), problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: Im2colProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        conv = problem.convolution
        if problem.outputs[0].size:
            everything = MatrixPart(0, conv.batch, 0, conv.out_height * conv.out_width)
            state.launches = [gather(conv, variant.inputs[0], everything, device,
                                     output_buffer(0))]
        return state
