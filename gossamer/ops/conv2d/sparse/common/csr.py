"""Stores pruned weights as rows of nonzeros and checks that kernels can index them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import TensorSpec

if TYPE_CHECKING:
    from scipy import sparse

DENSEST = 0.75
"""The largest density at which sparse algorithms are tried. By a rule of thumb, dense algorithms
are faster at larger densities on any device."""


def too_dense(weights: WeightsInfo) -> str | None:
    """Returns why algorithms that skip zeros are not tried; None where they are tried."""
    if weights.density > DENSEST:
        return f"density {weights.density:.2f}: fewer than a quarter of the weights are zero"
    return None


def cannot_index(problem: Conv2dProblem, device: Device) -> str | None:
    """Returns why kernels that address the padded input by 32-bit offsets are not tried for a
    problem; None where they are tried."""
    if (reason := cannot_compile(problem, device)) is not None:
        return reason
    if (reason := too_dense(problem.weights_info)) is not None:
        return reason
    if math.prod(padded_input(problem.inputs[0], problem).stored_shape) >= 2**31:
        return "the padded input has 2^31 elements or more: indices are 32-bit"
    if problem.out_channels * problem.depth >= 2**31:
        return "there are 2^31 weights or more: indices are 32-bit"
    return None


def csr(arrays: Mapping[str, np.ndarray]) -> sparse.csr_array:
    """Returns the weights as a float32 CSR matrix (M, C/groups * R * S); NaN counts as nonzero."""
    # importing SciPy takes long, and only processes with pruned layers need it
    from scipy import sparse

    weight = np.asarray(arrays["weight"], np.float32)
    return sparse.csr_array(weight.reshape(len(weight), -1))


def padded_input(x: TensorSpec, problem: Conv2dProblem) -> TensorSpec:
    """Returns the spec of the input with its padding stored."""
    return x.with_format(border=problem.pads)
