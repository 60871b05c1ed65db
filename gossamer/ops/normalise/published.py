"""Channels normalised by given statistics, by the normalising kernel that was published for
convolution in OpenCL: one work-item an element, in work-groups of 512."""

from __future__ import annotations

from collections.abc import Iterator

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.batch_norm.published import cannot_run, normalise_launch, work_groups
from gossamer.ops.launch import input_buffer
from gossamer.ops.normalise.problem import NormaliseProblem
from gossamer.ops.strided import layout_variants
from gossamer.ops.weights import Weights


class PublishedNormalise(Algorithm):
    """The second kernel of the batch norm as published, which reads the statistics as an input."""

    op = "normalise"
    name = "published"

    def supports(self, problem: NormaliseProblem, device: Device) -> str | None:
        return cannot_run(problem, device)

    def variants(self, problem: NormaliseProblem, device: Device) -> Iterator[Variant]:
        for work_group in work_groups(device):
            yield from layout_variants(problem, config=(("work_group", work_group),))

    def prepare(self, weights: Weights, problem: NormaliseProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        if problem.outputs[0].size:
            state.launches = [normalise_launch(problem.norm, variant.inputs[0],
                                               variant["work_group"], weights, device,
                                               input_buffer(1))]
        return state
