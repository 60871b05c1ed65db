"""The leaky ReLU as it was published for convolution in OpenCL: a kernel in which a work-item
computes one element, with work-groups of 512."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile, layout_variants
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("published_leaky.cl")
_WORK_GROUP = 512


class PublishedLeaky(Algorithm):
    """A leaky ReLU that is not fused with other steps. Work-groups have fewer than 512 work-items
    where the device does not allow 512."""

    op = "elementwise"
    name = "published"
    by_name_only = True

    def supports(self, problem: ElementwiseProblem, device: Device) -> str | None:
        expression = problem.expression
        if ([step.function for step in expression.steps] != ["leaky_relu"]
                or expression.outputs != (1,)):
            return "computes a leaky rectifier alone"
        if problem.constants or {spec.dtype for spec in (*problem.inputs, *problem.outputs)} != {
                "float32"}:
            return "takes one run-time float32"
        return cannot_compile(problem, device)

    def variants(self, problem: ElementwiseProblem, device: Device) -> Iterator[Variant]:
        yield from layout_variants(problem)

    def prepare(self, weights: Weights, problem: ElementwiseProblem, variant: Variant,
                device: Device) -> State:
        elements = variant.outputs[0].size
        if elements == 0:
            return State(problem, variant, device)
        work_group = min(_WORK_GROUP, device.limits.work_group_size)
        (step,) = problem.expression.steps
        kernel = device.compile(KernelSource.of(_SOURCE, "leaky_relu",
                                                {"WORK_GROUP_SIZE": work_group}))
        return State(problem, variant, device, [Launch(
            kernel, (-(-elements // work_group),), (work_group,),
            (input_buffer(0), output_buffer(0), elements, float(step.constants[0])))])
