"""Transposed convolution in NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.conv_transpose2d.reference import conv_transpose2d
from gossamer.ops.host_threads import thread_configs
from gossamer.ops.strided import HostAlgorithm, layout_variants


class NumpyConvTranspose2d(HostAlgorithm):
    """Adds up the contributions of the filter's taps. Each contribution is one matrix product of
    NumPy."""

    op = "conv_transpose2d"

    def compute(self, problem: ConvTranspose2dProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [conv_transpose2d(problem, inputs[0], weights)]

    def variants(self, problem: ConvTranspose2dProblem, device: Device) -> Iterable[Variant]:
        _, channels, height, width = problem.input.shape
        rows, depth = (count // problem.groups for count in (problem.out_channels, channels))
        return [variant for config in thread_configs(rows * depth * height * width)
                for variant in layout_variants(problem, config=config)]
