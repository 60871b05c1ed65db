"""Pruned weights as rows of nonzeros, and whether kernels can walk them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy import sparse

from gossamer.device.base import Device
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import TensorSpec

SURE_WORK_GROUP = 256
"""Work-items that a kernel may have anywhere, as those of the other algorithms: how many an OpenCL
device takes of one kernel it says only of what it has built."""

DENSEST = 0.75
"""Above this density no sparse form is tried: it cannot win, and trying takes time."""


def too_dense(weights: WeightsInfo) -> str | None:
    """The reason why a form that skips zeros is not tried; None where it is."""
    if weights.density > DENSEST:
        return f"density {weights.density:.2f}: fewer than a quarter of the weights are zero"
    return None


def cannot_index(problem: Conv2dProblem, device: Device) -> str | None:
    """The reason why kernels that reach the padded input by 32-bit offsets of nonzeros are not
    tried; None where they are."""
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
    """The weights as float32 (M, C/groups * R * S). What is not zero is stored, NaN too."""
    weight = np.asarray(arrays["weight"], np.float32)
    return sparse.csr_array(weight.reshape(len(weight), -1))


def padded_input(x: TensorSpec, problem: Conv2dProblem) -> TensorSpec:
    """The input with its padding stored."""
    return replace(x, border=problem.pads)
