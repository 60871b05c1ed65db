"""Computes for each channel the statistics by which batch norm normalises its input in training.
The kernel that computes these statistics was published with a convolution in OpenCL: a work-group
of 512 work-items computes a channel over the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.batch_norm import cannot_run, statistics_launch, work_groups
from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.ops.launch import output_buffer
from gossamer.ops.op import Op
from gossamer.ops.strided import HostAlgorithm, layout_variants
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class BatchStatisticsProblem(Problem):
    """The first half of a batch norm. Its output is a matrix (3, channels). The rows of the matrix
    are the mean of each channel in float32; the rest of the mean, which is the exact mean minus the
    mean in float32; and gamma / sqrt(variance + epsilon).

    The weight is `gamma`, with a number for each channel.

    norm: the batch norm, whose momentum and beta are not used.

    Raises ValueError for a batch norm whose input has channels without elements.
    """

    op: ClassVar[str] = "batch_statistics"
    norm: BatchNormProblem

    def __post_init__(self) -> None:
        if self.norm.channels and not self.norm.count:
            raise ValueError(f"the mean of each channel of {self.norm.input} has no value")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.norm.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (default_spec((3, self.norm.channels)),)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"gamma": (self.norm.channels,)}

    @property
    def flops(self) -> int:
        # a sum for the mean, a difference, a product and a sum for the variance
        return 4 * self.norm.input.size

    def describe(self) -> str:
        return f"statistics of {self.norm.input}"


class NumpyBatchStatistics(HostAlgorithm):
    """Computes in float64. The rest of a mean is the mean in float64 minus this mean rounded to
    float32."""

    op = "batch_statistics"

    def compute(self, problem: BatchStatisticsProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        (statistics,) = reference(problem, inputs, weights)
        statistics[1] = statistics[0] - statistics[0].astype(np.float32)
        return [statistics]


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


def reference(problem: BatchStatisticsProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the statistics in float64. Means are not rounded to float32, so that all rests are
    0."""
    x = np.asarray(inputs[0], np.float64)
    others = tuple(axis for axis in range(x.ndim) if axis != 1)
    mean, variance = x.mean(others), x.var(others)
    gamma = np.asarray(weights["gamma"], np.float64)
    return [np.stack([mean, np.zeros_like(mean),
                      gamma / np.sqrt(variance + problem.norm.epsilon)])]


OP = Op("batch_statistics", BatchStatisticsProblem, reference,
        (NumpyBatchStatistics(), PublishedBatchStatistics()))
