"""The im2col matrix of a convolution, and the packed weights.

Source: the framework Caffe, which computes a convolution as the product of the weights and the
im2col matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.launch import Launch, input_buffer, workspace_buffer
from gossamer.ops.strided import WORK_GROUP_SIZE, divisor, groups_for, too_large
from gossamer.ops.vendor.libraries import dtype_of
from gossamer.ops.weights import Weights
from gossamer.tensor import Format, TensorSpec

_SOURCE = Path(__file__).with_name("im2col.cl")
_MATRIX_BYTES = 2**31
"""Maximum bytes of an im2col matrix."""
_ORDERS = {"NCHW": 0, "NHWC": 1, "CHWN": 2}


def variant_of(problem: Conv2dProblem, config: Iterable[tuple[str, int | str]], layout: str,
               precision: str, workspace: int) -> Variant:
    """Return a variant with all tensors in one layout and the precision's dtype."""
    x, y = (TensorSpec(spec.shape, Format(layout, dtype_of(precision)))
            for spec in (problem.inputs[0], problem.outputs[0]))
    return Variant(tuple(config), (x, *[y] * problem.epilogue.tensor_count), (y,), precision,
                   workspace)


def matrix_rows(problem: Conv2dProblem) -> int:
    """Return the number of rows of the im2col matrix, for all groups together."""
    return problem.depth * problem.groups


def matrix_bytes(problem: Conv2dProblem, itemsize: int) -> int:
    """Return the bytes of the im2col matrix, rounded up to a multiple of 256.

    The result is 0 for a pointwise problem, because the input itself is the matrix.
    """
    if problem.is_pointwise:
        return 0
    elements = matrix_rows(problem) * problem.batch * problem.image_pixels
    return -(-elements * itemsize // 256) * 256


def cannot_lower(problem: Conv2dProblem) -> str | None:
    """Return why the im2col matrix in float32 cannot be stored; None if it can."""
    if (nbytes := matrix_bytes(problem, 4)) > _MATRIX_BYTES:
        return f"the im2col matrix has {nbytes} bytes, at most {_MATRIX_BYTES} are supported"
    return too_large(problem)


def gather(problem: Conv2dProblem, x: TensorSpec, device: Device,
           matrix: Callable[..., Argument] = workspace_buffer) -> Launch:
    """Return the launch that gathers the im2col matrix.

    x: spec of input 0.
    matrix: kernel argument for the buffer that the kernel writes, by default the workspace.
    """
    itemsize = x.stored_dtype.itemsize
    images, pixels, channels = problem.batch, problem.image_pixels, problem.channels
    group_channels = channels // problem.groups
    window = problem.taps
    along = {"NCHW": itemsize, "NHWC": group_channels * itemsize, "CHWN": images * itemsize}
    unit_bytes = next(size for size in (16, 4, 2) if along[x.layout] % size == 0
                      and (size == itemsize or x.layout != "NCHW"))
    step = unit_bytes // itemsize
    if x.layout == "NCHW":
        sizes = (pixels, channels, images)
        to = (channels * window * pixels, 1, 0, window * pixels, pixels)
    elif x.layout == "NHWC":
        channels, group_channels = channels // step, group_channels // step
        sizes = (channels, pixels, images)
        to = (pixels * window * channels, window * channels, window * group_channels, 1,
              group_channels)
    else:
        images //= step
        sizes = (images, pixels, channels)
        to = (1, images, 0, window * pixels * images, pixels * images)
    if x.layout != "NHWC":
        # in NCHW and CHWN, the matrix has the rows of all groups in the order of channels, as if
        # there were one group
        group_channels = channels
    strides = [stride if stride == 1 else stride // step for stride in x.strides]
    kernel = device.compile(KernelSource.of(_SOURCE, "im2col", {
        "ORDER": _ORDERS[x.layout], "UNIT_BYTES": unit_bytes}))
    items = sizes[0] * sizes[1] * sizes[2]
    return Launch(kernel, groups_for(items), (WORK_GROUP_SIZE,), (
        input_buffer(0), matrix, items,
        *divisor(sizes[0]), *divisor(sizes[1]), *divisor(problem.out_width),
        *divisor(group_channels), problem.height, problem.width, *problem.kernel,
        *problem.stride, *problem.pads[:2], *problem.dilation,
        *strides, *to))


def packed_rows(weights: Weights, problem: Conv2dProblem, layout: str, dtype: str) -> Buffer:
    """Return the weights on the device, in the shape (output channels, K of a group).

    K is in the order of the rows of the layout's im2col matrix.
    """
    def rows(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        weight = np.asarray(arrays["weight"], np.float32)
        if tap_order(layout) == "rsc":
            weight = weight.transpose(0, 2, 3, 1)
        return weight.reshape(problem.out_channels, problem.depth).astype(dtype)

    return weights.packed(f"rows of {tap_order(layout)} {dtype}", rows)


def tap_order(layout: str) -> str:
    """Return the order of channel c and tap (r, s) along K in a layout: "rsc" or "crs"."""
    return "rsc" if layout == "NHWC" else "crs"
