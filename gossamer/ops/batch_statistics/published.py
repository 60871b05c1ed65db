"""The statistics of each channel by the kernel of mean and variance that was published for
convolution in OpenCL, in which a work-group of 512 computes a channel over the whole batch."""

from __future__ import annotations

from collections.abc import Iterator

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.batch_norm.published import cannot_run, statistics_launch, work_groups
from gossamer.ops.batch_statistics.problem import BatchStatisticsProblem
from gossamer.ops.launch import output_buffer
from gossamer.ops.strided import layout_variants
from gossamer.ops.weights import Weights


class PublishedBatchStatistics(Algorithm):
    """The first kernel of the batch norm as published, which writes its statistics as an output."""

    op = "batch_statistics"
    name = "published"

    def supports(self, problem: BatchStatisticsProblem, device: Device) -> str | None:
        return cannot_run(problem, device)

    def variants(self, problem: BatchStatisticsProblem, device: Device) -> Iterator[Variant]:
        for work_group in work_groups(device):
            yield from layout_variants(problem, config=(("work_group", work_group),))

    def prepare(self, weights: Weights, problem: BatchStatisticsProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        if problem.outputs[0].size:
            state.launches = [statistics_launch(
                problem.norm, variant.inputs[0], variant["work_group"], weights, device,
                output_buffer(0))]
        return state
