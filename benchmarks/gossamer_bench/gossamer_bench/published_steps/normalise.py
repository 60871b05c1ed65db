"""Normalises channels by given statistics. The kernel was published with a convolution in OpenCL:
each work-item computes one element, in work-groups of 512."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.batch_norm import cannot_run, normalise_launch, work_groups
from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.ops.launch import input_buffer
from gossamer.ops.op import Op
from gossamer.ops.strided import HostAlgorithm, layout_variants
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class NormaliseProblem(Problem):
    """The second half of a batch norm: y = (x - mean - rest) * factor + beta for every element. The
    second input is the matrix (3, channels) of means, rests and factors that BatchStatisticsProblem
    describes.

    The weight is `beta`, with a number for each channel.

    norm: the batch norm, whose epsilon and momentum are not used.
    """

    op: ClassVar[str] = "normalise"
    norm: BatchNormProblem

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (*self.norm.inputs, default_spec((3, self.norm.channels)))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.norm.inputs

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"beta": (self.norm.channels,)}

    @property
    def flops(self) -> int:
        # two differences, a product and a sum
        return 4 * self.norm.input.size

    def describe(self) -> str:
        return f"normalise {self.norm.input}"


class NumpyNormalise(HostAlgorithm):
    """Computes in float64, as the algorithm `numpy` of the whole batch norm does."""

    op = "normalise"

    def compute(self, problem: NormaliseProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return reference(problem, inputs, weights)


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


def reference(problem: NormaliseProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the normalised input in float64."""
    x, statistics = (np.asarray(array, np.float64) for array in inputs)
    by_channel = (-1, *[1] * (x.ndim - 2))
    mean, rest, factor = (row.reshape(by_channel) for row in statistics)
    beta = np.asarray(weights["beta"], np.float64).reshape(by_channel)
    return [(x - mean - rest) * factor + beta]


OP = Op("normalise", NormaliseProblem, reference, (NumpyNormalise(), PublishedNormalise()))
